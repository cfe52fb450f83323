// A member's conversation with the head over connections that break.

#include "launch/job/head_link.h"

#include <future>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/store/store_server.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

base::Deadline soon() {
  return base::Deadline::after(20s);
}

class HeadLinkTest : public ::testing::Test, private base::AgentListener {
 protected:
  HeadLinkTest() { listen(server_); }

  void listen(base::StoreServer& server) { server.listen_to_agents(*this); }

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
  std::unique_ptr<launch::HeadLink> join() {
    return serving([&] {
      return std::make_unique<launch::HeadLink>(
          launch::HeadLinkOptions{.head = server_.endpoint(), .job_id = "job", .secret = "secret"},
          soon());
    });
  }
  // Both sides, until the head has heard so much and the member too.
  void talk(launch::HeadLink& link, size_t num_heard, size_t num_told) {
    for (const base::Deadline deadline = soon();
         !deadline.expired() && (heard_.size() < num_heard || told_.size() < num_told);) {
      serve_once();
      for (const launch::HeadMessage& message : link.receive()) {
        told_.push_back(message.text);
      }
    }
  }
  static void say(launch::HeadLink& link, const std::string& text) {
    link.send({.kind = launch::MemberSays::Failed, .text = text});
  }
  void tell(const std::string& text) {
    server_.tell_agent(agent_,
                       launch::HeadMessage{.kind = launch::HeadSays::End, .text = text}.to_json());
  }
  static void cut(launch::HeadLink& link) { link.break_off(); }  // the other side gets a reset

  void agent_came(uint64_t agent, const std::string&) override {
    agent_ = num_agents_++ == 0 ? agent : agent_;
  }
  void agent_said(uint64_t agent, const std::string& text) override {
    EXPECT_EQ(agent, agent_) << "it is the same agent all the time";
    heard_.push_back(launch::MemberMessage::from_json(text).text);
  }
  void agent_went(uint64_t agent) override { has_gone_ = has_gone_ || agent == agent_; }

  base::StoreServer server_{{.job_id = "job", .secret = "secret", .lost_after = 20s}};
  uint64_t agent_ = 0;
  int num_agents_ = 0;
  bool has_gone_ = false;
  std::vector<std::string> heard_;
  std::vector<std::string> told_;
};

TEST_F(HeadLinkTest, NothingIsLostOrHeardTwice) {
  const auto link = join();
  EXPECT_EQ(link->lost_after(), 20s) << "the head says how long";
  std::vector<std::string> said;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 40; ++i) {  // more than are kept before the peer says what it has
      said.push_back(std::to_string(said.size()));
      say(*link, said.back());
      tell(said.back());
      if (i == 20) {
        cut(*link);
        EXPECT_TRUE(link->is_broken());
      }
    }
    serving([&] { link->resume(soon()); });
    EXPECT_FALSE(link->is_broken());
    talk(*link, said.size(), said.size());
  }
  EXPECT_EQ(heard_, said);
  EXPECT_EQ(told_, said);
  EXPECT_FALSE(has_gone_);
}

uint64_t bytes_sent(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size), 0);
  return info.tcpi_bytes_sent;
}

// The head is told of many messages at once: thousands of members answer it.
TEST_F(HeadLinkTest, MessagesAreNotConfirmedOneByOne) {
  const auto link = join();
  const uint64_t before = bytes_sent(link->fd());
  for (int i = 0; i < 10; ++i) {
    tell(std::to_string(i));
  }
  talk(*link, 0, 10);
  EXPECT_EQ(told_.size(), 10u);
  EXPECT_LT(bytes_sent(link->fd()) - before, 10 * sizeof(int64_t));
}

// A link that is cut often cuts off the name server too.
TEST_F(HeadLinkTest, TheHeadsNameIsLookedUpOnce) {
  auto server = std::make_unique<base::StoreServer>(
      base::StoreServerOptions{.listen = {"localhost", 0}, .job_id = "named", .secret = "secret"});
  listen(*server);
  server->start();
  launch::HeadLink link(
      {.head = {"localhost", server->endpoint().port}, .job_id = "named", .secret = "secret"},
      soon());
  link.break_off();
  server.reset();
  try {
    link.resume(base::Deadline::after(50ms));
    FAIL() << "nobody listens";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("localhost")));
  }
}

// A process that is killed before it has read all that came ends its connections by a reset.
TEST_F(HeadLinkTest, AHeadThatWasKilledBeforeItReadAllIsLostAtOnce) {
  auto server = std::make_unique<base::StoreServer>(
      base::StoreServerOptions{.job_id = "killed", .secret = "secret", .lost_after = 20s});
  listen(*server);
  const base::Endpoint endpoint = server->endpoint();
  auto joining = std::async(std::launch::async, [&] {
    return std::make_unique<launch::HeadLink>(
        launch::HeadLinkOptions{.head = endpoint, .job_id = "killed", .secret = "secret"}, soon());
  });
  while (joining.wait_for(1ms) != std::future_status::ready) {
    server->serve();
  }
  const auto link = joining.get();
  say(*link, "which nobody reads");
  server.reset();
  const auto begin = base::Clock::now();
  while (!link->is_broken() && base::Clock::now() - begin < 10s) {
    link->receive();
  }
  ASSERT_TRUE(link->is_broken()) << "a reset, after which it may come back";
  EXPECT_THROW(link->resume(soon()), PeerLostError);
  EXPECT_LT(base::Clock::now() - begin, 10s) << "it was to be tried for 20 s";
}

TEST_F(HeadLinkTest, AnEndIsAnEndAtOnce) {
  auto link = join();
  link.reset();
  for (const base::Deadline deadline = soon(); !has_gone_ && !deadline.expired();) {
    serve_once();
  }
  EXPECT_TRUE(has_gone_) << "a process that ends hangs up: nobody waits for it to come back";
}

TEST_F(HeadLinkTest, AMemberThatWasGivenUpIsToldSo) {
  const auto link = join();
  server_.hang_up(agent_);
  cut(*link);
  for (const base::Deadline deadline = soon(); !has_gone_ && !deadline.expired();) {
    serve_once();
  }
  EXPECT_THROW(serving([&] { link->resume(soon()); }), UsageError);
}

}  // namespace
}  // namespace lockstep
