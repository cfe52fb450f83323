// The store of a job that starts its ranks anew, served from the caller's poll loop as the launcher
// does it; and what strangers can do to it.

#include <algorithm>
#include <fcntl.h>
#include <future>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/store/store_client.h"
#include "base/store/store_greeting.h"
#include "base/store/store_server.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using base::store::Kind;
using base::store::Writer;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

base::Deadline soon() {
  return base::Deadline::after(20s);
}

// A client that speaks for itself, frame by frame.
struct Raw {
  explicit Raw(const base::Endpoint& server) : socket(base::Socket::connect(server, soon())) {}
  void send(const std::string& bytes) { socket.send(bytes.data(), bytes.size(), soon()); }
  void say(const std::string& text) {
    send(base::store::encode({Kind::Agent, 0, Writer().text(text).take()}));
  }
  std::string hear() {
    return base::store::Reader(base::store::receive_message(socket, unread, 4096, soon()).body)
        .text();
  }
  base::Socket socket;
  std::string unread;
};

std::string hello(const std::string& scope) {
  return base::store::encode({Kind::Hello, 0,
                              Writer()
                                  .u32(base::store::kMagic)
                                  .u16(base::store::kVersion)
                                  .bytes(base::random_nonce().data(), 32)
                                  .text(scope)
                                  .take()});
}

class PolledStore : public ::testing::Test, protected base::AgentListener {
 protected:
  PolledStore() : server_({.job_id = "job", .secret = "secret"}) {
    log::set_sink([this](log::Level, std::string_view line) { logged_.emplace_back(line); });
  }
  ~PolledStore() override { log::set_sink({}); }

  // What `body` does as a client, while this thread serves.
  template <typename Body>
  auto serving(Body body) {
    auto result = std::async(std::launch::async, body);
    while (result.wait_for(0s) != std::future_status::ready) {
      serve_once();
    }
    return result.get();
  }
  void serve_once() {
    pollfd entry{server_.fd(), POLLIN, 0};
    ::poll(&entry, 1, 1);
    server_.serve();
  }
  void serve_until(const std::function<bool()>& condition) {
    for (const base::Deadline deadline = soon(); !condition() && !deadline.expired();) {
      serve_once();
    }
    EXPECT_TRUE(condition());
  }

  std::unique_ptr<Raw> greet(const std::string& scope, const std::string& secret = "secret") {
    return serving([&] {
      auto client = std::make_unique<Raw>(server_.endpoint());
      base::store::greet(client->socket, {server_.endpoint(), scope, secret}, client->unread,
                         soon());
      return client;
    });
  }
  // "" if it is let in.
  std::string refusal(const std::string& scope, const std::string& secret = "secret") {
    try {
      greet(scope, secret);
      return "";
    } catch (const UsageError& error) {
      return error.what();
    }
  }
  std::unique_ptr<base::StoreClient> rank(const std::string& scope) {
    return serving([&] {
      return std::make_unique<base::StoreClient>(
          base::StoreClientOptions{
              .server = server_.endpoint(), .job_id = scope, .secret = "secret"},
          soon());
    });
  }
  bool is_hung_up_on(Raw& client) {
    return serving([&] {
      try {
        for (char byte = 0;;) {  // what it was told before does not matter
          client.socket.receive(&byte, 1, soon());
        }
      } catch (const IoError&) {
        return true;
      } catch (const TimeoutError&) {
        return false;
      }
    });
  }

  // Its end as a cut link or a stateful firewall makes it, not as a process does that ends.
  static void reset(Raw& client) {
    const linger at_once{1, 0};
    ::setsockopt(client.socket.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    client.socket = base::Socket();
  }

  void agent_came(uint64_t agent, const std::string& address) override {
    agent_ = agent;
    events_.push_back("came from " + address);
  }
  void agent_said(uint64_t, const std::string& text) override { events_.push_back("said " + text); }
  void agent_went(uint64_t) override { events_.emplace_back("went"); }

  base::StoreServer server_;
  uint64_t agent_ = 0;
  std::vector<std::string> events_;
  std::vector<std::string> logged_;
  int num_strangers_ = 0;
};

TEST_F(PolledStore, AnAgentIsHeardToldAndHungUpOn) {
  server_.listen_to_agents(*this);
  const auto agent = greet(base::store::agent_scope("job"));
  agent->say("good morning");
  serve_until([&] { return events_.size() == 2; });
  EXPECT_THAT(events_, ElementsAre("came from 127.0.0.1", "said good morning"));
  server_.tell_agent(agent_, "good night");
  server_.hang_up(agent_);
  EXPECT_EQ(agent->hear(), "good night") << "what was said before comes through";
  EXPECT_TRUE(is_hung_up_on(*agent));
  serve_until([&] { return events_.back() == "went"; });
  server_.tell_agent(agent_, "nobody is there");
  server_.hang_up(agent_);
}

TEST_F(PolledStore, AConversationGoesOnWhereItsConnectionBroke) {
  server_.listen_to_agents(*this);
  auto agent = greet(base::store::agent_scope("job"));
  const auto number = static_cast<int64_t>(agent_);
  agent->say("one");
  serve_until([&] { return events_.size() == 2; });
  server_.tell_agent(agent_, "first");
  EXPECT_EQ(agent->hear(), "first");
  agent->say("two");
  reset(*agent);  // "two" may or may not have been read
  serve_until([&] { return !server_.next_timeout().is_never(); });
  server_.tell_agent(agent_, "second");  // nobody can read it now
  agent = greet(base::store::agent_scope("job"));
  const int64_t mine = serving([&] {
    agent->send(base::store::encode({Kind::Resume, 0, Writer().i64(number).i64(1).take()}));
    const base::store::Message answer =
        base::store::receive_message(agent->socket, agent->unread, 4096, soon());
    EXPECT_EQ(answer.kind, Kind::Resumed);
    return base::store::Reader(answer.body).i64();
  });
  EXPECT_EQ(serving([&] { return agent->hear(); }), "second");
  if (mine < 2) {
    agent->say("two");
  }
  agent->say("three");
  serve_until([&] { return events_.back() == "said three"; });
  EXPECT_THAT(events_, ElementsAre("came from 127.0.0.1", "said one", ::testing::_, ::testing::_,
                                   ::testing::_, "said three"));
  EXPECT_THAT(events_, Contains("said two"));
  EXPECT_EQ(std::count(events_.begin(), events_.end(), "went"), 1) << "the second number alone";
  EXPECT_TRUE(server_.next_timeout().is_never());
}

TEST_F(PolledStore, WhoDoesNotComeBackInTimeWent) {
  base::StoreServer hasty({.job_id = "job", .secret = "secret", .lost_after = 50ms});
  hasty.listen_to_agents(*this);
  auto client = std::async(std::launch::async, [&] {
    auto raw = std::make_unique<Raw>(hasty.endpoint());
    const auto welcome = base::store::greet(
        raw->socket, {hasty.endpoint(), base::store::agent_scope("job"), "secret"}, raw->unread,
        soon());
    EXPECT_EQ(welcome.lost_after, 50ms) << "the server says how long";
    return raw;
  });
  const auto serve_hasty_until = [&](const std::function<bool()>& condition) {
    for (const base::Deadline deadline = soon(); !condition() && !deadline.expired();) {
      pollfd entry{hasty.fd(), POLLIN, 0};
      ::poll(&entry, 1, 1);
      hasty.serve();
    }
  };
  serve_hasty_until([&] { return client.wait_for(0s) == std::future_status::ready; });
  reset(*client.get());
  serve_hasty_until([&] { return events_.size() == 2; });
  EXPECT_THAT(events_, ElementsAre("came from 127.0.0.1", "went"));
}

TEST_F(PolledStore, WhoWasGivenUpCannotGoOn) {
  server_.listen_to_agents(*this);
  const auto agent = greet(base::store::agent_scope("job"));
  agent->send(base::store::encode({Kind::Resume, 0, Writer().i64(4711).i64(0).take()}));
  EXPECT_THAT(serving([&] { return agent->hear(); }), HasSubstr("was given up"));
  EXPECT_TRUE(is_hung_up_on(*agent));
}

TEST_F(PolledStore, AWrongSecretIsSaidOnThisSideToo) {
  server_.listen_to_agents(*this);
  refusal(base::store::agent_scope("job"), "wrong");
  serve_until([&] { return !logged_.empty(); });
  EXPECT_THAT(logged_, ElementsAre(AllOf(HasSubstr("127.0.0.1"), HasSubstr("is its secret another"),
                                         HasSubstr("LOCKSTEP_JOB_SECRET"))));
}

TEST_F(PolledStore, OnlyThisJobsAgentsEnterByTheAgentsDoor) {
  EXPECT_THAT(refusal(base::store::agent_scope("job")),
              HasSubstr("it greets as job/agents, where job is expected"))
      << "nobody listens yet";
  server_.listen_to_agents(*this);
  EXPECT_THAT(refusal(base::store::agent_scope("job"), "wrong"), HasSubstr("does not know"));
  EXPECT_THAT(refusal(base::store::agent_scope("other")), HasSubstr("it belongs to job other"));
  EXPECT_TRUE(events_.empty());
  const auto rank = greet("job");
  rank->say("I am an agent");
  EXPECT_TRUE(is_hung_up_on(*rank));
  EXPECT_TRUE(events_.empty()) << "a rank is no agent";
  const auto agent = greet(base::store::agent_scope("job"));
  agent->send(base::store::encode({Kind::Set, 1, Writer().text("k").text("v").take()}));
  EXPECT_TRUE(is_hung_up_on(*agent)) << "and an agent is no rank";
}

TEST_F(PolledStore, ANewStartLeavesNothingOfTheOld) {
  server_.begin_generation(0);
  const auto old = rank("job/g0");
  serving([&] { old->set("k", "v", soon()); });
  server_.begin_generation(1);
  EXPECT_THROW(serving([&] { old->get("k", soon()); }), PeerLostError);
  EXPECT_THAT(refusal("job/g0"),
              HasSubstr("it belongs to start 0 of the job, which is at start 1"));
  EXPECT_THAT(refusal("job"), HasSubstr("it greets as job, where job/g1 is expected"));
  const auto now = rank("job/g1");
  EXPECT_EQ(serving([&] { return now->num_keys(soon()); }), 0);
}

TEST_F(PolledStore, AGreetingThatANewStartOvertakesIsRefused) {
  server_.begin_generation(0);
  const base::Nonce client_nonce = base::random_nonce();
  Raw rank(server_.endpoint());
  rank.send(base::store::encode({Kind::Hello, 0,
                                 Writer()
                                     .u32(base::store::kMagic)
                                     .u16(base::store::kVersion)
                                     .bytes(client_nonce.data(), 32)
                                     .text("job/g0")
                                     .take()}));
  const base::store::Message challenge =
      serving([&] { return base::store::receive_message(rank.socket, rank.unread, 4096, soon()); });
  base::Nonce server_nonce{};
  base::store::Reader(challenge.body).bytes(server_nonce.data(), 32);
  server_.begin_generation(1);
  const base::Proof proof =
      base::make_proof("secret", "client", "job/g0", client_nonce, server_nonce);
  rank.send(base::store::encode({Kind::Answer, 0, Writer().bytes(proof.data(), 32).take()}));
  EXPECT_THAT(serving([&] { return rank.hear(); }), HasSubstr("it belongs to start 0 of the job"));
}

TEST_F(PolledStore, AnnouncementsReachTheMembersOfAGroup) {
  const auto listener = rank("job");
  const auto other = rank("job");
  std::promise<std::string> noted;
  EXPECT_EQ(server_.num_members("g"), 0u);
  serving([&] {
    listener->join("g", 0, "",
                   {.lost = [](int, const std::string&) {},
                    .noted =
                        [&](int from, const std::string& text) {
                          noted.set_value(fmt::format("{} {}", from, text));
                        },
                    .disconnected = [](const std::string&) {}},
                   soon());
  });
  EXPECT_EQ(server_.num_members("g"), 1u);
  server_.announce("g", "stop");
  server_.announce("nobody", "stop");
  EXPECT_EQ(serving([&] { return noted.get_future().get(); }), "-1 stop");
  serving([&] { listener->leave("g", 0, soon()); });
  EXPECT_EQ(server_.num_members("g"), 0u);
}

TEST_F(PolledStore, WhoeverGreetsTwiceIsDropped) {
  Raw flatterer(server_.endpoint());
  flatterer.send(hello("job") + hello("job"));  // each would be answered with more than it cost
  EXPECT_TRUE(is_hung_up_on(flatterer));
  EXPECT_THAT(logged_.back(), HasSubstr("it greets again instead of proving itself"));
}

TEST_F(PolledStore, AStrangerCannotWriteTheLog) {
  EXPECT_THAT(refusal("other\n12:00 ERROR forged" + std::string(400, 'x')),
              AllOf(HasSubstr("other?12:00 ERROR forged"), Not(HasSubstr(std::string(65, 'x')))));
  EXPECT_THAT(logged_.back(), Not(HasSubstr("\n12:00")));
}

TEST_F(PolledStore, RefusalsAreLoggedSparinglyAndCounted) {
  const auto refused_after = [&](int total) {
    for (; num_strangers_ < total; ++num_strangers_) {
      Raw stranger(server_.endpoint());
      stranger.send("GET / HTTP/1.1\r\n\r\n");
      ASSERT_TRUE(is_hung_up_on(stranger));
    }
  };
  refused_after(16);
  EXPECT_EQ(logged_.size(), 16u);
  refused_after(31);
  EXPECT_EQ(logged_.size(), 16u);
  refused_after(70);
  ASSERT_EQ(logged_.size(), 18u);
  EXPECT_THAT(logged_[16], HasSubstr("(refusal 32; not all are logged)"));
  EXPECT_THAT(logged_[17], HasSubstr("(refusal 64; not all are logged)"));
}

TEST_F(PolledStore, TheFirstOfTooManyStrangersGoes) {
  constexpr size_t kMaxStrangers = 1024;
  rlimit old{};
  ::getrlimit(RLIMIT_NOFILE, &old);
  rlimit wide = old;
  wide.rlim_cur = std::min<rlim_t>(old.rlim_max, 4096);  // both ends of each are ours
  ::setrlimit(RLIMIT_NOFILE, &wide);
  if (wide.rlim_cur < 2 * kMaxStrangers + 100) {
    GTEST_SKIP() << "only " << wide.rlim_cur << " file descriptors are allowed";
  }
  const auto member = rank("job");
  std::vector<std::unique_ptr<Raw>> strangers;
  for (size_t i = 0; i <= kMaxStrangers; ++i) {
    strangers.push_back(std::make_unique<Raw>(server_.endpoint()));
    if (i % 32 == 0) {
      serve_once();
    }
  }
  EXPECT_TRUE(is_hung_up_on(*strangers.front()));
  EXPECT_THAT(logged_, Contains(HasSubstr("it proved nothing while others came")));
  serving([&] { member->set("k", "v", soon()); });
  EXPECT_EQ(refusal("job"), "") << "who knows the secret still gets in";
  strangers.clear();
  serve_until([&] { return server_.next_timeout().is_never(); });
  ::setrlimit(RLIMIT_NOFILE, &old);
}

TEST_F(PolledStore, WithoutDescriptorsAStrangerMakesRoomForTheNext) {
  Raw first(server_.endpoint());
  serve_until([&] { return !server_.next_timeout().is_never(); });
  Raw next(server_.endpoint());
  rlimit old{};
  ::getrlimit(RLIMIT_NOFILE, &old);
  rlimit tight = old;
  tight.rlim_cur = static_cast<rlim_t>(next.socket.fd()) + 1;
  ::setrlimit(RLIMIT_NOFILE, &tight);
  std::vector<base::UniqueFd> fillers;
  for (int fd = ::open("/dev/null", O_RDONLY); fd >= 0; fd = ::open("/dev/null", O_RDONLY)) {
    fillers.emplace_back(fd);
  }
  server_.serve();
  fillers.clear();
  ::setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_TRUE(is_hung_up_on(first));
  next.send(hello("job"));
  EXPECT_EQ(serving([&] {
              return base::store::receive_message(next.socket, next.unread, 4096, soon());
            }).kind,
            Kind::Challenge);
}

}  // namespace
}  // namespace lockstep
