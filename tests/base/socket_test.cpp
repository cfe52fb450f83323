#include "base/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

base::Socket accept_one(base::Listener& listener) {
  pollfd entry{listener.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 10000), 1);
  return listener.accept();
}

TEST(Endpoint, ParsesAndPrints) {
  const base::Endpoint plain = base::Endpoint::parse("10.0.1.10:29400", "x");
  EXPECT_EQ(plain.host, "10.0.1.10");
  EXPECT_EQ(plain.port, 29400);
  EXPECT_EQ(plain.text(), "10.0.1.10:29400");
  EXPECT_EQ(base::Endpoint::parse("[::1]:80", "x").host, "::1");
  EXPECT_EQ(base::Endpoint::parse("[::1]:80", "x").text(), "[::1]:80");
}

TEST(Endpoint, RefusesWhatIsNotOne) {
  for (const char* bad :
       {"", "host", "host:", ":80", "host:x", "host:65536", "::1:80", "host:-1"}) {
    try {
      base::Endpoint::parse(bad, "LOCKSTEP_STORE");
      FAIL() << bad;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("LOCKSTEP_STORE"));
    }
  }
}

TEST(Socket, CarriesBytesBothWays) {
  base::Listener listener({"127.0.0.1", 0});
  EXPECT_NE(listener.endpoint().port, 0);
  base::Socket client = base::Socket::connect(listener.endpoint(), base::Deadline::after(10s));
  base::Socket server = accept_one(listener);
  client.send("hello", 5, base::Deadline::after(10s));
  char text[6] = {};
  server.receive(text, 5, base::Deadline::after(10s));
  EXPECT_STREQ(text, "hello");
  EXPECT_EQ(client.local_host(), "127.0.0.1");
}

TEST(Socket, IsWatchedAsLongAsItIsTold) {
  base::Listener listener({"127.0.0.1", 0});
  base::Socket client = base::Socket::connect(listener.endpoint(), base::Deadline::after(10s));
  const auto option = [&](int name) {
    int value = 0;
    socklen_t size = sizeof value;
    ::getsockopt(client.fd(), IPPROTO_TCP, name, &value, &size);
    return value;
  };
  for (const auto& [time, ms] :
       {std::pair(std::chrono::milliseconds(base::kDefaultLostAfter), 3000), std::pair(1ms, 501),
        std::pair(30000ms, 30500), std::pair(86400000ms, 86400500)}) {
    client.watch_liveness(time);
    EXPECT_EQ(option(TCP_USER_TIMEOUT), ms);
    const int probed_for = option(TCP_KEEPIDLE) + option(TCP_KEEPINTVL) * option(TCP_KEEPCNT);
    EXPECT_LE(probed_for, std::max(3, ms / 1000 + option(TCP_KEEPINTVL)));
    EXPECT_GE(probed_for, ms / 1000 - option(TCP_KEEPINTVL));
  }
}

TEST(Socket, SilenceIsATimeoutAndAHangUpAnError) {
  base::Listener listener({"127.0.0.1", 0});
  base::Socket client = base::Socket::connect(listener.endpoint(), base::Deadline::after(10s));
  base::Socket server = accept_one(listener);
  char byte = 0;
  EXPECT_THROW(client.receive(&byte, 1, base::Deadline::after(20ms)), TimeoutError);
  server = base::Socket();
  EXPECT_THROW(client.receive(&byte, 1, base::Deadline::after(10s)), IoError);
}

TEST(Socket, APeerThatDoesNotReadIsATimeoutForTheSender) {
  base::Listener listener({"127.0.0.1", 0});
  base::Socket client = base::Socket::connect(listener.endpoint(), base::Deadline::after(10s));
  base::Socket server = accept_one(listener);
  const std::string large(64u << 20, 'x');
  EXPECT_THROW(client.send(large.data(), large.size(), base::Deadline::after(100ms)), TimeoutError);
}

TEST(Socket, ConnectWaitsForAServerThatIsStarting) {
  const base::Endpoint later =
      base::Listener({"127.0.0.1", 0}).endpoint();  // free again, and known
  std::thread server;
  EXPECT_THROW(base::Socket::connect(later, base::Deadline::after(30ms)), TimeoutError);
  base::Listener listener(later);
  EXPECT_TRUE(static_cast<bool>(base::Socket::connect(later, base::Deadline::after(10s))));
}

TEST(Socket, ConnectAgainDoesNotWaitForAServerThatIsGone) {
  base::Endpoint endpoint;
  {
    const base::Listener listener({"127.0.0.1", 0});
    endpoint = listener.endpoint();
    EXPECT_TRUE(base::Socket::connect_again(endpoint, base::Deadline::after(20s)));
  }
  const auto begin = base::Clock::now();
  EXPECT_THAT(
      [&] { base::Socket::connect_again(endpoint, base::Deadline::after(20s)); },
      ::testing::ThrowsMessage<PeerLostError>(HasSubstr("nobody listens on " + endpoint.text())));
  EXPECT_LT(base::Clock::now() - begin, 10s);
}

TEST(Socket, ShutdownWakesAReader) {
  base::Listener listener({"127.0.0.1", 0});
  base::Socket client = base::Socket::connect(listener.endpoint(), base::Deadline::after(10s));
  base::Socket server = accept_one(listener);
  std::thread reader([&] {
    char byte = 0;
    EXPECT_THROW(client.receive(&byte, 1, base::Deadline::never()), IoError);
  });
  client.shutdown();
  reader.join();
}

TEST(Listener, APortInUseIsNamed) {
  const base::Listener first({"127.0.0.1", 0});
  try {
    const base::Listener second(first.endpoint());
    FAIL();
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), HasSubstr(first.endpoint().text()));
    EXPECT_THAT(error.what(), HasSubstr("in use"));
  }
}

TEST(Socket, ANameThatDoesNotResolveIsNamed) {
  EXPECT_THROW(base::Socket::connect({"no.such.host.invalid", 1}, base::Deadline::after(10s)),
               IoError);
}

}  // namespace
}  // namespace lockstep
