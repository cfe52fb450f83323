#pragma once

// What the lessons about the beginning of a training ask all ranks: is it the same model, where are
// you, what did it cost.

#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/comm/group.h>

namespace torch::nn {
class Module;
}

namespace lockstep::explain {

std::vector<double> gather_seconds(Group& group, double mine);

// Collective: the node of every rank, numbered by the launcher.
std::vector<int64_t> gather_nodes(Group& group);

int64_t sum(const std::vector<int64_t>& counts);
int64_t largest(const std::vector<int64_t>& counts);
double largest(const std::vector<double>& seconds);
size_t num_different(const std::vector<int64_t>& counts);

// The hashes of all ranks' models (hash_parameters).
struct Hashes {
  std::vector<uint64_t> of_rank;

  size_t num_models() const;                       // different ones
  size_t num_changed(const Hashes& before) const;  // ranks whose model is another than before
  std::vector<std::string> texts() const;          // in hexadecimal
};

Hashes gather_hashes(Group& group, const torch::nn::Module& model);  // collective

// Bytes that this rank sent to other nodes since this object was made.
class SentBytes {
 public:
  explicit SentBytes(const Group& group);
  int64_t count() const;

 private:
  const Group& group_;
  uint64_t before_;
};

}  // namespace lockstep::explain
