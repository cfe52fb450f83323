#pragma once

// The ranks of an MPI, as rank 0 of lockstep drives them: they sleep until it is their turn
// (bench/mpi_peer.c is the other side).

#include <cstdint>
#include <string>
#include <vector>

#include "base/process/process.h"
#include "base/socket.h"
#include "bench/allreduce/bench_plan.h"
#include "bench/allreduce/bench_result.h"

namespace lockstep {

// A request is one batch of all-reduces. Its layout is that of struct Request in mpi_peer.c.
struct MpiRequest {
  int64_t bytes = 0;          // 0: there will be no more
  int64_t element_bytes = 4;  // 4: float, 8: double
  int64_t batch = 1;          // in [1, kMaxMpiBatch]
  int64_t warm_up = 0;        // 1: a batch before it, untimed
  int64_t first_salt = 0;
  int64_t check_all = 0;  // 0: a sample of each result
};

inline constexpr int64_t kMaxMpiBatch = 64;

class MpiRanks {
 public:
  // Starts them and waits until all have reported. Throws IoError or TimeoutError if they do not.
  MpiRanks(const BenchMpi& mpi, int num_ranks);
  // Lets them end; kills mpiexec, and them with it, if they do not.
  ~MpiRanks();
  MpiRanks(const MpiRanks&) = delete;
  MpiRanks& operator=(const MpiRanks&) = delete;

  const std::string& name() const { return name_; }

  // Throws InternalError for a wrong result, IoError or TimeoutError if a rank is lost.
  BatchStamps run(const MpiRequest& request);

 private:
  void accept_ranks(int listener, int num_ranks);
  void tell(const MpiRequest& request);

  std::string name_;
  base::Process process_;
  std::vector<base::Socket> ranks_;
};

}  // namespace lockstep
