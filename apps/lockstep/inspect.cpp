#include "inspect.h"

#include <filesystem>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "command_line.h"
#include "commands.h"
#include "storage/storage.h"

namespace lockstep::app {

namespace {

constexpr const char* kInspectExamples =
    "FILE is safetensors, a file of torch.save (zip, the older stream or tar), .npy, .npz, an "
    "index of\n"
    "shards (*.index.json), or tokens of llm.c and nanoGPT (.bin); DIR is a folder with a model or "
    "checkpoints\n"
    "in it. Both may be on S3: s3://bucket/model.safetensors, s3://bucket/gpt2.\n"
    "\n"
    "Examples:\n"
    "  lockstep inspect model.safetensors\n"
    "  lockstep inspect --tree checkpoints/gpt2\n"
    "  lockstep inspect --verify resnet50.pth\n"
    "  lockstep inspect --verify runs/cats/checkpoints\n"
    "  lockstep inspect pytorch_model.bin --convert model.safetensors\n"
    "  lockstep inspect --diff before.pth after.safetensors\n"
    "  lockstep inspect --json model.safetensors | jq '.tensors[].name'\n"
    "\n"
    "Exit code: 1 if the file is damaged or cannot be read, 2 for a wrong command line. With "
    "--diff, as\n"
    "diff does: 1 if the weights differ, 2 for all else.\n";

constexpr int kTrouble = 2;
constexpr const char* kIndexSuffix = ".index.json";

struct InspectFlags {
  std::vector<std::string> locations;
  std::string output;
  bool tree = false;
  bool json = false;
  bool verify = false;
  bool diff = false;
  bool force = false;
};

// False if it was --help.
bool parse(InspectFlags& flags, const Arguments& arguments) {
  CLI::App app(
      "Shows, verifies, converts and compares files of weights and tokens. Nothing in them is "
      "executed.",
      "lockstep inspect FILE|DIR");
  app.add_flag("--tree", flags.tree, "Show the names as a tree, with the sums of each branch");
  app.add_flag("--json", flags.json, "Print everything as JSON");
  app.add_flag(
      "--verify", flags.verify,
      "Read the whole file: compare every CRC-32, and FILE.sha256 (the line of sha256sum) if it "
      "exists");
  app.add_option("--convert", flags.output,
                 "Write the weights as .safetensors, or as torch.save does (.pth, .pt, .bin)")
      ->type_name("FILE");
  app.add_flag("--force", flags.force, "Replace the FILE of --convert if it exists");
  app.add_flag("--diff", flags.diff,
               "Compare two files: names, shapes, types and the largest difference");
  app.footer(kInspectExamples);
  std::vector<std::string> given;
  Arguments rest = arguments;
  while (!rest.empty()) {
    SplitArguments split = split_arguments(app, rest);
    given.insert(given.end(), split.flags.begin(), split.flags.end());
    if (!split.command.empty()) {
      flags.locations.push_back(split.command.front());
      split.command.erase(split.command.begin());
    }
    rest = std::move(split.command);
  }
  if (!parse_flags(app, std::move(given))) {
    return false;
  }
  const size_t wanted = flags.diff ? 2 : 1;
  if (flags.locations.size() != wanted) {
    throw UsageError("{} files given, and {} wanted; for example: lockstep inspect {}",
                     flags.locations.size(), wanted,
                     flags.diff ? "--diff a.pth b.pth" : "model.safetensors");
  }
  const int num_ways = flags.tree + flags.json + flags.diff + !flags.output.empty();
  if (num_ways > 1 && !(flags.diff && flags.json && num_ways == 2)) {
    throw UsageError("--tree, --json, --convert and --diff exclude each other (but --diff --json)");
  }
  return true;
}

formats::WeightSet open_weights(const std::string& location) {
  if (!storage::is_folder(location)) {
    return formats::open_weight_set(location, open_location);
  }
  const auto storage = storage::open_storage(location);
  const auto has = [&](const char* name) { return storage->find(name).has_value(); };
  return formats::open_weight_set(formats::find_model_file(location, has), open_location);
}

int convert(const InspectFlags& flags, const formats::WeightSet& set) {
  if (!flags.force && std::filesystem::exists(flags.output)) {
    throw UsageError("{} exists; --force replaces it", flags.output);
  }
  const formats::ConvertReport report = formats::convert_weights(set, flags.output);
  fmt::print("{}: {} tensors, {}\n", flags.output, report.num_tensors,
             size_text(report.size_bytes));
  if (!report.tied.empty()) {
    fmt::print(
        "  {} of them tied to others{}\n", report.tied.size(),
        flags.output.ends_with(".safetensors") ? ": left out, and noted in the metadata" : "");
  }
  if (report.num_views != 0) {
    fmt::print("  {} views are contiguous now\n", report.num_views);
  }
  if (report.num_values_left_out != 0) {
    fmt::print("  {} values that are no tensors are left out: safetensors cannot hold them\n",
               report.num_values_left_out);
  }
  return 0;
}

int diff(const InspectFlags& flags) {
  try {
    const formats::WeightSet a = open_weights(flags.locations[0]);
    const formats::WeightSet b = open_weights(flags.locations[1]);
    const formats::WeightDiff result = formats::diff_weights(a, b);
    fmt::print("{}", flags.json ? diff_json(result)
                                : diff_text(flags.locations[0], flags.locations[1], result));
    return result.is_equal() ? 0 : 1;
  } catch (const UsageError&) {
    throw;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep inspect: {}\n", error.what());
    return kTrouble;  // 1 would say that they differ
  }
}

// Throws FormatError for a file of no known kind.
bool is_tokens(const std::string& location) {
  if (storage::is_folder(location) || location.ends_with(kIndexSuffix)) {
    return false;
  }
  const std::unique_ptr<base::ByteSource> source = open_location(location);
  if (formats::detect_weight_format(*source)) {
    return false;
  }
  if (!may_be_tokens(*source)) {
    throw FormatError(
        "{}: not a file that inspect knows: safetensors, torch.save (zip, legacy, tar), .npy, "
        ".npz, "
        "an index of shards (*.index.json), tokens of llm.c or nanoGPT (*.bin)",
        location);
  }
  return true;
}

}  // namespace

std::unique_ptr<base::ByteSource> open_location(const std::string& location) {
  return storage::open_source(location);
}

int inspect(const Arguments& arguments) {
  InspectFlags flags;
  if (!parse(flags, arguments)) {
    return 0;
  }
  if (flags.diff) {
    return diff(flags);
  }
  const std::string& location = flags.locations.front();
  if (is_checkpoint(location)) {
    if (flags.tree || !flags.output.empty()) {
      throw UsageError("{} is a checkpoint: give --json, --verify or nothing", location);
    }
    return inspect_checkpoint(location, {.as_json = flags.json, .verify = flags.verify});
  }
  if (is_tokens(location)) {
    if (flags.tree || !flags.output.empty()) {
      throw UsageError("{} holds tokens: there is no tree and nothing to convert", location);
    }
    return inspect_tokens(*open_location(location),
                          {.as_json = flags.json, .verify = flags.verify});
  }
  const formats::WeightSet set = open_weights(location);
  const std::vector<Verified> verified =
      flags.verify ? verify_weights(set) : std::vector<Verified>();
  if (!flags.output.empty()) {
    return convert(flags, set);
  }
  if (flags.json) {
    fmt::print("{}", weights_json(location, set, verified));
    return 0;
  }
  fmt::print("{}{}", flags.tree ? weights_tree(location, set) : weights_table(location, set),
             verified_text(verified));
  return 0;
}

}  // namespace lockstep::app
