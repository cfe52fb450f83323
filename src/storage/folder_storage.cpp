#include "storage/folder_storage.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/atomic_file.h"
#include "storage/location.h"

namespace lockstep::storage {

namespace {

namespace fs = std::filesystem;

class FileWriter : public ObjectWriter {
 public:
  explicit FileWriter(const std::string& path) : file_(path) {}

  void append(std::span<const std::byte> bytes) override { file_.append(bytes); }
  void commit() override { file_.commit(); }

 private:
  base::AtomicFile file_;
};

void make_folder_of(const fs::path& file) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  if (error) {
    throw IoError("cannot make the folder {}: {}", file.parent_path().string(), error.message());
  }
}

}  // namespace

FolderStorage::FolderStorage(std::string location, std::string folder)
    : location_(std::move(location)), folder_(std::move(folder)) {
  if (!folder_.ends_with('/')) {
    folder_ += '/';
  }
}

std::string FolderStorage::at(const std::string& path) const {
  check_relative(path, location_);
  return folder_ + path;
}

std::vector<ObjectInfo> FolderStorage::list(const std::string& prefix) const {
  // Only the folder that the prefix ends in is walked.
  const size_t slash = prefix.find_last_of('/');
  const std::string inside = slash == std::string::npos ? "" : prefix.substr(0, slash + 1);
  if (!inside.empty()) {
    check_relative(inside.substr(0, slash), location_);
  }
  const fs::path start = folder_ + inside;
  std::vector<ObjectInfo> objects;
  std::error_code error;
  fs::recursive_directory_iterator entry(start, error);
  if (error == std::errc::no_such_file_or_directory && !inside.empty()) {
    return objects;  // as in a bucket, where there are no folders
  }
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    std::error_code ignored;  // a file that went away since, or a link to nothing
    const std::string path = inside + entry->path().lexically_relative(start).generic_string();
    if (!path.starts_with(prefix)) {
      entry.disable_recursion_pending();  // nothing in it does
    } else if (!path.ends_with(base::kUnfinishedEnd) && entry->is_regular_file(ignored)) {
      if (auto object = find(path)) {
        objects.push_back(std::move(*object));
      }
    }
  }
  if (error) {
    throw IoError("cannot list {}: {}", start.string(), error.message());
  }
  std::sort(objects.begin(), objects.end(),
            [](const ObjectInfo& a, const ObjectInfo& b) { return a.path < b.path; });
  return objects;
}

std::optional<ObjectInfo> FolderStorage::find(const std::string& path) const {
  struct stat info {};
  if (::stat(at(path).c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return std::nullopt;
    }
    throw IoError("cannot look at {}: {}", at(path), base::errno_text(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return std::nullopt;
  }
  return ObjectInfo{.path = path,
                    .size_bytes = static_cast<uint64_t>(info.st_size),
                    .version = fmt::format("{}.{:09}", info.st_mtim.tv_sec, info.st_mtim.tv_nsec)};
}

std::unique_ptr<base::ByteSource> FolderStorage::open(const std::string& path) const {
  return std::make_unique<base::FileSource>(at(path));
}

std::unique_ptr<ObjectWriter> FolderStorage::create(const std::string& path) {
  const fs::path target = at(path);
  make_folder_of(target);
  return std::make_unique<FileWriter>(target.string());
}

bool FolderStorage::create_new(const std::string& path, std::string_view text) {
  const fs::path target = at(path);
  make_folder_of(target);
  const base::UniqueFd fd(::open(target.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd && errno == EEXIST) {
    return false;
  }
  if (!fd) {
    throw IoError("cannot make {}: {}", target.string(), base::errno_text(errno));
  }
  base::write_all(fd.get(), text.data(), text.size());
  return true;
}

void FolderStorage::remove(const std::string& path) {
  if (::unlink(at(path).c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) {
    throw IoError("cannot remove {}: {}", at(path), base::errno_text(errno));
  }
}

}  // namespace lockstep::storage
