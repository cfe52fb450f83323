// Whoever can reach the port of a running job costs it nothing: not its result, not memory, not a
// descriptor, not its log.

#include <cstdio>
#include <deque>
#include <fcntl.h>
#include <filesystem>
#include <sstream>
#include <sys/socket.h>
#include <sys/stat.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/secret.h"
#include "base/store/store_client.h"
#include "base/store/store_protocol.h"
#include "support/job.h"

namespace lockstep::test {
namespace {

using base::store::Kind;
using base::store::Writer;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr int kWarmUp = 1000;
constexpr int kConnections = 10000;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr long kMaxGrowthKib = 512 << 10;  // a sanitizer keeps what was freed
#else
constexpr long kMaxGrowthKib = 2 << 10;
#endif

base::Deadline soon() {
  return base::Deadline::after(kPatience);
}

// How a rank finds and convinces the store.
struct Access {
  base::Endpoint store;
  std::string job_id;
  std::string secret;
  std::string scope() const { return base::store::rank_scope(job_id, 0); }
};

std::string hello(const std::string& scope, const base::Nonce& nonce) {
  return base::store::encode({Kind::Hello, 0,
                              Writer()
                                  .u32(base::store::kMagic)
                                  .u16(base::store::kVersion)
                                  .bytes(nonce.data(), nonce.size())
                                  .text(scope)
                                  .take()});
}

std::string answer(const base::Proof& proof) {
  return base::store::encode({Kind::Answer, 0, Writer().bytes(proof.data(), proof.size()).take()});
}

// Comes with everything but the secret.
class Crowd {
 public:
  explicit Crowd(const Access& access) : access_(access) {
    const base::Nonce client = base::random_nonce();
    const base::Nonce server = base::random_nonce();
    recorded_ = hello(access.scope(), client) +
                answer(base::make_proof(access.secret, "client", access.scope(), client, server));
  }

  void come(int number) {
    for (int i = 0; i < number; ++i) {
      come_once(i);
      for (Slow& slow : slow_) {
        slow.send_byte();
      }
    }
    slow_.clear();
    silent_.clear();
  }

 private:
  struct Slow {
    base::Socket socket;
    std::string text;
    size_t next = 0;
    void send_byte() {
      if (next < text.size()) {
        ::send(socket.fd(), &text[next++], 1, MSG_NOSIGNAL | MSG_DONTWAIT);
      }
    }
  };

  void come_once(int i) {
    constexpr size_t kMaxKept = 100;
    constexpr int kNumWays = 8;
    base::Socket socket = base::Socket::connect(access_.store, soon());
    const auto say = [&](const std::string& bytes) {
      ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    };
    const base::Nonce nonce = base::random_nonce();
    const std::string greeting = hello(access_.scope(), nonce);
    switch (i % kNumWays) {
      case 0:  // garbage
        say(std::string(reinterpret_cast<const char*>(nonce.data()), nonce.size()));
        break;
      case 1:  // nothing at all
        keep(silent_, std::move(socket), kMaxKept);
        break;
      case 2: {  // a reset in the middle
        say(greeting.substr(0, 20));
        const linger at_once{1, 0};
        ::setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        break;
      }
      case 3:  // another secret
        say(greeting +
            answer(base::make_proof("another", "client", access_.scope(), nonce, nonce)));
        break;
      case 4:  // what a rank once said
        say(recorded_);
        break;
      case 5:  // a frame of 4 GiB
        say(std::string(4, '\xff') + std::string(1000, 'x'));
        break;
      case 6:  // byte by byte
        keep(slow_, Slow{std::move(socket), greeting}, kMaxKept);
        break;
      default: {  // many greetings, whose answers nobody reads
        std::string many;
        for (int n = 0; n < 100; ++n) {
          many += greeting;
        }
        say(many);
      }
    }
  }

  template <typename Guest>
  static void keep(std::deque<Guest>& guests, Guest guest, size_t limit) {
    guests.push_back(std::move(guest));
    if (guests.size() > limit) {
      guests.pop_front();
    }
  }

  Access access_;
  std::string recorded_;
  std::deque<base::Socket> silent_;
  std::deque<Slow> slow_;
};

long resident_kib(pid_t pid) {
  const std::string text = base::read_file(fmt::format("/proc/{}/status", pid));
  long kib = 0;
  std::sscanf(text.c_str() + text.find("VmRSS:"), "VmRSS: %ld", &kib);
  return kib;
}

size_t num_descriptors(pid_t pid) {
  const std::filesystem::directory_iterator folder(fmt::format("/proc/{}/fd", pid));
  return static_cast<size_t>(std::distance(begin(folder), end(folder)));
}

// Ranks that say where the store is and wait for the word to end.
class Strangers : public ::testing::Test {
 protected:
  std::string script() const {
    return "echo store $LOCKSTEP_STORE $LOCKSTEP_JOB_ID $LOCKSTEP_JOB_SECRET; cat " +
           folder_.path() + "/go$RANK; echo result $RANK of $WORLD_SIZE";
  }
  void SetUp() override {
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_EQ(::mkfifo(fifo(rank).c_str(), 0600), 0);
    }
  }
  std::string fifo(int rank) const { return fmt::format("{}/go{}", folder_.path(), rank); }
  void let_ranks_end() const {
    for (int rank = 0; rank < 2; ++rank) {
      base::open_file(fifo(rank), O_WRONLY);  // waits for the reader, whom its end lets go on
    }
  }

  static Access access_of(const Job& job) {
    const std::string out = job.out();
    std::istringstream words(out.substr(out.find("store ") + 6));
    std::string endpoint;
    Access access;
    words >> endpoint >> access.job_id >> access.secret;
    access.store = base::Endpoint::parse(endpoint, "LOCKSTEP_STORE");
    return access;
  }

  // All of them, while a rank goes on using the store.
  static void withstand(const Job& leader, const Access& access) {
    const base::StoreClientOptions options{
        .server = access.store, .job_id = access.scope(), .secret = access.secret};
    base::StoreClient rank(options, soon());
    const size_t descriptors = num_descriptors(leader.leader());
    const auto is_alone = [&] { return num_descriptors(leader.leader()) == descriptors; };
    Crowd crowd(access);
    crowd.come(kWarmUp);
    ASSERT_TRUE(wait_until(is_alone));
    const long resident = resident_kib(leader.leader());
    for (int i = 0; i < 10; ++i) {
      crowd.come(kConnections / 10);
      EXPECT_EQ(rank.add("rounds", 1, soon()), i + 1);
      EXPECT_NO_THROW(base::StoreClient(options, soon()).set("late", "rank", soon()));
    }
    EXPECT_TRUE(wait_until(is_alone)) << num_descriptors(leader.leader());
    const long growth = resident_kib(leader.leader()) - resident;
    EXPECT_LT(growth, kMaxGrowthKib);
    ::testing::Test::RecordProperty("growth_kib", static_cast<int>(growth));
    const int num_logged = count(leader.err(), "WARN store");
    EXPECT_GT(num_logged, 16);
    EXPECT_LT(num_logged, 40) << "ten thousand lines were not asked for";
  }

  TempFolder folder_;
};

TEST_F(Strangers, CostAJobNothing) {
  Job job({"--nproc-per-node", "2", "sh", "-c", script()});
  ASSERT_TRUE(job.wait_for_output("store ", 2)) << job.err();
  withstand(job, access_of(job));
  let_ranks_end();
  EXPECT_EQ(job.wait().code, 0) << job.err();
  EXPECT_EQ(count(job.out(), "of 2"), 2);
  EXPECT_TRUE(job.is_gone());
}

TEST_F(Strangers, CostAJobOfTwoNodesNothing) {
  const uint16_t port = base::Listener({"127.0.0.1", 0}).endpoint().port;
  const Words arguments{"--nnodes=2",
                        "--rdzv-id=crowded",
                        fmt::format("--rdzv-endpoint=127.0.0.1:{}", port),
                        "--nproc-per-node=1",
                        "sh",
                        "-c",
                        script()};
  const JobPlace place{.env = {{"LOCKSTEP_JOB_SECRET", base::make_secret()}}};
  Job head(arguments, place);
  Access outside{.store = {"127.0.0.1", port}, .job_id = "crowded", .secret = "unknown"};
  Crowd(outside).come(kWarmUp);  // while it waits for the other node
  Job other(arguments, place);
  ASSERT_TRUE(head.wait_for_output("store ", 1)) << head.err();
  ASSERT_TRUE(other.wait_for_output("store ", 1)) << other.err();
  withstand(head, access_of(head));
  let_ranks_end();
  EXPECT_EQ(head.wait().code, 0) << head.err();
  EXPECT_EQ(other.wait().code, 0) << other.err();
  EXPECT_THAT(head.out(), HasSubstr("result 0 of 2"));
  EXPECT_THAT(other.out(), HasSubstr("result 1 of 2"));
  EXPECT_TRUE(head.is_gone());
  EXPECT_TRUE(other.is_gone());
}

}  // namespace
}  // namespace lockstep::test
