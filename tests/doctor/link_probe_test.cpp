#include "doctor/link_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/secret.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

constexpr auto kTimeout = std::chrono::milliseconds(5000);

bool is_sent_away(Socket& socket) {
  char byte = 0;
  try {
    socket.receive(&byte, 1, Deadline::after(kTimeout));
    return false;
  } catch (const TimeoutError&) {
    return false;
  } catch (const IoError&) {
    return true;
  }
}

TEST(LinkProbe, MeasuresALink) {
  const ProbeListener listener("127.0.0.1", make_secret());
  const LinkSpeed speed = measure_link({listener.endpoint(), listener.token()});
  EXPECT_GT(speed.rtt_us, 0);
  EXPECT_GT(speed.gb_per_s, 0);
}

TEST(LinkProbe, SaysOfEachWhyItCannotBeReached) {
  const ProbeListener one("127.0.0.1", make_secret());
  const ProbeListener two("127.0.0.1", make_secret());
  uint16_t closed_port = 0;
  {
    const Listener gone({.host = "127.0.0.1"});
    closed_port = gone.endpoint().port;
  }
  const Listener silent({.host = "127.0.0.1"});
  const std::vector<ProbeTarget> targets{
      {one.endpoint(), one.token()},
      {two.endpoint(), one.token()},
      {{"127.0.0.1", closed_port}, one.token()},
      {{"not an address", 1}, one.token()},
      {silent.endpoint(), one.token()},
      {two.endpoint(), two.token()},
  };
  EXPECT_THAT(try_links(targets, std::chrono::milliseconds(300)),
              ElementsAre("", "something else than lockstep answers there", "Connection refused",
                          "not a numeric address", "no answer within 300 ms", ""));
}

TEST(LinkProbe, StrangersAreSentAwayAndCostNothing) {
  const ProbeListener listener("127.0.0.1", make_secret());
  const Deadline deadline = Deadline::after(kTimeout);
  for (const std::string& greeting : {std::string(65, 'x'), listener.token() + "z",
                                      listener.token() + "ee", std::string(100000, '\0')}) {
    Socket stranger = Socket::connect(listener.endpoint(), deadline);
    stranger.send(greeting.data(), greeting.size(), deadline);
    EXPECT_TRUE(is_sent_away(stranger));
  }
  const Socket mute = Socket::connect(listener.endpoint(), deadline);
  EXPECT_THAT(try_links({{listener.endpoint(), listener.token()}}, kTimeout), ElementsAre(""));
}

TEST(LinkProbe, AnotherListenerIsNotMeasured) {
  const ProbeListener listener("127.0.0.1", make_secret());
  EXPECT_THROW(measure_link({listener.endpoint(), make_secret()}), IoError);
}

}  // namespace
}  // namespace lockstep
