#include <atomic>
#include <condition_variable>
#include <deque>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/store/store_client.h"
#include "base/store/store_server.h"
#include "base/store/store_table.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using base::store::Kind;
using base::store::Message;
using base::store::Writer;
using ::testing::HasSubstr;

base::Deadline soon() {
  return base::Deadline::after(20s);
}

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log::set_sink([](log::Level, std::string_view) {});  // refusals are expected here
    server_ = std::make_unique<base::StoreServer>(
        base::StoreServerOptions{.job_id = "job", .secret = "secret"});
    server_->start();
  }
  void TearDown() override { log::set_sink({}); }

  std::unique_ptr<base::StoreClient> connect(const std::string& job = "job",
                                             const std::string& secret = "secret") {
    return std::make_unique<base::StoreClient>(
        base::StoreClientOptions{.server = server_->endpoint(), .job_id = job, .secret = secret},
        soon());
  }

  std::unique_ptr<base::StoreServer> server_;
};

// Collects a member's events so that a test can wait for the next one.
class EventLog {
 public:
  base::MemberEvents events() {
    return {
        .lost = [this](int rank,
                       const std::string& who) { add(fmt::format("lost {} {}", rank, who)); },
        .noted = [this](int from,
                        const std::string& text) { add(fmt::format("note {} {}", from, text)); },
        .disconnected = [this](const std::string&) { add("disconnected"); }};
  }
  std::string next() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 20s, [this] { return !lines_.empty(); })) {
      return "nothing happened";
    }
    std::string line = lines_.front();
    lines_.pop_front();
    return line;
  }

 private:
  void add(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    changed_.notify_all();  // under the lock: who has heard it may be gone with the log right after
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> lines_;
};

TEST_F(StoreTest, KeepsValues) {
  const auto a = connect();
  const auto b = connect();
  a->set("k", "v", soon());
  EXPECT_EQ(b->get("k", soon()), "v");
  EXPECT_EQ(b->try_get("none", soon()), std::nullopt);
  a->append("k", "w", soon());
  EXPECT_EQ(b->get("k", soon()), "vw");
  EXPECT_EQ(a->add("n", 5, soon()), 5);
  EXPECT_EQ(b->add("n", -7, soon()), -2);
  EXPECT_EQ(a->compare_set("c", "", "first", soon()), "first");
  EXPECT_EQ(b->compare_set("c", "", "second", soon()), "first");
  EXPECT_EQ(b->compare_set("c", "first", "second", soon()), "second");
  EXPECT_EQ(a->num_keys(soon()), 3);
  EXPECT_TRUE(a->erase("k", soon()));
  EXPECT_FALSE(a->erase("k", soon()));
  a->set("p/1", "", soon());
  a->set("p/2", "", soon());
  EXPECT_EQ(a->erase_prefix("p/", soon()), 2);
}

TEST_F(StoreTest, GetWaitsForTheValue) {
  const auto reader = connect();
  const auto writer = connect();
  std::thread thread([&] { EXPECT_EQ(reader->get("later", soon()), std::string(1 << 20, 'x')); });
  EXPECT_THROW(writer->get("never", base::Deadline::after(20ms)), TimeoutError);
  writer->set("later", std::string(1 << 20, 'x'), soon());
  thread.join();
}

TEST_F(StoreTest, OneClientServesManyThreads) {
  const auto client = connect();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        client->add("sum", 1, soon());
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(client->add("sum", 0, soon()), 800);
}

TEST_F(StoreTest, AddingToATextIsRefusedInWords) {
  const auto client = connect();
  client->set("k", "not a number", soon());
  try {
    client->add("k", 1, soon());
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot add 1 to k"));
  }
  EXPECT_EQ(client->get("k", soon()), "not a number") << "and the client still works";
}

TEST_F(StoreTest, AnotherSecretOrJobIsRefused) {
  EXPECT_THROW(connect("job", "wrong"), UsageError);
  EXPECT_THROW(connect("job", ""), UsageError);
  EXPECT_THROW(connect("other", "secret"), UsageError);
  EXPECT_NO_THROW(connect());
}

TEST_F(StoreTest, ALostMemberIsToldToTheOthersAndOneThatLeavesIsNot) {
  EventLog log;
  const auto watcher = connect();
  auto leaver = connect();
  auto loser = connect();
  watcher->join("g", 0, "watcher", log.events(), soon());
  EventLog unused;
  leaver->join("g", 1, "leaver", unused.events(), soon());
  loser->join("g", 2, "host b, pid 7", unused.events(), soon());
  leaver->leave("g", 1, soon());
  leaver.reset();
  loser.reset();
  EXPECT_EQ(log.next(), "lost 2 host b, pid 7") << "the first event: the leaver made none";

  EventLog late;
  const auto joiner = connect();
  joiner->join("g", 3, "late", late.events(), soon());
  EXPECT_EQ(late.next(), "lost 2 host b, pid 7") << "whoever joins later hears of it too";
}

TEST_F(StoreTest, NotesGoToOneOrToAllOthers) {
  EventLog logs[3];
  std::unique_ptr<base::StoreClient> clients[3];
  for (int rank = 0; rank < 3; ++rank) {
    clients[rank] = connect();
    clients[rank]->join("g", rank, "", logs[rank].events(), soon());
  }
  clients[0]->send_note("g", 0, base::store::kToAll, "hello");
  EXPECT_EQ(logs[1].next(), "note 0 hello");
  EXPECT_EQ(logs[2].next(), "note 0 hello");
  clients[1]->send_note("g", 0, 2, "forged");  // it is not rank 0
  clients[1]->send_note("g", 1, 2, "true");
  EXPECT_EQ(logs[2].next(), "note 1 true");
}

TEST_F(StoreTest, TheServersEndReachesWaitersAndMembers) {
  const auto client = connect();
  EventLog log;
  client->join("g", 0, "", log.events(), soon());
  std::thread waiter([&] { EXPECT_THROW(client->get("never", soon()), PeerLostError); });
  server_.reset();
  waiter.join();
  EXPECT_EQ(log.next(), "disconnected");
  EXPECT_THROW(client->set("k", "v", soon()), PeerLostError);
}

TEST_F(StoreTest, GarbageAndImpostorsCostTheJobNothing) {
  const auto client = connect();
  client->set("k", "v", soon());
  const std::string hello = base::store::encode({Kind::Hello, 0,
                                                 Writer()
                                                     .u32(base::store::kMagic)
                                                     .u16(base::store::kVersion)
                                                     .bytes(base::Nonce{}.data(), 32)
                                                     .text("job")
                                                     .take()});
  const std::vector<std::string> openings = {
      "GET / HTTP/1.1\r\n\r\n",
      std::string(4, '\xff'),  // a frame of 4 GiB
      std::string(4, '\0'),    // a frame of nothing
      base::store::encode({Kind::Set, 1, Writer().text("k").text("evil").take()}),  // no greeting
      base::store::encode({Kind::Answer, 0, std::string(32, 'x')}),  // an answer to no challenge
      base::store::encode({Kind::Hello, 0, "short"}),
      hello + base::store::encode({Kind::Answer, 0, std::string(32, 'x')}),  // a wrong proof
      base::store::encode({Kind::Hello, 0, Writer().u32(1).take()}),
      hello.substr(0, hello.size() - 1)};  // half a greeting
  for (const auto& opening : openings) {
    base::Socket stranger = base::Socket::connect(server_->endpoint(), soon());
    stranger.send(opening.data(), opening.size(), soon());
  }
  for (const auto& opening : openings) {
    base::Socket stranger = base::Socket::connect(server_->endpoint(), soon());
    stranger.send(opening.data(), opening.size(), soon());
    if (&opening == &openings.back()) {
      break;  // that one is still being waited for, by design
    }
    char byte = 0;
    EXPECT_THROW(
        {
          for (;;) {  // a challenge or a refusal may come first; then the server hangs up
            stranger.receive(&byte, 1, soon());
          }
        },
        IoError);
  }
  EXPECT_EQ(client->get("k", soon()), "v");
}

TEST_F(StoreTest, RunningOutOfDescriptorsTurnsStrangersAwayAndServesTheRest) {
  const auto client = connect();
  client->set("k", "v", soon());
  base::Socket stranger(base::UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  rlimit old{};
  ::getrlimit(RLIMIT_NOFILE, &old);
  rlimit tight = old;
  tight.rlim_cur = static_cast<rlim_t>(stranger.fd()) + 1;
  ::setrlimit(RLIMIT_NOFILE, &tight);
  std::vector<base::UniqueFd>
      fillers;  // server and test are one process: no number is left for either
  for (int fd = ::open("/dev/null", O_RDONLY); fd >= 0; fd = ::open("/dev/null", O_RDONLY)) {
    fillers.emplace_back(fd);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_->endpoint().port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Only system calls until the limit is back: sanitizers themselves need a descriptor to look at
  // objects.
  const int connected =
      ::connect(stranger.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  pollfd entry{stranger.fd(), POLLIN, 0};
  const int ready = ::poll(&entry, 1, 20000);
  fillers.clear();
  ::setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_EQ(connected, 0);
  EXPECT_EQ(ready, 1);
  char byte = 0;
  EXPECT_THROW(stranger.receive(&byte, 1, soon()), IoError) << "it was hung up on";
  EXPECT_EQ(client->get("k", soon()), "v") << "who is in is served";
  EXPECT_NO_THROW(connect()) << "and afterwards all is as before";
}

// A server that serves only while it is told to.
class PausedServer {
 public:
  ~PausedServer() {
    ends_ = true;
    thread_.join();
  }
  base::StoreClientOptions client_options() const {
    return {.server = server_.endpoint(), .job_id = "job", .secret = "secret"};
  }
  void pause() {
    serves_ = false;
    while (!paused_) {
    }
  }
  void go_on() { serves_ = true; }

 private:
  base::StoreServer server_{{.job_id = "job", .secret = "secret"}};
  std::atomic<bool> serves_{true}, ends_{false}, paused_{false};
  std::thread thread_{[this] {
    while (!ends_) {
      paused_ = !serves_;
      pollfd entry{server_.fd(), POLLIN, 0};
      ::poll(&entry, 1, 1);
      if (serves_ && !paused_) {
        server_.serve();
      }
    }
  }};
};

const std::string kLarge(15 << 20, 'x');  // more than the kernel buffers

TEST(StoreClient, ARequestThatWasCutOffInTheMiddleLeavesTheConnectionWhole) {
  PausedServer server;
  base::StoreClient client(server.client_options(), soon());
  server.pause();
  EXPECT_THROW(client.set("large", kLarge, base::Deadline::after(50ms)), TimeoutError);
  EXPECT_THROW(client.set("never", "sent", base::Deadline::after(10ms)), TimeoutError);
  EXPECT_THROW(client.get("large", base::Deadline::after(10ms)), TimeoutError);
  server.go_on();
  client.set("next", "value", soon());
  EXPECT_EQ(client.get("next", soon()), "value");
  EXPECT_EQ(client.get("large", soon()), kLarge) << "what was begun is finished";
  EXPECT_EQ(client.try_get("never", soon()), std::nullopt) << "what was not is not";
}

TEST(StoreClient, WhoWaitsForItsTurnToSendWaitsNoLongerThanItsDeadline) {
  PausedServer server;
  base::StoreClient client(server.client_options(), soon());
  server.pause();
  std::atomic<bool> is_over{false};
  std::thread sender([&] {
    EXPECT_THROW(client.set("large", kLarge, base::Deadline::after(2s)), TimeoutError);
    is_over = true;
  });
  std::string told;
  while (!is_over && told.find("what others send it") == std::string::npos) {
    try {
      client.set("small", "value", base::Deadline::after(1ms));
    } catch (const TimeoutError& error) {
      told = error.what();
    }
  }
  EXPECT_THAT(told, HasSubstr("does not read what others send it"));
  EXPECT_FALSE(is_over) << "it waited for the other one";
  sender.join();
  server.go_on();
}

TEST_F(StoreTest, ARecordedGreetingIsWorthNothingLater) {
  // What a client that knows the secret would send to this very server, replayed: the server's
  // nonce differs.
  const base::Nonce client_nonce = base::random_nonce();
  const base::Nonce old_server_nonce = base::random_nonce();
  const base::Proof old_proof =
      base::make_proof("secret", "client", "job", client_nonce, old_server_nonce);
  base::Socket replay = base::Socket::connect(server_->endpoint(), soon());
  Writer hello;
  hello.u32(base::store::kMagic)
      .u16(base::store::kVersion)
      .bytes(client_nonce.data(), 32)
      .text("job");
  const std::string frames =
      base::store::encode({Kind::Hello, 0, hello.take()}) +
      base::store::encode({Kind::Answer, 0, std::string(old_proof.begin(), old_proof.end())});
  replay.send(frames.data(), frames.size(), soon());
  std::string received;
  char byte = 0;
  try {
    for (;;) {
      replay.receive(&byte, 1, soon());
      received.push_back(byte);
    }
  } catch (const IoError&) {
  }
  EXPECT_THAT(received, HasSubstr("does not know the job's secret"));
}

TEST(StoreProtocol, FramesSurviveAnyCut) {
  const std::string frame = base::store::encode({Kind::Set, 42, "body"});
  std::string buffer;
  Message message;
  for (const char byte : frame) {
    EXPECT_FALSE(base::store::decode(buffer, 100, message));
    buffer.push_back(byte);
  }
  EXPECT_TRUE(base::store::decode(buffer, 100, message));
  EXPECT_EQ(message.id, 42u);
  EXPECT_EQ(message.body, "body");
  EXPECT_TRUE(buffer.empty());
}

TEST(StoreProtocol, SizesAreCheckedBeforeTheyAreBelieved) {
  Message message;
  std::string large = base::store::encode({Kind::Set, 1, std::string(100, 'x')});
  EXPECT_THROW(base::store::decode(large, 50, message), FormatError);
  base::store::Reader lying(
      std::string_view("\xff\xff\xff\x7f"
                       "abc",
                       7));
  EXPECT_THROW(lying.text(), FormatError);
  base::store::Reader rest("abc");
  EXPECT_THROW(rest.end(), FormatError);
}

TEST(StoreTable, IsFullAtItsLimitAndGivesRoomBack) {
  base::store::Table table(100);
  const auto set = [&](const std::string& key, size_t bytes) {
    const Message request{Kind::Set, 1, Writer().text(key).text(std::string(bytes, 'x')).take()};
    return table.handle(1, request).back().message.kind;
  };
  EXPECT_EQ(set("a", 60), Kind::Done);
  EXPECT_EQ(set("b", 60), Kind::Error);
  EXPECT_EQ(set("a", 90), Kind::Done) << "the old value's room counts";
  table.handle(1, {Kind::Erase, 1, Writer().text("a").take()});
  EXPECT_EQ(set("b", 60), Kind::Done);
}

TEST(StoreTable, AWaitThatWasCancelledOrWhoseClientLeftIsForgotten) {
  base::store::Table table(1000);
  const Message get{Kind::Get, 7, Writer().text("k").take()};
  EXPECT_TRUE(table.handle(1, get).empty());
  EXPECT_TRUE(table.handle(2, get).empty());
  EXPECT_TRUE(table.handle(3, get).empty());
  EXPECT_TRUE(table.handle(2, {Kind::Cancel, 0, Writer().i64(7).take()}).empty());
  table.drop(3);
  const auto out = table.handle(9, {Kind::Set, 1, Writer().text("k").text("v").take()});
  ASSERT_EQ(out.size(), 2u) << "the one waiter left, and the setter";
  EXPECT_EQ(out[0].to, 1u);
  EXPECT_EQ(out[0].message.id, 7u);
}

TEST(StoreTable, UnknownAndTornRequestsThrow) {
  base::store::Table table(1000);
  EXPECT_THROW(table.handle(1, {static_cast<Kind>(200), 1, {}}), FormatError);
  EXPECT_THROW(table.handle(1, {Kind::Set, 1, Writer().text("k").take()}), FormatError);
  EXPECT_THROW(table.handle(1, {Kind::Get, 1, Writer().text(std::string(5000, 'k')).take()}),
               FormatError);
}

}  // namespace
}  // namespace lockstep
