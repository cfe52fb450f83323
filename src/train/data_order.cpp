#include "train/data_order.h"

#include <bit>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/data/distributed_sampler.h>

namespace lockstep::train {
namespace {

DistributedSampler sampler_of(int64_t num_samples, uint64_t seed, int piece, int num_pieces) {
  return DistributedSampler({.num_samples = num_samples,
                             .num_ranks = num_pieces,
                             .rank = piece,
                             .drop_last = true,
                             .seed = seed});
}

void check_shards(int shards, int num_ranks) {
  if (!can_be_dealt(shards, num_ranks)) {
    throw UsageError(
        "{} shards cannot be dealt to {} ranks: train.shards must be a power of two and the ranks "
        "one that divides it",
        shards, num_ranks);
  }
}

}  // namespace

bool can_be_dealt(int shards, int num_ranks) {
  const bool is_power = std::has_single_bit(static_cast<unsigned>(shards));
  return shards == num_ranks || (is_power && shards % num_ranks == 0);
}

Pieces cut_into_pieces(const TrainerOptions& options, int shards, int rank, int num_ranks) {
  check_shards(shards, num_ranks);
  const int64_t num_all = shards * options.accumulate;
  if (options.batch_size % num_all != 0) {
    const int64_t below = options.batch_size / num_all * num_all;
    const std::string over =
        options.accumulate == 1
            ? fmt::format("{} {}", shards, shards == num_ranks ? "ranks" : "shards")
            : fmt::format("{} shards of {} pieces", shards, options.accumulate);
    throw UsageError(
        "train.batch_size = {} cannot be split evenly over {}; use {}", options.batch_size, over,
        below == 0 ? fmt::format("{}", num_all) : fmt::format("{} or {}", below, below + num_all));
  }
  const int num_local = static_cast<int>(num_all / num_ranks);
  return {.num_all = static_cast<int>(num_all),
          .num_local = num_local,
          .first = rank * num_local,
          .batch_size = options.batch_size / num_all};
}

DataOrder::DataOrder(int64_t num_samples, uint64_t seed, Pieces pieces)
    : num_samples_(num_samples), seed_(seed), pieces_(pieces) {
  const int64_t batch_size = pieces.batch_size * pieces.num_all;
  if (num_samples < batch_size) {
    throw UsageError("train.batch_size = {} is more than the {} samples there are to train on",
                     batch_size, num_samples);
  }
  steps_per_epoch_ = sampler_of(num_samples, seed, 0, pieces.num_all).size() / pieces.batch_size;
}

std::vector<int64_t> DataOrder::indices(int64_t epoch, int64_t first_step) const {
  std::vector<std::vector<int64_t>> of_piece;
  for (int piece = pieces_.first; piece < pieces_.first + pieces_.num_local; ++piece) {
    of_piece.push_back(sampler_of(num_samples_, seed_, piece, pieces_.num_all)
                           .indices(epoch, first_step * pieces_.batch_size));
  }
  std::vector<int64_t> all;
  for (int64_t step = 0; step < steps_per_epoch_ - first_step; ++step) {
    for (const std::vector<int64_t>& piece : of_piece) {
      const auto begin = piece.begin() + step * pieces_.batch_size;
      all.insert(all.end(), begin, begin + pieces_.batch_size);
    }
  }
  return all;
}

}  // namespace lockstep::train
