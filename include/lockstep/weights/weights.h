#pragma once

// Published weights, from storage into the parameters of every rank.
//
//   auto weights = lockstep::Weights::open("s3://models/gpt2-large", group);
//   std::vector<lockstep::WeightTarget> targets;
//   for (const auto& item : model->named_parameters()) targets.push_back({item.key(),
//   item.value()}); lockstep::load_weights(weights, targets, group);    // the same bits on every
//   rank
//
// Files are believed in nothing: sizes, offsets and shapes are checked before memory is taken for
// them, nothing in a file is executed, and where it carries checksums (the CRC-32 of torch.save's
// zip) they are compared on the way, without a second read. safetensors and torch's older formats
// carry none: there a flipped bit among the weights cannot be seen (see LoadOptions::sha256).
//
// Errors: UsageError for a tensor that is not in the file or has another shape, FormatError for a
// damaged file, IoError for one that cannot be read or shrinks meanwhile; each names file, tensor
// and offset. What one rank finds wrong, every rank throws, and the group stays usable; what the
// parameters hold then is undefined. A lost rank is a PeerLostError, as in every collective.
//
// Memory: beside the parameters a rank uses LoadOptions::window_bytes and some MiB for the headers.
// docs/concepts/weights.md tells how the ranks share the work.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <lockstep/comm/group.h>

namespace lockstep {

struct WeightInfo {
  std::string name;
  at::ScalarType dtype = at::ScalarType::Undefined;  // Undefined: a type that libtorch lacks
  std::vector<int64_t> shape;
  int64_t bytes = 0;  // as a contiguous tensor; 0 for a type that libtorch lacks
};

struct WeightsOptions {
  // Keeps a local copy of what lies on remote storage (s3://...), made once per node and found
  // again by later runs while the object has the same size and version. Empty: no copy. Files on a
  // path are used where they are.
  std::string cache_dir;
};

namespace weights {
struct WeightCatalog;
}

// The weights at one location: a file (.safetensors, .pth, .bin, ...: known by its first bytes, not
// by its name), or a folder with model.safetensors, pytorch_model.bin or an index of shards of
// either. Only headers are read. Cheap to copy. Threads: may be used concurrently.
class Weights {
 public:
  // Collective: rank 0 reads the headers and tells the others. Throws FormatError, IoError and, for
  // a folder without weights, UsageError.
  static Weights open(const std::string& location, Group& group, WeightsOptions options = {});
  // For a group of one.
  static Weights open(const std::string& location, WeightsOptions options = {});

  const std::string& location() const;
  const std::vector<WeightInfo>& tensors() const;              // in the order of the files
  const WeightInfo* find(std::string_view name) const;         // null: not there
  const std::map<std::string, std::string>& metadata() const;  // of safetensors
  int64_t file_bytes() const;                                  // of all files together
  bool has_checksums() const;                                  // all of them

  // For the implementation.
  explicit Weights(std::shared_ptr<const weights::WeightCatalog> catalog)
      : catalog_(std::move(catalog)) {}
  const weights::WeightCatalog& catalog() const { return *catalog_; }

 private:
  std::shared_ptr<const weights::WeightCatalog> catalog_;
};

enum class LoadMode {
  Auto,        // chosen by what is known of ranks, hosts and storage; the log says what and why
  Each,        // every rank reads everything: size() times the bytes off the storage
  Rank0,       // one rank reads and broadcasts: the others need not see the file
  Cooperative  // each rank reads its share once, and the ranks exchange the shares
};

struct LoadOptions {
  LoadMode mode = LoadMode::Auto;
  int64_t window_bytes = int64_t{32} << 20;  // >= 1 MiB: what is under way at a time
  // Compares the CRC-32 of every storage that is read whole. Of a storage of which only a part is
  // asked for it cannot be compared.
  bool verify = true;
  // First compares every file with the SHA-256 in FILE.sha256 (as sha256sum writes it) beside it,
  // which must be there. Costs rank 0 another read of the whole file.
  bool sha256 = false;
};

// A tensor to be filled: with the tensor `name` of the file, which has the same shape. It may be
// any dense CPU tensor (a parameter, a view); values are converted to its type.
struct WeightTarget {
  std::string name;
  at::Tensor tensor;
};

struct LoadReport {
  LoadMode mode = LoadMode::Each;  // what was done
  std::string reason;              // why Auto chose it; empty if the caller did
  uint64_t bytes_read = 0;         // by this rank, off the storage, without the headers
  uint64_t bytes_exchanged = 0;    // that this rank had from others
  uint64_t network_bytes = 0;      // that this rank sent to other nodes
  double seconds = 0;              // on this rank
  bool verified = false;           // every storage asked for was compared with its checksum
};

// Collective. Every rank must name the same tensors (but for Each). The log gets one line, on rank
// 0.
LoadReport load_weights(Weights& weights, std::span<const WeightTarget> targets, Group& group,
                        LoadOptions options = {});

// "auto", "each", "rank0", "cooperative".
std::string_view name_of(LoadMode mode);

}  // namespace lockstep
