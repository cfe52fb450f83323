#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <set>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/secret.h"
#include "base/unique_fd.h"
#include "checkpoint_files/checkpoint_list.h"
#include "checkpoint_files/own_files.h"
#include "checkpoint_files/place.h"
#include "checkpoint_files/points.h"

namespace lockstep::checkpoint_files {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPart = ".part";

void sync_folder(const std::string& path) {
  const base::UniqueFd folder = base::open_file(path, O_RDONLY | O_DIRECTORY);
  if (::fsync(folder.get()) != 0) {
    throw IoError("cannot sync the folder {}: {}", path, base::errno_text(errno));
  }
}

void rename_file(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw IoError("cannot rename {} to {}: {}", from, to, base::errno_text(errno));
  }
}

void remove_file(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    throw IoError("cannot remove {}: {}", path, base::errno_text(errno));
  }
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) {
    throw IoError("cannot list {}: {}", folder, error.message());
  }
  return names;
}

// The manifest first: without it the rest is no checkpoint.
void remove_own_files(const std::string& folder) {
  remove_file(joined_location(folder, std::string(kManifestFile)));
  for (const std::string& name : names_in(folder)) {
    if (is_own_file(name)) {
      remove_file(joined_location(folder, name));
    }
  }
}

// A hidden folder of a save. What others put there stays, and so does the folder then.
void remove_hidden(const std::string& folder) {
  if (!fs::exists(folder)) {
    return;
  }
  remove_own_files(folder);
  if (::rmdir(folder.c_str()) != 0 && errno != ENOENT) {
    throw IoError("cannot remove {}: {}", folder,
                  errno == ENOTEMPTY || errno == EEXIST ? "there are files of others in it"
                                                        : base::errno_text(errno));
  }
}

uint64_t free_bytes(const std::string& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) {
    throw IoError("cannot look at {}: {}", folder, base::errno_text(errno));
  }
  return info.f_bavail * info.f_frsize;
}

std::string size_text(uint64_t bytes) {
  constexpr double kGiga = 1e9;
  constexpr double kMega = 1e6;
  const auto value = static_cast<double>(bytes);
  return value >= kGiga ? fmt::format("{:.1f} GB", value / kGiga)
                        : fmt::format("{:.1f} MB", value / kMega);
}

// ".step-00000100.part".
bool is_left_over(const std::string& name) {
  return name.starts_with('.') && name.ends_with(kPart) && name.size() > 1 + kPart.size() &&
         step_of(name.substr(1, name.size() - 1 - kPart.size())).has_value();
}

class FolderPlace : public CheckpointPlace {
 public:
  explicit FolderPlace(std::string folder) : folder_(std::move(folder)) {}

  void probe() override {
    if (!fs::is_directory(folder_)) {
      throw IoError(
          "checkpoint: there is no {} here, which rank 0 has; all nodes must share this file "
          "system",
          folder_);
    }
    const std::string path = joined_location(folder_, ".lockstep-probe-" + base::make_secret());
    try {
      const base::UniqueFd fd = base::open_file(path, O_WRONLY | O_CREAT | O_EXCL);
      base::write_all(fd.get(), path.data(), path.size());
      remove_file(path);
    } catch (const IoError& error) {
      ::unlink(path.c_str());
      throw IoError("checkpoint: nothing can be written to {}: {}; choose another checkpoint.dir",
                    folder_, error.what());
    }
  }

  void prepare(const SavePlan& save) override {
    make_folder(folder_);
    for (const std::string& name : names_in(folder_)) {
      if (is_left_over(name)) {
        clear_left_over(joined_location(folder_, name));
      }
    }
    if (free_bytes(folder_) < save.bytes) {
      fail_for_room(save);
    }
    make_folder(part_of(save.step));
  }

  std::string shard_file(const SavePlan& save, int rank, int size) const override {
    return is_there(save.step) ? shard_name(rank, size, save.sequence) : shard_name(rank, size);
  }

  std::string attachment_file(const SavePlan& save, const std::string& name) const override {
    return is_there(save.step) ? attachment_file_name(name, save.sequence)
                               : attachment_file_name(name);
  }

  std::unique_ptr<ShardSink> open_shard(const SavePlan& save, const std::string& file,
                                        uint64_t bytes) override {
    const std::string part = part_of(save.step);
    if (!fs::is_directory(part)) {
      throw IoError("there is no {}, which rank 0 has made; all nodes must share this file system",
                    part);
    }
    try {
      return make_direct_file(joined_location(part, file), bytes);
    } catch (const IoError&) {
      if (free_bytes(folder_) < bytes) {
        fail_for_room(save);  // somebody else has taken it since
      }
      throw;
    }
  }

  void commit(const SavePlan& save, const std::string& manifest) override {
    const std::string part = part_of(save.step);
    const std::string target = joined_location(folder_, checkpoint_name(save.step));
    {
      const base::UniqueFd fd = base::open_file(joined_location(part, std::string(kManifestFile)),
                                                O_WRONLY | O_CREAT | O_TRUNC);
      base::write_all(fd.get(), manifest.data(), manifest.size());
      if (::fsync(fd.get()) != 0) {
        throw IoError("cannot sync the manifest in {}: {}", part, base::errno_text(errno));
      }
    }
    sync_folder(part);
    pass(SavePoint::ManifestWritten);
    if (is_there(save.step)) {
      replace(part, target);
    } else {
      rename_file(part, target);
    }
    sync_folder(folder_);
    pass(SavePoint::Renamed);
  }

  void abort(const SavePlan& save) override { remove_hidden(part_of(save.step)); }

  void remove(const std::string& name) override {
    const std::string path = joined_location(folder_, name);
    if (!fs::exists(path)) {
      return;
    }
    const auto names = names_in(path);
    if (!std::all_of(names.begin(), names.end(), is_own_file)) {
      remove_own_files(path);  // the folder stays, with what others put there
      return;
    }
    // Under its hidden name it is no checkpoint any more, however far the removal comes.
    const std::string hidden = joined_location(folder_, fmt::format(".{}{}", name, kPart));
    remove_hidden(hidden);
    rename_file(path, hidden);
    remove_hidden(hidden);
  }

  void point(const std::string& pointer, const std::string& name) override {
    base::write_file_atomically(joined_location(folder_, pointer), name + "\n");
  }

 private:
  static void make_folder(const std::string& path) {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) {
      throw IoError("cannot make the folder {}: {}", path, error.message());
    }
  }

  [[noreturn]] void fail_for_room(const SavePlan& save) const {
    throw IoError("no space for checkpoint step {}, {} needed, {} free in {}", save.step,
                  size_text(save.bytes), size_text(free_bytes(folder_)), folder_);
  }

  static void clear_left_over(const std::string& folder) {
    log::info("checkpoint", "removing {}, which a save that was killed left behind", folder);
    try {
      remove_hidden(folder);
    } catch (const IoError& error) {
      log::warn("checkpoint", "{}", error.what());  // no reason not to save
    }
  }

  // An older checkpoint of the step stays whole until the manifest is replaced: the new shards have
  // other names. Exchanging the folders would do it in one step, but not on NFS or Lustre.
  static void replace(const std::string& part, const std::string& target) {
    std::set<std::string> moved;
    for (const std::string& name : names_in(part)) {
      if (is_own_file(name) && name != kManifestFile) {
        rename_file(joined_location(part, name), joined_location(target, name));
        moved.insert(name);
      }
    }
    sync_folder(target);
    pass(SavePoint::ShardsMoved);
    rename_file(joined_location(part, std::string(kManifestFile)),
                joined_location(target, std::string(kManifestFile)));
    sync_folder(target);
    for (const std::string& name : names_in(target)) {
      if (is_own_file(name) && name != kManifestFile && !moved.contains(name)) {
        remove_file(joined_location(target, name));
      }
    }
    remove_hidden(part);
  }

  bool is_there(int64_t step) const {
    return fs::exists(joined_location(folder_, checkpoint_name(step)));
  }

  std::string part_of(int64_t step) const {
    return joined_location(folder_, fmt::format(".{}{}", checkpoint_name(step), kPart));
  }

  const std::string folder_;
};

}  // namespace

std::unique_ptr<CheckpointPlace> make_folder_place(const std::string& folder) {
  return std::make_unique<FolderPlace>(folder);
}

}  // namespace lockstep::checkpoint_files
