#include "image/container.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include <lockstep/base/error.h>

#include "image/gpu_driver.h"

namespace lockstep::image {

namespace {

std::string absolute(const std::string& path) {
  return std::filesystem::absolute(path).lexically_normal().string();
}

// Enroot separates the fields of a mount by colons or blanks; nothing can be quoted.
std::string enroot_mount(const Mount& mount) {
  const std::string paths = mount.source + mount.target;
  if (std::any_of(paths.begin(), paths.end(), [](unsigned char c) { return std::isspace(c); })) {
    throw UsageError("--mount {}: enroot cannot mount a path with a blank in it", to_text(mount));
  }
  return fmt::format("{}:{}:none:x-create=auto,rbind,{}", mount.source, mount.target,
                     mount.read_only ? "ro" : "rw");
}

bool enroot_can_name(const std::string& entry) {
  const std::string name = entry.substr(0, entry.find('='));
  return !name.empty() && std::isdigit(static_cast<unsigned char>(name[0])) == 0 &&
         std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return std::isalnum(c) || c == '_'; }) &&
         entry.find('\n') == std::string::npos;
}

std::vector<std::string> enroot_command(const ContainerOptions& options,
                                        const std::vector<std::string>& environment) {
  std::vector<std::string> command{"enroot", "start"};
  for (const Mount& mount : options.mounts) {
    command.insert(command.end(), {"--mount", enroot_mount(mount)});
  }
  for (const std::string& entry : environment) {
    const std::string name = entry.substr(0, entry.find('='));
    if (enroot_can_name(entry) && !names_host_files(name)) {
      command.insert(command.end(), {"--env", name});
    }
  }
  command.insert(command.end(), {"--", absolute(options.image)});
  return command;
}

std::vector<std::string> apptainer_command(const ContainerOptions& options) {
  std::vector<std::string> command{"apptainer", "exec"};
  if (host_gpu_driver()) {
    command.push_back("--nv");
  }
  for (const Mount& mount : options.mounts) {
    const std::string text = to_text(mount);
    if (text.find(',') != std::string::npos) {
      throw UsageError("--mount {}: apptainer takes a comma for the end of the mount", text);
    }
    command.insert(command.end(), {"--bind", text});
  }
  command.push_back(absolute(options.image));
  return command;
}

std::vector<std::string> charliecloud_command(const ContainerOptions& options) {
  std::vector<std::string> command{"ch-run"};
  for (const Mount& mount : options.mounts) {
    if (mount.read_only) {
      throw UsageError(
          "--mount {}: charliecloud has no read-only mounts; leave out :ro, or use "
          "--container-runtime builtin",
          to_text(mount));
    }
    command.push_back(fmt::format("--bind={}:{}", mount.source, mount.target));
  }
  command.insert(command.end(), {absolute(options.image), "--"});
  return command;
}

}  // namespace

ContainerRuntime parse_container_runtime(const std::string& text) {
  if (text == "builtin") {
    return ContainerRuntime::Builtin;
  }
  if (text == "enroot") {
    return ContainerRuntime::Enroot;
  }
  if (text == "apptainer") {
    return ContainerRuntime::Apptainer;
  }
  if (text == "charliecloud") {
    return ContainerRuntime::Charliecloud;
  }
  throw UsageError(
      "--container-runtime {} is unknown: choose builtin, enroot, apptainer or charliecloud", text);
}

std::vector<std::string> container_command(const ContainerOptions& options,
                                           const std::vector<std::string>& program,
                                           const std::vector<std::string>& environment) {
  std::vector<std::string> command;
  switch (options.runtime) {
    case ContainerRuntime::Builtin:
      throw UsageError("the built-in runtime enters {} without another command", options.image);
    case ContainerRuntime::Enroot:
      command = enroot_command(options, environment);
      break;
    case ContainerRuntime::Apptainer:
      command = apptainer_command(options);
      break;
    case ContainerRuntime::Charliecloud:
      command = charliecloud_command(options);
      break;
  }
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

}  // namespace lockstep::image
