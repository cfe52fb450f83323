#pragma once

// A system that refuses a call, as an old kernel, a file system or a sandbox does.

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <optional>
#include <sys/prctl.h>
#include <vector>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep::test {

// The calls whose argument number `index` has this value (`is`), or any other one.
struct ArgumentRule {
  unsigned index = 0;
  uint32_t value = 0;
  bool is = true;
};

// From now on the system call `number` of this thread, and of those that it starts, fails with
// `error`. There is no way back: call it in a thread or a process of its own.
inline void refuse_call(uint32_t number, uint32_t error, std::optional<ArgumentRule> only = {}) {
  const auto to_the_end = static_cast<uint8_t>(only ? 3 : 1);
  std::vector<sock_filter> rules{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, to_the_end)};
  if (only) {
    const auto place =
        static_cast<uint32_t>(offsetof(seccomp_data, args) + only->index * sizeof(uint64_t));
    const uint8_t if_equal = only->is ? 0 : 1;
    rules.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, place));
    rules.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, only->value, if_equal,
                             static_cast<uint8_t>(1 - if_equal)));
  }
  rules.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
  rules.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{.len = static_cast<unsigned short>(rules.size()),
                           .filter = rules.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0) << base::errno_text(errno);
}

}  // namespace lockstep::test
