#include "shm/fd_exchange.h"

#include <future>
#include <signal.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/secret.h"
#include "shm/child.h"
#include "shm/segment.h"

namespace lockstep::shm::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 100s;   // nothing takes this
constexpr auto kShort = 50ms;  // a deadline that passes
constexpr const char* kSecret = "the secret";

FdExchangeOptions options_of(int rank, int size, const std::string& secret = kSecret) {
  return {.rank = rank, .size = size, .secret = secret, .purpose = "test"};
}

// Gives a segment that holds the rank's number, and looks for everybody's.
void exchange_numbers(FdExchange& exchange, int rank, int size) {
  const auto segment = Segment::create(1);
  segment->data()[0] = static_cast<std::byte>(rank + 1);
  int next = 0;
  exchange.exchange(
      {.fd = segment->fd()},
      [&](int other, const base::UniqueFd& fd) {
        next += next == rank ? 1 : 0;
        require(other == next++, "in the order of ranks");
        const PeerSegment peer(fd);
        require(peer.data()[0] == static_cast<std::byte>(other + 1), "a segment of each");
      },
      base::Deadline::after(kLong));
  require(next == size - (rank == size - 1 ? 1 : 0), "of every rank");
}

Child joiner(const FdExchange& rank_zero, int rank, int size) {
  return Child([&rank_zero, rank, size] {
    FdExchange exchange(options_of(rank, size));
    exchange.join(rank_zero.address(), base::Deadline::after(kLong));
    exchange_numbers(exchange, rank, size);
    exchange_numbers(exchange, rank, size);
    return 0;
  });
}

void ignore(int /*rank*/, const base::UniqueFd& /*fd*/) {}

void expect_ok(Child& child) {
  const base::ExitStatus status = child.wait(base::Deadline::after(kLong));
  EXPECT_TRUE(status.ok()) << status.text();
}

TEST(FdExchange, HandsEverybodyTheDescriptorsOfAll) {
  for (const int size : {1, 2, 5, 70}) {  // 70: more than travel together
    FdExchange rank_zero(options_of(0, size));
    std::vector<Child> children;
    for (int rank = size - 1; rank > 0; --rank) {
      children.push_back(joiner(rank_zero, rank, size));
    }
    rank_zero.accept_all(base::Deadline::after(kLong));
    exchange_numbers(rank_zero, 0, size);
    exchange_numbers(rank_zero, 0, size);
    for (Child& child : children) {
      expect_ok(child);
    }
  }
}

// The kernel counts the descriptors that all processes of a user have under way, and forgives only
// the privileged for having more than RLIMIT_NOFILE.
void become_ordinary_user(rlim_t max_open_files) {
  constexpr uid_t kNobody = 65534;
  const rlimit limit{max_open_files, max_open_files};
  require(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
  if (::geteuid() == 0) {
    require(::setgid(kNobody) == 0 && ::setuid(kNobody) == 0, "setuid");
  }
}

// All ranks, in processes of this one.
int meet_as_family(int size) {
  FdExchange rank_zero(options_of(0, size));
  std::vector<Child> children;
  for (int rank = size - 1; rank > 0; --rank) {
    children.push_back(joiner(rank_zero, rank, size));
  }
  rank_zero.accept_all(base::Deadline::after(kLong));
  exchange_numbers(rank_zero, 0, size);
  exchange_numbers(rank_zero, 0, size);
  for (Child& child : children) {
    require(child.wait(base::Deadline::after(kLong)).ok(), "a rank failed");
  }
  return 0;
}

TEST(FdExchange, OrdinaryUsersMayHaveManyRanksOnAHost) {
  Child many([] {
    become_ordinary_user(1024);
    return meet_as_family(128);
  });
  expect_ok(many);
  Child few_files([] {  // descriptors are closed as soon as they are mapped
    become_ordinary_user(160);
    return meet_as_family(64);
  });
  expect_ok(few_files);
}

// What every rank hears of an exchange in which `odd` of three does as `Odd` says.
template <typename Odd>
void expect_refused(int odd_rank, Odd odd, const char* why) {
  static constexpr int kSize = 3;
  FdExchange rank_zero(options_of(0, kSize));
  const auto meet = [&](FdExchange& exchange, int rank) {
    std::string heard;
    try {
      if (rank == odd_rank) {
        odd(exchange);
      } else {
        const auto segment = Segment::create(1);
        exchange.exchange({.fd = segment->fd()}, ignore, base::Deadline::after(kLong));
      }
    } catch (const Refused& refused) {
      heard = fmt::format("{}: {}", refused.rank(), refused.problem());
    }
    const bool is_right =
        heard.find(fmt::format("{}: ", odd_rank)) == 0 && heard.find(why) != std::string::npos;
    require(is_right, ("heard " + heard).c_str());
    exchange_numbers(exchange, rank, kSize);  // the exchange goes on
    return 0;
  };
  std::vector<Child> children;
  for (int rank = 1; rank < kSize; ++rank) {
    children.emplace_back([&, rank] {
      FdExchange exchange(options_of(rank, kSize));
      exchange.join(rank_zero.address(), base::Deadline::after(kLong));
      return meet(exchange, rank);
    });
  }
  rank_zero.accept_all(base::Deadline::after(kLong));
  meet(rank_zero, 0);
  for (Child& child : children) {
    expect_ok(child);
  }
}

TEST(FdExchange, EverybodyHearsOfARankThatHasNothingToGive) {
  for (const int odd : {0, 2}) {
    expect_refused(
        odd,
        [](FdExchange& exchange) {
          exchange.exchange({.problem = "no memory"}, ignore, base::Deadline::after(kLong));
        },
        "no memory");
  }
}

TEST(FdExchange, EverybodyHearsOfARankThatCannotTake) {
  for (const int odd : {0, 1}) {
    expect_refused(
        odd,
        [](FdExchange& exchange) {
          const auto segment = Segment::create(1);
          exchange.exchange(
              {.fd = segment->fd()},
              [](int /*rank*/, const base::UniqueFd& /*fd*/) { throw IoError("cannot map"); },
              base::Deadline::after(kLong));
        },
        "cannot map");
  }
}

TEST(FdExchange, EverybodyHearsOfARankThatMayNotOpenMoreFiles) {
  for (const int odd : {0, 1}) {
    expect_refused(
        odd,
        [](FdExchange& exchange) {
          const auto segment = Segment::create(1);
          rlimit before{};
          require(::getrlimit(RLIMIT_NOFILE, &before) == 0, "getrlimit");
          rlimit none = before;
          none.rlim_cur = static_cast<rlim_t>(segment->fd()) + 1;  // the lowest free one
          require(::setrlimit(RLIMIT_NOFILE, &none) == 0, "setrlimit");
          const auto restore = [&] { ::setrlimit(RLIMIT_NOFILE, &before); };
          try {
            exchange.exchange({.fd = segment->fd()}, ignore, base::Deadline::after(kLong));
          } catch (...) {
            restore();
            throw;
          }
          restore();
        },
        "too many open files");
  }
}

TEST(FdExchange, RefusesAStrangerAndGoesOn) {
  static constexpr int kSize = 3;
  FdExchange rank_zero(options_of(0, kSize));
  Child stranger([&rank_zero] {
    FdExchange exchange(options_of(1, kSize, "another secret"));
    try {
      exchange.join(rank_zero.address(), base::Deadline::after(kLong));
    } catch (const UsageError&) {
      return 0;
    }
    return 1;
  });
  std::thread accepting([&] { rank_zero.accept_all(base::Deadline::after(kLong)); });
  expect_ok(stranger);  // it came, and was refused, before the others start
  std::thread others([&] {
    std::vector<std::thread> ranks;
    for (int rank = 1; rank < kSize; ++rank) {
      ranks.emplace_back([&rank_zero, rank] {
        FdExchange exchange(options_of(rank, kSize));
        exchange.join(rank_zero.address(), base::Deadline::after(kLong));
        exchange_numbers(exchange, rank, kSize);
      });
    }
    for (std::thread& rank : ranks) {
      rank.join();
    }
  });
  accepting.join();
  exchange_numbers(rank_zero, 0, kSize);
  others.join();
}

TEST(FdExchange, HasNoPlaceForARankThatIsThereOrBeyondTheLast) {
  FdExchange rank_zero(options_of(0, 2));
  const auto refused = [&rank_zero](int rank) {
    return Child([&rank_zero, rank] {
      FdExchange exchange(options_of(rank, 2));
      exchange.join(rank_zero.address(), base::Deadline::after(kLong));
      try {
        exchange_numbers(exchange, rank, 2);
      } catch (const IoError&) {
        return 0;
      }
      return 1;
    });
  };
  Child beyond = refused(7);
  Child same = refused(0);
  std::thread accepting([&] { rank_zero.accept_all(base::Deadline::after(kLong)); });
  expect_ok(beyond);
  expect_ok(same);
  FdExchange second(options_of(1, 2));
  second.join(rank_zero.address(), base::Deadline::after(kLong));
  accepting.join();
}

TEST(FdExchange, GivesUpAtTheDeadline) {
  FdExchange rank_zero(options_of(0, 2));
  EXPECT_THROW(rank_zero.accept_all(base::Deadline::after(kShort)), TimeoutError);
  FdExchange member(options_of(1, 2));  // connects, but nobody answers
  EXPECT_THROW(member.join(rank_zero.address(), base::Deadline::after(kShort)), TimeoutError);
}

TEST(FdExchange, GivesUpAnExchangeAtTheDeadline) {
  FdExchange rank_zero(options_of(0, 2));
  FdExchange member(options_of(1, 2));
  std::thread joining([&] { member.join(rank_zero.address(), base::Deadline::after(kLong)); });
  rank_zero.accept_all(base::Deadline::after(kLong));
  joining.join();
  EXPECT_THROW(rank_zero.exchange({.fd = STDERR_FILENO}, ignore, base::Deadline::after(kShort)),
               TimeoutError);
  EXPECT_THROW(member.exchange({.fd = STDERR_FILENO}, ignore, base::Deadline::after(kShort)),
               TimeoutError);
}

TEST(FdExchange, NoticesTheDeathOfTheLeader) {
  const base::FdPair address = base::make_pipe();
  Child rank_zero([&address] {
    FdExchange exchange(options_of(0, 2));
    base::write_all(address.write.get(), exchange.address().data(), exchange.address().size());
    exchange.accept_all(base::Deadline::after(kLong));
    ::raise(SIGKILL);
    return 0;
  });
  FdExchange member(options_of(1, 2));
  std::string text(256, '\0');
  const ssize_t length = ::read(address.read.get(), text.data(), text.size());
  ASSERT_GT(length, 0);
  text.resize(static_cast<size_t>(length));
  member.join(text, base::Deadline::after(kLong));
  EXPECT_THROW(member.exchange({.fd = STDERR_FILENO}, ignore, base::Deadline::after(kLong)),
               IoError);
  EXPECT_EQ(rank_zero.wait(base::Deadline::after(kLong)).signal, SIGKILL);
  FdExchange late(options_of(1, 2));
  EXPECT_THROW(late.join(text, base::Deadline::after(kLong)), IoError);
}

TEST(FdExchange, NoticesTheDeathOfAMember) {
  FdExchange rank_zero(options_of(0, 2));
  Child member([&rank_zero] {
    FdExchange exchange(options_of(1, 2));
    exchange.join(rank_zero.address(), base::Deadline::after(kLong));
    ::raise(SIGKILL);
    return 0;
  });
  rank_zero.accept_all(base::Deadline::after(kLong));
  EXPECT_THROW(rank_zero.exchange({.fd = STDERR_FILENO}, ignore, base::Deadline::after(kLong)),
               IoError);
}

// Whether it begins to wait before or after the interrupt, it ends.
template <typename Body>
void expect_interrupted(FdExchange& exchange, Body body) {
  auto waits = std::async(std::launch::async, body);
  exchange.interrupt();
  EXPECT_THROW(waits.get(), IoError);
  EXPECT_THROW(body(), IoError);
}

TEST(FdExchange, CanBeInterruptedByAnotherThread) {
  for (int round = 0; round < 20; ++round) {
    FdExchange alone(options_of(0, 2));
    expect_interrupted(alone, [&] { alone.accept_all(base::Deadline::after(kLong)); });

    FdExchange rank_zero(options_of(0, 2));
    FdExchange unanswered(options_of(1, 2));
    expect_interrupted(unanswered,
                       [&] { unanswered.join(rank_zero.address(), base::Deadline::after(kLong)); });

    FdExchange other(options_of(0, 2));
    FdExchange member(options_of(1, 2));
    std::thread joining([&] { member.join(other.address(), base::Deadline::after(kLong)); });
    other.accept_all(base::Deadline::after(kLong));
    joining.join();
    expect_interrupted(other, [&] {
      other.exchange({.fd = STDERR_FILENO}, ignore, base::Deadline::after(kLong));
    });
  }
}

}  // namespace
}  // namespace lockstep::shm::test
