#include "image/squashfs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::image {

namespace {

constexpr size_t kSuperblockBytes = 96;
constexpr uint32_t kMinBlockBytes = 4096;
constexpr uint32_t kMaxBlockBytes = 1u << 20;
constexpr std::array<const char*, 7> kCompressions = {"",   "gzip", "lzma", "lzo",
                                                      "xz", "lz4",  "zstd"};

// The numbers in a squashfs are little-endian, whatever the machine is.
template <typename Number>
Number number_at(std::string_view bytes, size_t offset) {
  Number number = 0;
  for (size_t i = sizeof(Number); i-- > 0;) {
    number = static_cast<Number>((number << 8) | static_cast<unsigned char>(bytes[offset + i]));
  }
  return number;
}

struct Signature {
  size_t offset;
  std::string_view bytes;
  const char* name;
};

using namespace std::string_view_literals;
constexpr Signature kSignatures[] = {
    {0, "sqsh"sv, "a big-endian squashfs, older than version 4"},
    {32, "SIF_MAGIC"sv, "an Apptainer image (SIF)"},
    {0, "\x1f\x8b"sv, "a gzip file"},
    {0, "PK\x03\x04"sv, "a zip file"},
    {0,
     "\x7f"
     "ELF"sv,
     "a program (ELF)"},
    {0,
     "\xfd"
     "7zXZ"sv,
     "an xz file"},
    {0, "\x28\xb5\x2f\xfd"sv, "a zstd file"},
    {257, "ustar"sv, "a tar archive"},
    {0, "#!"sv, "a script"},
};

std::string looks_like(std::string_view start) {
  for (const Signature& signature : kSignatures) {
    if (start.size() > signature.offset &&
        start.substr(signature.offset).starts_with(signature.bytes)) {
      return fmt::format("it looks like {}", signature.name);
    }
  }
  const bool is_text = std::all_of(start.begin(), start.end(), [](char c) {
    return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t';
  });
  return is_text ? "it looks like text" : "its first four bytes are not \"hsqs\"";
}

// The first bytes of a file that is one.
std::string read_start(const std::string& path, uint64_t& file_bytes) {
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    throw IoError("cannot read the image {}: {}", path, base::errno_text(errno));
  }
  if (S_ISDIR(info.st_mode)) {
    throw FormatError("the image {} is a folder; make one file of it: lockstep image build --from",
                      path);
  }
  if (!S_ISREG(info.st_mode)) {
    throw FormatError("the image {} is neither a file nor a folder", path);
  }
  file_bytes = static_cast<uint64_t>(info.st_size);
  std::string start(512, '\0');
  const ssize_t size = ::pread(fd.get(), start.data(), start.size(), 0);
  if (size < 0) {
    throw IoError("cannot read the image {}: {}", path, base::errno_text(errno));
  }
  start.resize(static_cast<size_t>(size));
  return start;
}

// The tables come in this order after the data; each begins inside the file system.
bool tables_are_sane(std::string_view start, uint64_t bytes_used) {
  const uint64_t ids = number_at<uint64_t>(start, 48);
  const uint64_t inodes = number_at<uint64_t>(start, 64);
  const uint64_t folders = number_at<uint64_t>(start, 72);
  return inodes >= kSuperblockBytes && inodes < folders && folders < bytes_used && ids > inodes &&
         ids < bytes_used;
}

}  // namespace

SquashfsInfo read_squashfs(const std::string& path) {
  SquashfsInfo info;
  const std::string start = read_start(path, info.file_bytes);
  if (start.empty()) {
    throw FormatError("the image {} is empty; copy or build it again", path);
  }
  if (!start.starts_with("hsqs")) {
    throw FormatError("the image {} is not squashfs: {}", path, looks_like(start));
  }
  if (start.size() < kSuperblockBytes) {
    throw FormatError(
        "the image {} is truncated: it is {} bytes long and a superblock alone has {}; copy or "
        "build it again",
        path, start.size(), kSuperblockBytes);
  }
  const auto major = number_at<uint16_t>(start, 28);
  const auto minor = number_at<uint16_t>(start, 30);
  if (major != 4 || minor != 0) {
    throw FormatError("the image {} is squashfs {}.{}, and only 4.0 is known; build it again", path,
                      major, minor);
  }
  info.bytes_used = number_at<uint64_t>(start, 40);
  if (info.bytes_used > info.file_bytes) {
    throw FormatError(
        "the image {} is truncated: it is {} bytes long and its superblock says {}; copy or build "
        "it again",
        path, info.file_bytes, info.bytes_used);
  }
  info.num_inodes = number_at<uint32_t>(start, 4);
  info.block_bytes = number_at<uint32_t>(start, 12);
  const auto compression = number_at<uint16_t>(start, 20);
  const auto block_log = number_at<uint16_t>(start, 22);
  if (info.num_inodes == 0 || !tables_are_sane(start, info.bytes_used) ||
      !std::has_single_bit(info.block_bytes) || info.block_bytes < kMinBlockBytes ||
      info.block_bytes > kMaxBlockBytes || std::countr_zero(info.block_bytes) != block_log) {
    throw FormatError(
        "the image {} is damaged: its superblock contradicts itself; copy or build "
        "it again",
        path);
  }
  if (compression == 0 || compression >= kCompressions.size()) {
    throw FormatError(
        "the image {} is compressed in a way (number {}) that is not known; build it "
        "again",
        path, compression);
  }
  info.compression = kCompressions[compression];
  return info;
}

}  // namespace lockstep::image
