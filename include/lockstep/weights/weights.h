#pragma once

// Published weights, from storage into the parameters of every rank.
//
// Example:
//   auto weights = lockstep::Weights::open("s3://models/gpt2-large", group);
//   std::vector<lockstep::WeightTarget> targets;
//   for (const auto& item : model->named_parameters()) {
//     targets.push_back({item.key(), item.value()});
//   }
//   lockstep::load_weights(weights, targets, group);  // the same bits on every rank
//
// Nothing in a file is trusted. Sizes, offsets and shapes are checked before memory is allocated
// for them, and nothing in a file is executed. Where a file carries checksums (the CRC-32 of
// torch.save's zip) they are compared during the read, without a second one. safetensors and
// torch's older formats carry none, so a flipped bit among the weights cannot be detected there;
// see LoadOptions::sha256.
//
// Errors: UsageError for a tensor that is not in the file or has another shape, FormatError for a
// damaged file, and IoError for one that cannot be read or that shrinks meanwhile. Each names the
// file, the tensor and the offset. What one rank finds wrong, every rank throws, and the group
// stays usable; the contents of the targets are then undefined. A lost rank is a PeerLostError, as
// in every collective.
//
// Memory: besides the parameters a rank uses LoadOptions::window_bytes and a few MiB for the
// headers, and for parameters on a GPU 8 MiB of pinned memory. docs/concepts/weights.md tells how
// the ranks share the work.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

namespace lockstep {

struct WeightInfo {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined for a type that libtorch lacks
  std::vector<int64_t> shape;
  int64_t bytes = 0;  // the size as a contiguous tensor; 0 for a type that libtorch lacks
};

struct WeightsOptions {
  // A folder for local copies of what lies on remote storage (s3://...). A copy is made once per
  // node, and later runs use it while the object has the same size and version. Empty makes no
  // copy. Files on a path are used where they are.
  std::string cache_dir;
};

namespace weights {
struct WeightCatalog;  // private to the implementation
}  // namespace weights

// The weights at one location. That is a file (.safetensors, .pth, .bin, ..., recognised by its
// first bytes and not by its name), or a folder with model.safetensors, pytorch_model.bin or an
// index of shards of either. Only the headers are read. It is cheap to copy.
// Threads: const methods may be called concurrently.
class Weights {
 public:
  // Collective. Rank 0 reads the headers and tells the others. Throws FormatError, IoError and, for
  // a folder without weights, UsageError; all ranks throw the same.
  static Weights open(const std::string& location, Group& group, WeightsOptions options = {});
  // Does the same in a group of one.
  static Weights open(const std::string& location, WeightsOptions options = {});

  const std::string& location() const;
  const std::vector<WeightInfo>& tensors() const;              // in the order of the files
  const WeightInfo* find(std::string_view name) const;         // null if there is no such tensor
  const std::map<std::string, std::string>& metadata() const;  // only safetensors has any
  int64_t file_bytes() const;                                  // the size of all files together
  bool has_checksums() const;                                  // whether all files have them

  // Only the implementation uses these two.
  explicit Weights(std::shared_ptr<const weights::WeightCatalog> catalog)
      : catalog_(std::move(catalog)) {}
  const weights::WeightCatalog& catalog() const { return *catalog_; }

 private:
  std::shared_ptr<const weights::WeightCatalog> catalog_;
};

enum class LoadMode {
  Auto,        // chooses by the ranks, the hosts and the storage; the log says what and why
  Each,        // every rank reads everything, which takes size() times the bytes off the storage
  Rank0,       // one rank reads and broadcasts, and the others need not see the file
  Cooperative  // each rank reads its share once, and the ranks exchange the shares
};

struct LoadOptions {
  LoadMode mode = LoadMode::Auto;
  int64_t window_bytes = int64_t{32} << 20;  // >= 1 MiB: how much is under way at a time
  // Compares the CRC-32 of every storage that is read whole. It cannot be compared where only a
  // part of a storage is asked for.
  bool verify = true;
  // First compares every file with the SHA-256 in FILE.sha256 beside it, as sha256sum writes it.
  // That file must exist. This costs rank 0 another read of the whole file.
  bool sha256 = false;
};

// A tensor to be filled with the tensor `name` of the file, which must have the same shape. It may
// be any dense tensor of the CPU or a GPU, such as a parameter or a view. Values are converted to
// its type, on every device to the same bits.
struct WeightTarget {
  std::string name;
  at::Tensor tensor;
};

struct LoadReport {
  LoadMode mode = LoadMode::Each;  // the mode that was used
  std::string reason;              // why Auto chose it; empty if the caller did
  uint64_t bytes_read = 0;         // what this rank read off the storage, without the headers
  uint64_t bytes_exchanged = 0;    // what this rank got from others
  uint64_t network_bytes = 0;      // what this rank sent to other nodes
  double seconds = 0;              // how long the call took on this rank
  bool verified = false;           // whether every storage was compared with its checksum
};

// Collective. Fills the targets. All ranks give the same options and, except in the mode Each, name
// the same tensors. Rank 0 logs one line. Targets on a GPU are written after what the caller's
// current stream was given before the call, and before what it is given afterwards. Throws the
// errors that are listed at the top, and UsageError where memory for the copies is lacking.
LoadReport load_weights(Weights& weights, std::span<const WeightTarget> targets, Group& group,
                        LoadOptions options = {});

// Returns "auto", "each", "rank0" or "cooperative".
std::string_view name_of(LoadMode mode);

}  // namespace lockstep
