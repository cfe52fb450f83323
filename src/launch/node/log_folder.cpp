#include "launch/node/log_folder.h"

#include <cerrno>
#include <filesystem>
#include <set>
#include <string>
#include <sys/stat.h>
#include <system_error>

#include <lockstep/base/error.h>

namespace lockstep::launch {

namespace {

namespace fs = std::filesystem;

UsageError cannot_make(const std::string& folder, const std::string& why,
                       const OutputOptions& output) {
  return UsageError("cannot make {}: {}; give a --log-dir that you can write to (it is {})", folder,
                    why, output.log_dir);
}

// What the user named may be a link, and the folders above it are made as any program makes them.
void make_top(const OutputOptions& output) {
  const fs::path top = output.log_dir;
  std::error_code error;
  if (fs::is_directory(top, error)) {
    return;
  }
  if (top.has_parent_path()) {
    fs::create_directories(top.parent_path(), error);
  }
  if (error) {
    throw cannot_make(top, error.message(), output);
  }
  if (::mkdir(top.c_str(), output.folder_mode) == 0) {
    ::chmod(top.c_str(), output.folder_mode);  // whatever the umask
  } else if (errno != EEXIST) {                // another node was first
    throw cannot_make(top, base::errno_text(errno), output);
  }
}

// `is_ours`: another node or an earlier rank of this run may have made it.
void make_folder(const std::string& folder, bool is_ours, const OutputOptions& output) {
  if (::mkdir(folder.c_str(), output.folder_mode) == 0) {
    ::chmod(folder.c_str(), output.folder_mode);
    return;
  }
  const int error = errno;
  struct stat info {};
  if (error != EEXIST || ::lstat(folder.c_str(), &info) != 0) {
    throw cannot_make(folder, base::errno_text(error), output);
  }
  if (!is_ours || !S_ISDIR(info.st_mode)) {
    throw UsageError("{} is there already{}, and this run did not make it; give another --log-dir",
                     folder, S_ISLNK(info.st_mode) ? ", a link" : "");
  }
}

}  // namespace

void make_log_folders(const OutputOptions& output, const std::vector<NodePlan>& nodes) {
  if (output.log_dir.empty()) {
    return;
  }
  make_top(output);
  std::set<fs::path> made;
  for (const NodePlan& node : nodes) {
    for (const WorkerPlan& worker : node.workers) {
      const fs::path rank = worker.log_folder;
      const fs::path attempt = rank.parent_path();
      for (const fs::path& shared : {attempt.parent_path(), attempt}) {
        if (made.insert(shared).second) {
          make_folder(shared, true, output);
        }
      }
      make_folder(rank, false, output);
    }
  }
}

}  // namespace lockstep::launch
