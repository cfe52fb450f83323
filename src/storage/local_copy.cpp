#include "storage/local_copy.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/atomic_file.h"
#include "base/hash.h"
#include "storage/parallel_read.h"

namespace lockstep::storage {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FetchStamp, source, version, size_bytes, modified, xxh3, sha256)

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string part_path(const std::string& file) {
  char host[256] = "";  // nodes may share the folder, and a lock does not always reach so far
  ::gethostname(host, sizeof host - 1);
  return fmt::format("{}.{}{}", file, host, base::kUnfinishedEnd);
}

}  // namespace

std::string FetchStamp::path_for(const std::string& file) {
  const fs::path path(file);
  return (path.parent_path() / fmt::format(".{}.fetched", path.filename().string())).string();
}

std::optional<FetchStamp> FetchStamp::read(const std::string& file) {
  try {
    return Json::parse(base::read_file(path_for(file))).get<FetchStamp>();
  } catch (const IoError&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

void FetchStamp::write(const std::string& file) const {
  base::write_file_atomically(
      path_for(file), Json(*this).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string sum_text(const std::vector<uint64_t>& sums) {
  return fmt::format("{:016x}", base::xxh3(std::as_bytes(std::span(sums))));
}

std::vector<uint64_t> chunk_sums(const base::ByteSource& file, int num_threads) {
  std::vector<uint64_t> sums((file.size() + kFetchChunk - 1) / kFetchChunk);
  for_each_parallel(sums.size(), num_threads, [&](size_t i) {
    std::vector<std::byte> chunk(std::min<uint64_t>(kFetchChunk, file.size() - i * kFetchChunk));
    file.read_at(i * kFetchChunk, chunk);
    sums[i] = base::xxh3(chunk);
  });
  return sums;
}

PartFile::PartFile(const std::string& file, UnfinishedFiles* unfinished)
    : file_(file), path_(part_path(file)), unfinished_(unfinished) {
  while (!lock()) {
  }
  if (unfinished_ != nullptr) {
    unfinished_->add(path_);
  }
}

// False if who had the lock has renamed or removed the file meanwhile.
bool PartFile::lock() {
  fd_ = base::open_file(path_, O_RDWR | O_CREAT);
  while (::flock(fd_.get(), LOCK_EX) != 0) {
    if (errno != EINTR) {
      throw IoError("cannot lock {}: {}", path_, base::errno_text(errno));
    }
  }
  struct stat opened {};
  struct stat named {};
  ::fstat(fd_.get(), &opened);
  return ::stat(path_.c_str(), &named) == 0 && named.st_ino == opened.st_ino &&
         named.st_dev == opened.st_dev;
}

PartFile::~PartFile() {
  if (!is_committed_) {
    ::unlink(path_.c_str());
  }
  if (unfinished_ != nullptr) {
    unfinished_->remove(path_);
  }
}

void PartFile::resize(uint64_t size) {
  // Emptied first: what a killed process left there must not shine through.
  const bool is_sized =
      ::ftruncate(fd_.get(), 0) == 0 && ::ftruncate(fd_.get(), static_cast<off_t>(size)) == 0;
  const bool has_room =
      is_sized && (size == 0 || ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(size)) == 0 ||
                   errno == EOPNOTSUPP);
  if (!has_room) {
    throw IoError("cannot make {} of {} bytes: {}", path_, size, base::errno_text(errno));
  }
}

void PartFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      throw IoError("cannot write {} at offset {}: {}", path_, offset, base::errno_text(errno));
    }
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void PartFile::commit(int mode) {
  if (::fchmod(fd_.get(), static_cast<mode_t>(mode)) != 0 || ::fsync(fd_.get()) != 0) {
    throw IoError("cannot finish {}: {}", path_, base::errno_text(errno));
  }
  if (::rename(path_.c_str(), file_.c_str()) != 0) {
    throw IoError("cannot rename {} to {}: {}", path_, file_, base::errno_text(errno));
  }
  is_committed_ = true;
}

}  // namespace lockstep::storage
