#pragma once

// Ranks for tests: real processes, started once per world size (see nursery.h) and kept between
// cases.
//
//   TEST(AllReduce, EveryRankHoldsTheSum) {
//     for (int world : {1, 2, 3}) {
//       run_ranks(world, [](Group& group) {
//         auto x = torch::ones({3});
//         group.all_reduce(x);
//         EXPECT_TRUE(x.equal(torch::full({3}, group.size())));      // a failure here fails the
//         test
//       });
//     }
//   }
//
// The body runs in other processes: it must not capture. It may look at rank_argument(), which
// run_ranks carries over. Every process runs this same binary, so a function's place in it is
// enough to find the body.

#include <chrono>
#include <ostream>
#include <string>
#include <vector>

#include <lockstep/comm/group.h>

namespace lockstep::testing_support {

using RankBody = void (*)(Group& group);

struct RunOptions {
  int nodes = 1;  // emulated: ranks of different ones share no memory; as even as can be
  BackendChoice backend = BackendChoice::Auto;  // of the group that the body gets
  bool staged = false;    // every tensor goes the way of a GPU's, through copies that come late
  std::string argument;   // what rank_argument() returns in the body
  std::vector<int> dies;  // ranks whose process must be killed by the body; the others must end it
  std::chrono::seconds limit{60};  // then the ranks are killed and the test fails
  std::vector<std::string> env;  // "NAME=value", for ranks of their own (a fleet that is not kept)
};

// Fails the current test for each failed expectation in a rank, and if one hangs, throws or dies
// unasked.
void run_ranks_body(int world, RankBody body, const RunOptions& options);

template <typename Body>
void run_ranks(int world, Body body, const RunOptions& options = {}) {
  run_ranks_body(world, static_cast<RankBody>(body), options);
}

// In a body: what run_ranks was given.
const std::string& rank_argument();

// In a body: what no other case is called whose ranks share this one's store, for names of groups
// and keys.
const std::string& case_name();

// The backends that a world of ranks can have, for tests that hold for all of them: Gloo, Shm on
// one node and Hierarchical on two.
struct Setting {
  const char* name;
  BackendChoice backend;
  int nodes;
  bool staged = false;
};
inline void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.name;
}
inline constexpr Setting kEveryBackend[] = {{"gloo", BackendChoice::Gloo, 1},
                                            {"shm", BackendChoice::Shm, 1},
                                            {"hierarchical", BackendChoice::Hierarchical, 2}};
// And the ways that tensors of a GPU take on top of them.
inline constexpr Setting kEveryWay[] = {
    kEveryBackend[0],
    kEveryBackend[1],
    kEveryBackend[2],
    {"staged_gloo", BackendChoice::Gloo, 1, true},
    {"staged_shm", BackendChoice::Shm, 1, true},
    {"staged_hierarchical", BackendChoice::Hierarchical, 2, true}};

// In a body: ends this process as `kill -9` does.
[[noreturn]] void die_now();

// What main() of a test binary calls: tests, or a rank if this process was started as one.
int test_main(int argc, char** argv);

}  // namespace lockstep::testing_support
