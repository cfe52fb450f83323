#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/unique_fd.h"
#include "checkpoint/place.h"
#include "checkpoint/points.h"
#include "checkpoint/shelf.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPart = ".part";

void sync_folder(const std::string& path) {
  const UniqueFd folder = open_file(path, O_RDONLY | O_DIRECTORY);
  if (::fsync(folder.get()) != 0) {
    throw IoError("cannot sync the folder {}: {}", path, errno_text(errno));
  }
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    throw IoError("cannot remove {}: {}", path, error.message());
  }
}

uint64_t free_bytes(const std::string& folder) {
  struct statvfs info {};
  if (::statvfs(folder.c_str(), &info) != 0) {
    throw IoError("cannot look at {}: {}", folder, errno_text(errno));
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

  void prepare(const SavePlan& save) override {
    make_folder(folder_);
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (is_left_over(entry.path().filename().string())) {
        log::info("checkpoint", "removing {}, which a save that was killed left behind",
                  entry.path().string());
        remove_tree(entry.path().string());
      }
    }
    if (free_bytes(folder_) < save.bytes) {
      fail_for_room(save);
    }
    make_folder(part_of(save.step));
  }

  std::string shard_file(const SavePlan&, int rank, int size) const override {
    return fmt::format("shard-{:05}-of-{:05}.safetensors", rank, size);
  }

  std::string attachment_file(const SavePlan&, const std::string& name) const override {
    return fmt::format("attached-{}", name);
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
      const UniqueFd fd = open_file(joined_location(part, std::string(kManifestFile)),
                                    O_WRONLY | O_CREAT | O_TRUNC);
      write_all(fd.get(), manifest.data(), manifest.size());
      if (::fsync(fd.get()) != 0) {
        throw IoError("cannot sync the manifest in {}: {}", part, errno_text(errno));
      }
    }
    sync_folder(part);
    pass(SavePoint::ManifestWritten);
    exchange(part, target);
    sync_folder(folder_);
    pass(SavePoint::Renamed);
  }

  void abort(const SavePlan& save) override { remove_tree(part_of(save.step)); }

  void remove(const std::string& name) override {
    // Under its hidden name it is no checkpoint any more, however far the removal comes.
    const std::string hidden = joined_location(folder_, fmt::format(".{}{}", name, kPart));
    const std::string path = joined_location(folder_, name);
    remove_tree(hidden);
    if (::rename(path.c_str(), hidden.c_str()) != 0 && errno != ENOENT) {
      throw IoError("cannot remove {}: {}", path, errno_text(errno));
    }
    remove_tree(hidden);
  }

  void point(const std::string& pointer, const std::string& name) override {
    write_file_atomically(joined_location(folder_, pointer), name + "\n");
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

  // A folder that is there changes places with the new one in one step, and then goes.
  static void exchange(const std::string& part, const std::string& target) {
    if (!fs::exists(target)) {
      if (::rename(part.c_str(), target.c_str()) != 0) {
        throw IoError("cannot rename {} to {}: {}", part, target, errno_text(errno));
      }
      return;
    }
    if (::renameat2(AT_FDCWD, part.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
      throw IoError("cannot put {} in the place of {}: {}", part, target, errno_text(errno));
    }
    remove_tree(part);
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

}  // namespace lockstep
