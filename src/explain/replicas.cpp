#include "explain/replicas.h"

#include <algorithm>
#include <climits>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <torch/torch.h>

#include "base/env.h"
#include "comm/agree.h"
#include "explain/gather.h"
#include "models/parameter_hash.h"

namespace lockstep::explain {

std::vector<double> gather_seconds(Group& group, double mine) {
  return as_vector(gather(group, as_tensor({mine})));
}

std::vector<int64_t> gather_nodes(Group& group) {
  return comm::gather_numbers(group, base::Env().integer("GROUP_RANK", 0, INT_MAX).value_or(0));
}

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

int64_t largest(const std::vector<int64_t>& counts) {
  return *std::max_element(counts.begin(), counts.end());
}

double largest(const std::vector<double>& seconds) {
  return *std::max_element(seconds.begin(), seconds.end());
}

size_t num_different(const std::vector<int64_t>& counts) {
  return std::set<int64_t>(counts.begin(), counts.end()).size();
}

size_t Hashes::num_models() const {
  return std::set<uint64_t>(of_rank.begin(), of_rank.end()).size();
}

size_t Hashes::num_changed(const Hashes& before) const {
  size_t changed = 0;
  for (size_t rank = 0; rank < of_rank.size(); ++rank) {
    changed += of_rank[rank] != before.of_rank[rank] ? 1 : 0;
  }
  return changed;
}

std::vector<std::string> Hashes::texts() const {
  std::vector<std::string> texts;
  for (const uint64_t hash : of_rank) {
    texts.push_back(fmt::format("{:016x}", hash));
  }
  return texts;
}

Hashes gather_hashes(Group& group, const torch::nn::Module& model) {
  Hashes hashes;
  for (const int64_t hash :
       comm::gather_numbers(group, static_cast<int64_t>(models::hash_parameters(model)))) {
    hashes.of_rank.push_back(static_cast<uint64_t>(hash));
  }
  return hashes;
}

SentBytes::SentBytes(const Group& group)
    : group_(group), before_(group.traffic().network_bytes_sent) {}

int64_t SentBytes::count() const {
  return static_cast<int64_t>(group_.traffic().network_bytes_sent - before_);
}

}  // namespace lockstep::explain
