#pragma once

// A job inside an image: a squashfs root file system with the program and all that it needs.
//
// The built-in runtime needs no daemon, and no root where the kernel lets ordinary users make
// namespaces. What the job sees:
//   /                the image, read-only
//   /proc /sys /dev  the caller's; /sys read-only
//   /tmp /run        in memory, empty, gone with the job
//   /etc/hosts /etc/hostname /etc/resolv.conf   the host's, read-only, where the image has them
//   /run/lockstep/driver   the libraries of the host's GPU driver, read-only, where it has one
//   the targets of --mount
// The network, the user and the limits are the host's. When the last process inside has ended,
// nothing is left: no mount, no loop device, no squashfuse.

#include <string>
#include <vector>

#include "image/mounts.h"

namespace lockstep::image {

enum class ContainerRuntime { Builtin, Enroot, Apptainer, Charliecloud };

// "builtin", "enroot", "apptainer" or "charliecloud"; throws UsageError otherwise.
ContainerRuntime parse_container_runtime(const std::string& text);

struct ContainerOptions {
  std::string image;          // REQUIRED: path of the .sqsh file
  std::vector<Mount> mounts;  // in this order: a later one may lie inside an earlier one
  ContainerRuntime runtime = ContainerRuntime::Builtin;
};

// The built-in runtime: moves this process, and what it starts afterwards, into the image for good.
// Call it in a process without threads. A mount point that the image lacks is laid over it. The
// current folder stays if the image (or a mount) has it, else it becomes "/". PATH of this process
// becomes the image's, for execvp to search. Throws UsageError (a mount), FormatError (the file) or
// IoError (the kernel refuses); the process may then be half-way and should end.
void enter_image(const ContainerOptions& options);

// The environment of a program in the image, given that of the host ("NAME=value"), once entered:
// the image's /etc/environment wins over the host's variables, with ${NAME} in its values replaced
// by the host's; variables of the job (RANK, LOCKSTEP_..., see is_job_variable) win over both.
// PATH, LD_LIBRARY_PATH and LD_PRELOAD of the host, which name files that the image does not have,
// are not passed on. LD_LIBRARY_PATH ends with the folder of the GPU driver, where one has come in
// (gpu_driver.h). `root`: the entered image; tests give a folder.
std::vector<std::string> image_environment(const std::vector<std::string>& host,
                                           const std::string& root = "");

// Describes the process's place in the job: RANK, MASTER_ADDR, LOCKSTEP_*, TORCHELASTIC_*, and
// CUDA_VISIBLE_DEVICES, by which the launcher and schedulers deal GPUs.
bool is_job_variable(const std::string& name);

// PATH, LD_LIBRARY_PATH or LD_PRELOAD.
bool names_host_files(const std::string& name);

// PATH of /etc/environment in `root`, or the usual folders if it has none.
std::string image_search_path(const std::string& root = "");

// For the other runtimes: the command line that runs `program` in the image, with the mounts.
// `environment` ("NAME=value"): what the program is to find in it; Enroot passes on only what it is
// told to, by name, so that no value (a secret) is on the command line. Throws UsageError for what
// the runtime cannot do: read-only mounts with charliecloud, and Builtin, which has no command.
std::vector<std::string> container_command(const ContainerOptions& options,
                                           const std::vector<std::string>& program,
                                           const std::vector<std::string>& environment = {});

}  // namespace lockstep::image
