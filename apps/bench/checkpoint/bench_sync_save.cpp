#include "bench/checkpoint/bench_sync_save.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <future>
#include <span>
#include <sys/mman.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "formats/safetensors.h"

namespace lockstep {
namespace {

constexpr size_t kWriteBytes = 8u << 20;
constexpr size_t kBlockBytes = 4096;  // direct writes come in whole ones

using Bytes = std::span<const std::byte>;

base::Mapping memory(size_t size) {
  base::Mapping mapping(-1, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  std::fill_n(mapping.data(), size, std::byte{0x5a});
  return mapping;
}

void sync(const base::UniqueFd& fd, const std::string& path) {
  if (::fsync(fd.get()) != 0) {
    throw IoError("cannot sync {}: {}", path, base::errno_text(errno));
  }
}

// The file's head, and then the tensors.
std::vector<Bytes> pieces_of(const std::string& head, const std::vector<NamedTensor>& state) {
  std::vector<Bytes> pieces{std::as_bytes(std::span(head))};
  for (const NamedTensor& named : state) {
    pieces.push_back(
        {static_cast<const std::byte*>(named.tensor.const_data_ptr()), named.tensor.nbytes()});
  }
  return pieces;
}

std::string head_of(const std::string& path, const std::vector<NamedTensor>& state) {
  std::vector<formats::TensorInfo> infos;
  for (const NamedTensor& named : state) {
    infos.push_back({.name = named.name,
                     .dtype = formats::DType::F32,
                     .shape = named.tensor.sizes().vec(),
                     .strides = {}});
  }
  return formats::safetensors_head(path, infos);
}

void write_buffered(const base::UniqueFd& fd, const std::vector<Bytes>& pieces) {
  for (Bytes piece : pieces) {
    while (!piece.empty()) {
      const Bytes part = piece.first(std::min(piece.size(), kWriteBytes));
      base::write_all(fd.get(), part.data(), part.size());
      piece = piece.subspan(part.size());
    }
  }
}

// Returns when all is written; the file is then longer, up to a whole block.
void write_direct(const base::UniqueFd& fd, const std::vector<Bytes>& pieces) {
  const base::Mapping halves[] = {memory(kWriteBytes), memory(kWriteBytes)};
  size_t current = 0;
  size_t used = 0;
  std::future<void> writing;
  const auto write_current = [&] {
    if (writing.valid()) {
      writing.get();
    }
    const size_t size = (used + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    writing = std::async(std::launch::async, [&fd, data = halves[current].data(), size] {
      base::write_all(fd.get(), data, size);
    });
    current = 1 - current;
    used = 0;
  };
  for (Bytes piece : pieces) {
    while (!piece.empty()) {
      const Bytes part = piece.first(std::min(piece.size(), kWriteBytes - used));
      std::memcpy(halves[current].data() + used, part.data(), part.size());
      used += part.size();
      piece = piece.subspan(part.size());
      if (used == kWriteBytes) {
        write_current();
      }
    }
  }
  if (used > 0) {
    write_current();
  }
  if (writing.valid()) {
    writing.get();
  }
}

void save_raw(bool direct, const std::string& path, const std::vector<NamedTensor>& state) {
  const std::string head = head_of(path, state);
  const std::vector<Bytes> pieces = pieces_of(head, state);
  off_t size = 0;
  for (const Bytes& piece : pieces) {
    size += static_cast<off_t>(piece.size());
  }
  const std::string unfinished = path + ".tmp";
  {
    const base::UniqueFd fd =
        base::open_file(unfinished, O_WRONLY | O_CREAT | O_TRUNC | (direct ? O_DIRECT : 0));
    ::posix_fallocate(fd.get(), 0, size);
    direct ? write_direct(fd, pieces) : write_buffered(fd, pieces);
    if (::ftruncate(fd.get(), size) != 0) {
      throw IoError("cannot cut {}: {}", unfinished, base::errno_text(errno));
    }
    sync(fd, unfinished);
  }
  std::filesystem::rename(unfinished, path);
  const std::string folder = std::filesystem::path(path).parent_path().string();
  sync(base::open_file(folder, O_RDONLY | O_DIRECTORY), folder);
}

}  // namespace

void save_at_once(SyncSave way, const std::string& path, const std::vector<NamedTensor>& state) {
  switch (way) {
    case SyncSave::Library:
      save_weights(path, state);
      return;
    case SyncSave::Buffered:
    case SyncSave::Direct:
      save_raw(way == SyncSave::Direct, path, state);
      return;
  }
}

void check_saved(const std::string& path, const std::vector<NamedTensor>& state) {
  const base::UniqueFd fd = base::open_file(path, O_RDONLY);
  const base::Mapping file(fd.get(), std::filesystem::file_size(path), PROT_READ, MAP_SHARED);
  size_t begin = head_of(path, state).size();
  for (const NamedTensor& named : state) {
    const size_t size = named.tensor.nbytes();
    if (begin + size > file.size() ||
        std::memcmp(file.data() + begin, named.tensor.const_data_ptr(), size) != 0) {
      throw InternalError("tensor {} of {} is not what was saved", named.name, path);
    }
    begin += size;
  }
}

void write_plainly(const std::string& path, int64_t num_bytes, bool direct) {
  const base::Mapping bytes = memory(kWriteBytes);
  const base::UniqueFd fd =
      base::open_file(path, O_WRONLY | O_CREAT | O_TRUNC | (direct ? O_DIRECT : 0));
  ::posix_fallocate(fd.get(), 0, num_bytes);
  for (int64_t done = 0; done < num_bytes; done += static_cast<int64_t>(kWriteBytes)) {
    base::write_all(fd.get(), bytes.data(), kWriteBytes);
  }
  sync(fd, path);
}

}  // namespace lockstep
