#pragma once

// Ranks as threads: a team over plain memory, and cases that it runs and checks. ThreadSanitizer
// sees all of the protocol here.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "shm/oracle.h"
#include "shm/team.h"

namespace lockstep::shm::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kIsTsan = true;
#else
inline constexpr bool kIsTsan = false;
#endif

// LOCKSTEP_LONG_TESTS=1: everything, not samples.
bool is_long();

// Zeroed, aligned to a page, with the arenas of `size` ranks.
class Arenas {
 public:
  explicit Arenas(int size);
  const std::vector<std::byte*>& addresses() const { return addresses_; }

 private:
  base::Mapping memory_;
  std::vector<std::byte*> addresses_;
};

// What the team takes the host to have, whatever it has: which algorithms run depends on it.
enum class Cores { TooFew, Enough };
int num_cores(Cores cores, int num_ranks);

// A team whose ranks share this process.
class ThreadTeam {
 public:
  explicit ThreadTeam(int size, Cores cores = Cores::TooFew);

  int size() const { return static_cast<int>(teams_.size()); }
  Team& team(int rank) { return *teams_[static_cast<size_t>(rank)]; }
  const std::byte* arena(int rank) const { return arenas_.addresses()[static_cast<size_t>(rank)]; }

  // Runs the body as every rank, each on a thread of its own. If one throws, the others are
  // interrupted and its exception is thrown here.
  void run(const std::function<void(int rank)>& body);

  // Binds `bytes` of zeroed memory on every rank and returns where each one's are.
  std::vector<std::byte*> bind(size_t bytes);

 private:
  Arenas arenas_;
  std::vector<std::unique_ptr<Team>> teams_;
  std::vector<base::Mapping> buffers_;
  std::shared_ptr<int> owner_ = std::make_shared<int>();
};

// One operation of all ranks.
struct Case {
  Kind kind = Kind::Barrier;
  DataType type = DataType::Float32;
  Reduction reduction = Reduction::Sum;
  int root = 0;
  size_t count = 0;                          // as Task's
  unsigned bound_ranks = 0;                  // bit r: rank r's input is in its bound buffer
  size_t offset = 0;                         // elements, of the input in its buffer
  std::vector<std::vector<int64_t>> splits;  // AllToAll: [from][to]

  std::string text() const;
};

inline constexpr unsigned kNoneBound = 0;
inline constexpr unsigned kAllBound = ~0U;

// Runs cases one directly behind the other, on buffers of its own, and checks each result. A rank
// writes over its input as soon as it is back: nobody may still be reading it.
class CaseRunner {
 public:
  struct Limits {
    size_t input_bytes = 0;   // of a rank, in one case
    size_t output_bytes = 0;  // AllGather, AllToAll
  };
  CaseRunner(int size, Limits limits, Cores cores);
  ~CaseRunner();

  ThreadTeam& threads() { return team_; }
  bool fits(const Case& item) const;
  void run(const std::vector<Case>& cases);

  // Uneven, some of them zero; about `count` elements in all from each rank.
  std::vector<std::vector<int64_t>> random_splits(size_t count, uint64_t seed) const;

 private:
  struct Memory;
  std::byte* place_input(int rank, const Case& item);
  Task task_of(int rank, const Case& item, std::byte* input);
  void run_case(int rank, const Case& item);
  void check(int rank, const Case& item, const std::byte* output) const;
  void check_all_to_all(int rank, const Case& item, const std::byte* output) const;
  size_t input_bytes(int rank, const Case& item) const;
  size_t output_bytes(int rank, const Case& item) const;

  const Limits limits_;
  ThreadTeam team_;
  std::vector<Memory> memory_;
  std::map<DataType, Oracle> oracles_;
};

}  // namespace lockstep::shm::test
