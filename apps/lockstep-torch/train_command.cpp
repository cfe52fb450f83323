#include "train_command.h"

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/ops/tensor.h>
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/comm/init.h>

#include "base/config.h"
#include "base/env.h"
#include "comm/launch_env.h"
#include "data/cat_pictures.h"
#include "data/picture_text.h"
#include "train/cats_config.h"
#include "train/cats_job.h"
#include "train/cats_report.h"

namespace lockstep {
namespace {

constexpr const char* kDescription =
    "Trains the model that RECIPE describes, on one process or on all ranks of `lockstep run`.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep train recipes/cats.toml\n"
    "  lockstep train recipes/cats.toml --show\n"
    "  lockstep run --nproc-per-node 4 -- lockstep train recipes/cats.toml --set train.epochs=8\n"
    "  lockstep run --local-nodes 2 --nproc-per-node 4 -- lockstep train recipes/cats.toml --json\n"
    "\n"
    "Exit code: 0; 1 if a rank was lost or the ranks ended with different models; 2 for a mistake "
    "on\n"
    "this line or in the recipe.\n";

struct Request {
  std::string recipe;  // path
  CatsConfig config;
  bool json = false;
  bool show = false;
  std::string help;  // not empty: print this, there is nothing to train
};

Request parse_request(int argc, char** argv) {
  Request request;
  std::vector<std::string> settings;
  CLI::App app(kDescription, "lockstep train");
  app.add_option("RECIPE", request.recipe,
                 "A TOML file; recipes/ has those that come with lockstep")
      ->required();
  app.add_option("--set", settings, "Override a setting of the recipe; may be repeated")
      ->type_name("SECTION.KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--json", request.json, "Print one JSON object at the end and nothing else");
  app.add_flag("--show", request.show, "Print two cats and two not-cats and train nothing");
  app.footer(kExamples);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    request.help = app.help();
    return request;
  } catch (const CLI::ParseError& error) {
    throw UsageError("{} (see `lockstep train --help`)", error.what());
  }
  Config config = Config::from_file(request.recipe);
  for (const std::string& setting : settings) {
    config.set(setting);
  }
  read_recipe_name(config);
  request.config = read_cats_config(config);
  return request;
}

// A mistake that every rank makes is told once, by the first rank that made it; the others stay
// until it is said, since the launcher stops all ranks when the first of them fails. True if there
// was one.
bool tell_mistake(Group& group, const std::optional<UsageError>& mistake) {
  const int64_t nobody = group.size();
  const at::Tensor teller = at::tensor({mistake ? int64_t{group.rank()} : nobody}, at::kLong);
  group.all_reduce(teller, {.op = ReduceOp::Min});
  if (teller.item<int64_t>() == nobody) {
    return false;
  }
  if (teller.item<int64_t>() == group.rank()) {
    fmt::print(stderr, "lockstep train: {}\n", mistake->what());
    std::fflush(stderr);
  }
  group.barrier();
  return true;
}

std::string show_text(const CatsConfig& config) {
  const TensorDataset pictures =
      draw_cat_pictures({.num_pictures = 4, .seed = static_cast<uint64_t>(config.data_seed)});
  const std::vector<at::Tensor> row = {pictures.input[0], pictures.input[2], pictures.input[1],
                                       pictures.input[3]};
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  return fmt::format("{:<34}{:<34}{:<34}{}\n", "a cat", "a cat", "not a cat", "not a cat") +
         picture_text(row, terminal ? PictureStyle::Colour : PictureStyle::Ascii);
}

// The `lockstep` beside this program, as short as it can be typed from here.
std::string program_path() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return "lockstep";
  }
  const std::string absolute = self.parent_path() / "lockstep";
  const std::string relative = std::filesystem::proximate(absolute, error);
  return error || relative.starts_with("..") ? absolute : relative;
}

void print_line(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);  // a pipe would keep it back until the end
}

int train(const Request& request, Group& group) {
  CatsWatcher watcher;
  if (!request.json) {
    watcher.on_start = [](const RankStart& start) { print_line(start_line(start)); };
    watcher.on_epoch = [](const EpochReport& report) { print_line(epoch_line(report)); };
  }
  const CatsResult result = train_cats(request.config, group, watcher);
  if (group.rank() == 0) {
    const CatsCommand command{.program = program_path(), .recipe = request.recipe};
    print_line(request.json ? result_json(result) : result_text(result, command));
  }
  return result.same_bits() ? 0 : 1;
}

}  // namespace

int train_command(int argc, char** argv) {
  const Env env;
  if (!env.has("LOCKSTEP_LOG_LEVEL")) {
    log::set_level(log::Level::Warn);  // the user reads about the training, not how the ranks met
  }
  Request request;
  std::optional<UsageError> mistake;
  try {
    request = parse_request(argc, argv);
  } catch (const UsageError& error) {
    mistake = error;
  }
  if (!mistake && (request.show || !request.help.empty())) {
    if (read_launch_env(env).rank == 0) {
      fmt::print("{}", request.show ? show_text(request.config) : request.help);
    }
    return 0;
  }
  Group group = init();
  if (!mistake) {
    try {
      batch_per_rank(request.config, group.size());
    } catch (const UsageError& error) {
      mistake = error;
    }
  }
  return tell_mistake(group, mistake) ? 2 : train(request, group);
}

}  // namespace lockstep
