#pragma once

// What collectives must give, worked out one element at a time.

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "shm/types.h"

namespace lockstep::shm::test {

using Bytes = std::vector<std::byte>;

struct Sum {
  DataType type = DataType::Float32;
  Reduction reduction = Reduction::Sum;
};

// Random values of one type for every rank, and their reductions in the order that kernels.h
// documents. Every operation takes its input from the front of a rank's values, so that one
// reduction, element by element, serves AllReduce of any size and ReduceScatter.
class Oracle {
 public:
  struct Options {
    DataType type = DataType::Float32;
    int num_ranks = 1;
    size_t bytes = 0;  // of each rank's values
    uint64_t seed = 1;
  };
  explicit Oracle(Options options);

  const std::byte* input(int rank) const { return inputs_[static_cast<size_t>(rank)].data(); }
  size_t bytes() const { return options_.bytes; }

  // Works it out. Before the threads that look at it start.
  void prepare(Reduction reduction);
  const std::byte* reduced(Reduction reduction) const { return reduced_.at(reduction).data(); }

 private:
  Options options_;
  std::vector<Bytes> inputs_;
  std::map<Reduction, Bytes> reduced_;
};

// A number that depends on nothing but `key`, and looks random.
uint64_t scramble(uint64_t key);

}  // namespace lockstep::shm::test
