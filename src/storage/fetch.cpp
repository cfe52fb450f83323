#include "storage/fetch.h"

#include <algorithm>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/digest.h"
#include "base/hash.h"
#include "base/sidecar.h"
#include "storage/fetch_source.h"
#include "storage/folder_storage.h"
#include "storage/local_copy.h"
#include "storage/parallel_read.h"

namespace lockstep::storage {

namespace {

namespace fs = std::filesystem;

std::string read_sidecar(const FetchSource& source, const FetchItem& item) {
  const auto file = source.storage->open(item.object.path + base::kSidecarSuffix);
  const auto sidecar =
      base::parse_sidecar(file->read_text(0, std::min(file->size(), base::kMaxSidecarBytes)));
  if (!sidecar) {
    throw IoError("{} does not begin with the 64 hexadecimal digits of a SHA-256", file->name());
  }
  return sidecar->digest;  // whatever its name: objects are renamed on their way into a bucket
}

std::optional<ObjectInfo> local_file(const std::string& path) {
  const fs::path file(path);
  const std::string folder = file.parent_path().string();
  return FolderStorage(folder, folder).find(file.filename().string());
}

class Fetcher {
 public:
  Fetcher(const FetchSource& source, const FetchOptions& options)
      : source_(source), options_(options) {}

  // How many bytes were copied; nothing if the file was there.
  std::optional<uint64_t> fetch(const FetchItem& item, int num_threads) const {
    const std::string sha256 = item.has_sidecar ? read_sidecar(source_, item) : "";
    if (is_there(item, sha256, num_threads)) {
      return std::nullopt;
    }
    check_is_other_file(item);
    std::error_code error;
    fs::create_directories(fs::path(item.target).parent_path(), error);
    if (error) {
      throw IoError("cannot make the folder of {}: {}", item.target, error.message());
    }
    PartFile part(item.target, options_.unfinished);
    if (is_there(item, sha256, num_threads)) {  // by who had the lock before
      return std::nullopt;
    }
    const std::string location = source_.location_of(item);
    const auto from = source_.folder.empty()
                          ? source_.storage->open(item.object.path)
                          : open_direct_source(source_.folder + "/" + item.object.path);
    const std::vector<uint64_t> sums = copy(*from, part, num_threads);
    compare(part, sums, num_threads);
    if (!sha256.empty()) {
      const std::string found = base::sha256_of(base::FileSource(part.path()));
      if (found != sha256) {
        throw IoError("{}: its SHA-256 is {} and {}{} says {}; one of them is damaged", location,
                      found, location, base::kSidecarSuffix, sha256);
      }
    }
    part.commit(mode_of(item));
    FetchStamp{.source = location,
               .version = item.object.version,
               .size_bytes = from->size(),
               .modified = local_file(item.target)->version,
               .xxh3 = sum_text(sums),
               .sha256 = sha256}
        .write(item.target);
    return from->size();
  }

 private:
  bool is_there(const FetchItem& item, const std::string& sha256, int num_threads) const {
    auto stamp = FetchStamp::read(item.target);
    const auto file = local_file(item.target);
    if (!stamp || !file || stamp->source != source_.location_of(item) || stamp->version.empty() ||
        stamp->version != item.object.version || stamp->size_bytes != item.object.size_bytes ||
        file->size_bytes != stamp->size_bytes || (!sha256.empty() && stamp->sha256 != sha256)) {
      return false;
    }
    if (file->version == stamp->modified) {
      return true;
    }
    if (sum_text(chunk_sums(base::FileSource(item.target), num_threads)) != stamp->xxh3) {
      return false;
    }
    stamp->modified = file->version;  // touched or copied, but the same
    stamp->write(item.target);
    return true;
  }

  void check_is_other_file(const FetchItem& item) const {
    std::error_code ignored;
    if (!source_.folder.empty() &&
        fs::equivalent(source_.folder + "/" + item.object.path, item.target, ignored)) {
      throw UsageError("{} would be copied over itself; name another destination", item.target);
    }
  }

  static std::vector<uint64_t> copy(const base::ByteSource& from, PartFile& part, int num_threads) {
    std::vector<uint64_t> sums((from.size() + kFetchChunk - 1) / kFetchChunk);
    part.resize(from.size());
    for_each_parallel(sums.size(), num_threads, [&](size_t i) {
      const uint64_t offset = i * kFetchChunk;
      std::vector<std::byte> chunk(std::min<uint64_t>(kFetchChunk, from.size() - offset));
      from.read_at(offset, chunk);
      sums[i] = base::xxh3(chunk);
      part.write_at(offset, chunk);
    });
    return sums;
  }

  static void compare(const PartFile& part, const std::vector<uint64_t>& sums, int num_threads) {
    const std::vector<uint64_t> written = chunk_sums(base::FileSource(part.path()), num_threads);
    const auto [a, b] = std::mismatch(sums.begin(), sums.end(), written.begin(), written.end());
    if (a != sums.end() || b != written.end()) {
      throw IoError("{} at offset {} is not what was written there; is the disk sound?",
                    part.path(), static_cast<uint64_t>(a - sums.begin()) * kFetchChunk);
    }
  }

  // A program stays one.
  int mode_of(const FetchItem& item) const {
    constexpr int kPlain = 0644;
    constexpr mode_t kBits = 0777;
    struct stat info {};
    const bool is_known = !source_.folder.empty() &&
                          ::stat((source_.folder + "/" + item.object.path).c_str(), &info) == 0;
    return is_known ? static_cast<int>(info.st_mode & kBits) : kPlain;
  }

  const FetchSource& source_;
  const FetchOptions& options_;
};

}  // namespace

void UnfinishedFiles::add(const std::string& path) {
  const std::lock_guard lock(mutex_);
  paths_.insert(path);
  if (is_over_) {
    ::unlink(path.c_str());
  }
}

void UnfinishedFiles::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  paths_.erase(path);
}

void UnfinishedFiles::delete_all() noexcept {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
  for (const std::string& path : paths_) {
    ::unlink(path.c_str());
  }
}

FetchReport fetch(const std::string& source_location, const std::string& destination,
                  const FetchOptions& options) {
  if (destination.empty()) {
    throw UsageError("{} has no place to go to", source_location);
  }
  const FetchSource source = find_source(source_location, destination);
  const Fetcher fetcher(source, options);
  FetchReport report;
  std::mutex mutex;
  const auto fetch_one = [&](const FetchItem& item, int num_threads) {
    const auto copied = fetcher.fetch(item, num_threads);
    const std::lock_guard lock(mutex);
    ++report.num_files;
    report.num_skipped += copied ? 0 : 1;
    report.bytes_copied += copied.value_or(0);
  };
  // Small files side by side, then large ones each by all threads.
  std::vector<const FetchItem*> small;
  std::vector<const FetchItem*> large;
  for (const FetchItem& item : source.items) {
    (item.object.size_bytes <= kFetchChunk ? small : large).push_back(&item);
  }
  for_each_parallel(small.size(), options.num_threads, [&](size_t i) { fetch_one(*small[i], 1); });
  for (const FetchItem* item : large) {
    fetch_one(*item, options.num_threads);
  }
  return report;
}

}  // namespace lockstep::storage
