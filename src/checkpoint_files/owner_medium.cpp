#include "checkpoint_files/owner_medium.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "checkpoint_files/checkpoint_list.h"
#include "checkpoint_files/owner.h"
#include "storage/location.h"
#include "storage/storage.h"

namespace lockstep::checkpoint_files {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxRecordBytes = 64u << 10;

class FileMedium : public OwnerMedium {
 public:
  explicit FileMedium(const std::string& folder)
      : folder_(folder), path_(joined_location(folder, kOwnerFile)) {}

  ~FileMedium() override { remove_made(); }

  OwnerLock lock() override {
    make_folders();
    for (;;) {
      fd_ = open_record();
      if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK ? OwnerLock::Others : OwnerLock::NoLocks;
      }
      struct stat opened {};
      struct stat named {};
      ::fstat(fd_.get(), &opened);
      if (::stat(path_.c_str(), &named) == 0 && named.st_ino == opened.st_ino &&
          named.st_dev == opened.st_dev) {
        return OwnerLock::Ours;
      }  // else who had it has removed it meanwhile
    }
  }

  std::optional<std::string> read() const override {
    std::error_code ignored;
    if (!fs::exists(path_, ignored)) {
      return std::nullopt;
    }
    std::string text = base::read_file(path_, kMaxRecordBytes);
    return text.empty() ? std::nullopt : std::optional(std::move(text));
  }

  // In place, for the lock is on this very file; cut last, so that nobody finds it empty.
  bool write(const std::string& text, bool is_first) override {
    const auto size = static_cast<ssize_t>(text.size());
    if (::pwrite(fd_.get(), text.data(), text.size(), 0) != size ||
        ::ftruncate(fd_.get(), size) != 0) {
      const int error = errno;
      if (is_first) {
        ::unlink(path_.c_str());
      }
      throw IoError("checkpoint: cannot write {}: {}", path_, base::errno_text(error));
    }
    return true;
  }

  void remove() override {
    ::unlink(path_.c_str());
    fd_.reset();
    remove_made();
  }

 private:
  base::UniqueFd open_record() const {
    base::UniqueFd fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd) {
      throw IoError(
          "checkpoint: cannot write to {}: {}; choose a checkpoint.dir that this user may write to",
          folder_, base::errno_text(errno));
    }
    return fd;
  }

  void make_folders() {
    std::error_code error;
    std::vector<fs::path> missing;
    for (fs::path path = fs::absolute(folder_).lexically_normal();
         !fs::exists(path, error) && path.has_relative_path(); path = path.parent_path()) {
      missing.push_back(path);
    }
    fs::create_directories(folder_, error);
    if (error) {
      throw IoError("checkpoint: cannot make the folder {}: {}; choose another checkpoint.dir",
                    folder_, error.message());
    }
    made_.insert(made_.end(), missing.begin(), missing.end());
  }

  void remove_made() {
    for (const fs::path& path : made_) {  // the deepest first
      ::rmdir(path.c_str());              // fails if something is in it
    }
    made_.clear();
  }

  const std::string folder_;
  const std::string path_;
  std::vector<fs::path> made_;
  base::UniqueFd fd_;
};

class ObjectMedium : public OwnerMedium {
 public:
  explicit ObjectMedium(const std::string& location) : storage_(storage::open_storage(location)) {}

  OwnerLock lock() override { return OwnerLock::NoLocks; }

  std::optional<std::string> read() const override {
    const auto found = storage_->find(kOwnerFile);
    if (!found || found->size_bytes == 0 || found->size_bytes > kMaxRecordBytes) {
      return std::nullopt;
    }
    try {
      const auto source = storage_->open(kOwnerFile);
      return source->read_text(0, source->size());
    } catch (const IoError&) {
      if (!storage_->find(kOwnerFile)) {
        return std::nullopt;  // it went since
      }
      throw;
    }
  }

  bool write(const std::string& text, bool is_first) override {
    if (is_first) {
      return storage_->create_new(kOwnerFile, text);
    }
    const auto writer = storage_->create(kOwnerFile);
    writer->append(text);
    writer->commit();
    return true;
  }

  void remove() override { storage_->remove(kOwnerFile); }

 private:
  const std::shared_ptr<storage::Storage> storage_;
};

}  // namespace

std::unique_ptr<OwnerMedium> make_owner_medium(const std::string& location) {
  const storage::Location place = storage::parse_location(location);
  if (place.is_s3) {
    return std::make_unique<ObjectMedium>(location);
  }
  return std::make_unique<FileMedium>(place.path);
}

}  // namespace lockstep::checkpoint_files
