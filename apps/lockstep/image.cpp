#include "image/image.h"

#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "command_line.h"
#include "commands.h"
#include "image/image_build.h"

namespace lockstep::app {

namespace {

constexpr const char* kHelp =
    "A job image is one squashfs file that holds a root file system: the program and all that it\n"
    "needs.\n"
    "\n"
    "Usage: lockstep image build|check|enter [OPTIONS]\n"
    "\n"
    "Commands:\n"
    "  build    make an image from a folder or a fresh Debian\n"
    "  check    check that an image is complete, fits this machine and has a program\n"
    "  enter    run a command, or a shell, in an image\n"
    "\n"
    "Examples:\n"
    "  lockstep image build --debian --python requirements.txt --add ./my_program -o job.sqsh\n"
    "  lockstep image check job.sqsh --program my_program\n"
    "  lockstep image enter job.sqsh --mount /datasets:/data:ro -- my_program --help\n";

std::vector<image::Mount> parse_mounts(const std::vector<std::string>& texts) {
  std::vector<image::Mount> mounts(texts.size());
  std::transform(texts.begin(), texts.end(), mounts.begin(), image::parse_mount);
  return mounts;
}

int build(const Arguments& arguments) {
  image::ImageBuildOptions options;
  std::vector<std::string> additions;
  bool no_libs = false;
  CLI::App app("Builds a job image.", "lockstep image build");
  app.add_option("--from", options.from, "Copy the root from this folder, which may be empty")
      ->type_name("DIR");
  app.add_flag("--debian", options.debian, "Make a new Debian 12 as the root (needs mmdebstrap)");
  app.add_option("--python", options.requirements,
                 "Add Python, and what pip installs for this file (with --debian)")
      ->type_name("requirements.txt");
  app.add_option("--add", additions,
                 "Add a program with the shared libraries that the root lacks, or a folder; to "
                 "/usr/local/bin if no DST is given; may be repeated")
      ->type_name("PROGRAM[:DST]");
  app.add_flag("--no-libs", no_libs, "Add programs without their libraries");
  app.add_option("--mkdir", options.folders,
                 "Make an empty folder, for a mount; may be repeated. There are always /data, "
                 "/checkpoints and /workspace")
      ->type_name("DIR");
  app.add_option("-o,--output", options.output, "The image file to write")->type_name("FILE");
  app.add_flag("--force", options.force, "Replace FILE if it exists");
  app.footer(
      "Examples:\n"
      "  lockstep image build --debian --add ./my_program -o job.sqsh\n"
      "  mkdir empty && lockstep image build --from empty --add ./my_program -o small.sqsh\n");
  SplitArguments split = split_arguments(app, arguments);
  if (!split.command.empty()) {
    throw UsageError("image build takes no argument {}", split.command.front());
  }
  if (!parse_flags(app, std::move(split.flags))) {
    return 0;
  }
  if (options.output.empty()) {
    throw UsageError("no output given; for example: -o job.sqsh");
  }
  for (const std::string& text : additions) {
    options.additions.push_back(image::parse_addition(text));
  }
  options.libraries = !no_libs;
  options.progress = [](const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  image::build_image(options);
  const image::SquashfsInfo info = image::read_squashfs(options.output);
  fmt::print("{}: {:.1f} MiB, {} files and folders\n", options.output,
             static_cast<double>(info.file_bytes) / (1u << 20), info.num_inodes);
  return 0;
}

// Flags may stand before the image's name and after it; what is left is a command.
struct ImageArguments {
  std::string image;
  std::vector<std::string> command;
};

// False if it was --help.
bool parse_image_arguments(CLI::App& app, const Arguments& arguments, ImageArguments& result) {
  SplitArguments split = split_arguments(app, arguments);
  if (!split.command.empty()) {
    result.image = split.command.front();
    SplitArguments rest = split_arguments(app, {split.command.begin() + 1, split.command.end()});
    split.flags.insert(split.flags.end(), rest.flags.begin(), rest.flags.end());
    result.command = std::move(rest.command);
  }
  if (!parse_flags(app, std::move(split.flags))) {
    return false;
  }
  if (result.image.empty()) {
    throw UsageError("no image given; for example: {} job.sqsh", app.get_name());
  }
  return true;
}

// What a GPU job needs of the image, and whether it has it.
std::string gpu_text(const image::GpuNeeds& gpu) {
  if (!gpu.problem.empty()) {
    return "GPU: " + gpu.problem;
  }
  const std::string glibc =
      gpu.image_glibc.empty() ? "the image has no glibc" : "the image has glibc " + gpu.image_glibc;
  if (gpu.num_libraries == 0) {
    return fmt::format(
        "GPU: this host has no driver to go with the image, or LOCKSTEP_DEVICE=cpu; {}", glibc);
  }
  return fmt::format("GPU: driver{}{} of this host, {} libraries, which need glibc {}; {}",
                     gpu.version.empty() ? "" : " ", gpu.version, gpu.num_libraries,
                     gpu.needed_glibc, glibc);
}

int check(const Arguments& arguments) {
  ImageArguments parsed;
  std::string program;
  std::vector<std::string> mounts;
  CLI::App app("Checks that an image is complete, fits this machine and has a program.",
               "lockstep image check");
  app.add_option("--program", program,
                 "A program that must be in the image or in a mount, and be executable")
      ->type_name("PROGRAM");
  app.add_option("--mount", mounts, "As for lockstep run")->type_name("SRC:DST[:ro]");
  app.footer(
      "Examples:\n"
      "  lockstep image check job.sqsh --program my_program\n"
      "\n"
      "Exit code: 0 if the image is sound.\n");
  if (!parse_image_arguments(app, arguments, parsed)) {
    return 0;
  }
  if (!parsed.command.empty()) {
    throw UsageError("image check takes no argument {}", parsed.command.front());
  }
  const image::ImageInfo info =
      image::check_image({.image = parsed.image, .mounts = parse_mounts(mounts)}, program);
  fmt::print("{}: {:.1f} MiB, {} files and folders, {}{}\n", parsed.image,
             static_cast<double>(info.squashfs.file_bytes) / (1u << 20), info.squashfs.num_inodes,
             info.squashfs.compression, info.machine.empty() ? "" : ", for " + info.machine);
  if (!info.program.empty()) {
    fmt::print("{}: {}\n", program, info.program);
  }
  fmt::print("{}\n", gpu_text(info.gpu));
  if (!info.has_shell) {
    fmt::print("no /bin/sh: Enroot and pyxis need one\n");
  }
  return 0;
}

int enter(const Arguments& arguments) {
  ImageArguments parsed;
  std::string runtime = "builtin";
  std::vector<std::string> mounts;
  CLI::App app("Runs a command, or a shell, in an image.", "lockstep image enter");
  app.add_option("--mount", mounts, "Make SRC of the host visible as DST; may be repeated")
      ->type_name("SRC:DST[:ro|rw]");
  app.add_option("--container-runtime", runtime, "The program that runs the image (builtin)")
      ->type_name("builtin|enroot|apptainer|charliecloud");
  app.footer(
      "Examples:\n"
      "  lockstep image enter job.sqsh\n"
      "  lockstep image enter job.sqsh --mount /datasets:/data:ro -- ls /data\n"
      "\n"
      "Exit code: the command's.\n");
  if (!parse_image_arguments(app, arguments, parsed)) {
    return 0;
  }
  if (parsed.command.empty()) {
    parsed.command = {"/bin/sh"};
  }
  return image::run_in_image({.image = parsed.image,
                              .mounts = parse_mounts(mounts),
                              .runtime = image::parse_container_runtime(runtime)},
                             parsed.command);
}

}  // namespace

int image(const Arguments& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    fmt::print("{}", kHelp);
    return 0;
  }
  const Arguments rest{arguments.begin() + 1, arguments.end()};
  if (arguments[0] == "build") {
    return build(rest);
  }
  if (arguments[0] == "check") {
    return check(rest);
  }
  if (arguments[0] == "enter") {
    return enter(rest);
  }
  throw UsageError("there is no image command {}; it is build, check or enter", arguments[0]);
}

}  // namespace lockstep::app
