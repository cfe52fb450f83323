#include "bench/load/bench_load_file.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "formats/archive/crc32.h"
#include "formats/safetensors.h"
#include "formats/torch/torch_writer.h"

namespace lockstep {
namespace {

constexpr int64_t kHalfBytes = 2;
constexpr int64_t kFullSizeBytes = 256'000'000;  // below it everything is narrower
constexpr size_t kReadBytes = 8 << 20;

// Numbers that look like weights to nobody but are never a NaN: every fp16 is below 2 in magnitude.
class Filler {
 public:
  explicit Filler(uint64_t seed) : state_(seed * 2 + 1) {}

  void fill(std::vector<uint64_t>& words) {
    for (uint64_t& word : words) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      word = (state_ ^ state_ >> 29) & 0xbfffbfffbfffbfffu;
    }
  }

 private:
  uint64_t state_;
};

// Appends a tensor's bytes and returns their CRC-32.
template <typename Append>
uint32_t write_tensor(const formats::TensorInfo& tensor, uint64_t seed, Append append) {
  Filler filler(seed);
  std::vector<uint64_t> words(size_t{1} << 17);
  uint32_t crc = 0;
  for (uint64_t left = *formats::checked_bytes(tensor.dtype, tensor.shape); left > 0;) {
    filler.fill(words);
    const auto bytes = std::as_bytes(std::span(words));
    const auto part = bytes.first(std::min<uint64_t>(left, bytes.size()));
    crc = formats::crc32(crc, part);
    append(part);
    left -= part.size();
  }
  return crc;
}

}  // namespace

std::vector<formats::TensorInfo> gpt2_shapes(int64_t size_bytes) {
  const bool is_full = size_bytes >= kFullSizeBytes;
  const int64_t width = is_full ? 1280 : 128;
  const int64_t vocabulary = is_full ? 50257 : 5026;
  std::vector<formats::TensorInfo> tensors;
  int64_t bytes = 0;
  const auto add = [&](std::string name, std::vector<int64_t> shape) {
    bytes += static_cast<int64_t>(*formats::checked_elements(shape)) * kHalfBytes;
    tensors.push_back({.name = std::move(name),
                       .dtype = formats::DType::F16,
                       .shape = std::move(shape),
                       .strides = {}});
  };
  const auto add_pair = [&](const std::string& name, std::vector<int64_t> shape) {
    const int64_t outputs = shape.back();
    add(name + ".weight", std::move(shape));
    add(name + ".bias", {outputs});
  };
  add("transformer.wte.weight", {vocabulary, width});
  add("transformer.wpe.weight", {1024, width});
  for (int layer = 0; layer == 0 || bytes < size_bytes; ++layer) {
    const std::string block = fmt::format("transformer.h.{}.", layer);
    add_pair(block + "ln_1", {width});
    add_pair(block + "attn.c_attn", {width, 3 * width});
    add_pair(block + "attn.c_proj", {width, width});
    add_pair(block + "ln_2", {width});
    add_pair(block + "mlp.c_fc", {width, 4 * width});
    add_pair(block + "mlp.c_proj", {4 * width, width});
  }
  add_pair("transformer.ln_f", {width});
  return tensors;
}

BenchWeights write_bench_weights(const std::string& path, const std::string& format,
                                 int64_t size_bytes) {
  BenchWeights weights{.tensors = gpt2_shapes(size_bytes), .crcs = {}};
  const size_t count = weights.tensors.size();
  weights.crcs.resize(count);
  if (format == "torch") {
    formats::StateDict dict;
    for (const formats::TensorInfo& tensor : weights.tensors) {
      dict.add(tensor.name, tensor.dtype, tensor.shape);
    }
    formats::TorchWriter writer(path, dict.root, dict.tensors, dict.storages);
    for (size_t i = 0; i < count; ++i) {
      writer.begin();
      weights.crcs[i] =
          write_tensor(weights.tensors[i], i, [&](auto part) { writer.append(part); });
    }
    writer.finish();
    return weights;
  }
  formats::SafetensorsWriter writer(path, weights.tensors, {{"format", "pt"}});
  for (const formats::TensorInfo& tensor : writer.tensors()) {  // sorted in its own way
    const auto place =
        std::find_if(weights.tensors.begin(), weights.tensors.end(),
                     [&](const formats::TensorInfo& t) { return t.name == tensor.name; });
    const auto i = static_cast<size_t>(place - weights.tensors.begin());
    weights.crcs[i] = write_tensor(tensor, i, [&](auto part) { writer.append(part); });
  }
  writer.finish();
  return weights;
}

double drop_from_cache(const std::string& path) {
  const base::UniqueFd fd = base::open_file(path, O_RDONLY);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || ::fsync(fd.get()) != 0) {
    throw IoError("cannot sync {}: {}", path, base::errno_text(errno));
  }
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  const auto size = static_cast<size_t>(info.st_size);
  const base::Mapping mapping(fd.get(), size, PROT_READ, MAP_SHARED);  // asked about, never read
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((size + page - 1) / page);
  if (::mincore(mapping.data(), size, pages.data()) != 0) {
    throw IoError("cannot tell what of {} is in memory: {}", path, base::errno_text(errno));
  }
  const auto cached =
      std::count_if(pages.begin(), pages.end(), [](auto p) { return (p & 1) != 0; });
  return static_cast<double>(cached) / static_cast<double>(std::max<size_t>(pages.size(), 1));
}

void bring_into_cache(const std::string& path) {
  read_sequentially(path, false);
}

double read_sequentially(const std::string& path, bool direct) {
  const base::UniqueFd fd = base::open_file(path, O_RDONLY | (direct ? O_DIRECT : 0));
  const base::Mapping buffer(-1, kReadBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  std::memset(buffer.data(), 0, buffer.size());
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    const ssize_t n = ::read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno != EINTR) {
      throw IoError("cannot read {}: {}", path, base::errno_text(errno));
    }
    if (n == 0) {
      break;
    }
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace lockstep
