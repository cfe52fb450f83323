// MyTransformer from seed 42: every rank makes the same bits by itself.
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <ucontext.h>

#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/models/my_transformer.h>

#include "base/unique_fd.h"
#include "models/parameter_hash.h"
#include "support/fleet.h"

namespace lockstep {
namespace {

using testing_support::run_ranks;

MyTransformerOptions small() {
  return {.vocab_size = 1000, .hidden_size = 64, .num_layers = 2, .ffn_size = 128};
}

std::vector<int64_t> all_hashes(Group& group, uint64_t hash) {
  const at::Tensor mine = at::empty({1}, at::kLong).fill_(static_cast<int64_t>(hash));
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  group.all_gather(all, mine);
  return {all.data_ptr<int64_t>(), all.data_ptr<int64_t>() + all.numel()};
}

void starts_equal(Group& group, const MyTransformerOptions& options) {
  const MyTransformer model(options);
  const uint64_t hash = models::hash_parameters(*model);  // nobody has said anything yet
  for (const int64_t other : all_hashes(group, hash)) {
    EXPECT_EQ(static_cast<uint64_t>(other), hash) << "rank " << group.rank();
  }
  DistributedDataParallel ddp(model, group);  // its broadcast is for safety and changes nothing
  EXPECT_EQ(models::hash_parameters(*model), hash);
}

TEST(SameStart, EveryRankMakesTheSameModelAlone) {
  for (const int world : {1, 2, 4, 8}) {
    run_ranks(world, [](Group& group) { starts_equal(group, small()); });
  }
}

TEST(SameStart, AlsoAtFullSize) {
  run_ranks(2, [](Group& group) { starts_equal(group, {}); });
  if (std::getenv("LOCKSTEP_LONG_TESTS") != nullptr) {
    run_ranks(8, [](Group& group) { starts_equal(group, {}); },
              {.limit = std::chrono::seconds(300)});
  }
}

TEST(SameStart, TheBroadcastMendsARankThatStartedDifferently) {
  run_ranks(3, [](Group& group) {
    MyTransformerOptions options = small();
    options.seed = group.rank() == 2 ? 43 : 42;
    const MyTransformer model(options);
    const uint64_t wanted = models::hash_parameters(*MyTransformer(small()));
    EXPECT_EQ(models::hash_parameters(*model) == wanted, group.rank() != 2);
    DistributedDataParallel ddp(model, group);
    EXPECT_EQ(models::hash_parameters(*model), wanted) << "rank " << group.rank();
    const at::Tensor ids_BT = at::arange(20, at::kLong).view({2, 10}) + group.rank();
    next_token_loss(ddp(ids_BT), ids_BT).backward();
    ddp.verify();
  });
}

// --- no file
// ---------------------------------------------------------------------------------------

std::atomic<int> num_opened{0};

// The call was not made: it gets an error, and is counted.
void count_open(int, siginfo_t*, void* context) {
  num_opened.fetch_add(1);
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = -EACCES;
}

// From here on every open of this thread, and of threads that it starts, ends in count_open().
void trap_opens() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_open, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat2, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  };
  const sock_fprog filter{.len = std::size(program), .filter = program};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0) << base::errno_text(errno);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0) << base::errno_text(errno);
}

TEST(SameStart, OpensNoFile) {
  struct sigaction action {};
  action.sa_sigaction = count_open;
  action.sa_flags = SA_SIGINFO;
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGSYS, &action, &before), 0);
  std::thread([] {
    const MyTransformer warm_up(small());  // libraries and threads are there afterwards
    trap_opens();
    const MyTransformer model(MyTransformerOptions{.num_layers = 1});
    EXPECT_EQ(num_opened.load(), 0);
    EXPECT_EQ(models::hash_parameters(*MyTransformer(small())), models::hash_parameters(*warm_up));
    EXPECT_EQ(::open("/proc/self/stat", O_RDONLY), -1) << "the trap does not work";
    EXPECT_EQ(num_opened.load(), 1);
  }).join();
  ::sigaction(SIGSYS, &before, nullptr);
}

}  // namespace
}  // namespace lockstep
