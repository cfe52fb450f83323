#include "doctor/link_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/secret.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

constexpr auto kTimeout = std::chrono::milliseconds(5000);

bool is_sent_away(base::Socket& socket) {
  char byte = 0;
  try {
    socket.receive(&byte, 1, base::Deadline::after(kTimeout));
    return false;
  } catch (const TimeoutError&) {
    return false;
  } catch (const IoError&) {
    return true;
  }
}

TEST(LinkProbe, MeasuresALink) {
  const doctor::ProbeListener listener("127.0.0.1", base::make_secret());
  const doctor::LinkSpeed speed = doctor::measure_link({listener.endpoint(), listener.token()});
  EXPECT_GT(speed.rtt_us, 0);
  EXPECT_GT(speed.gb_per_s, 0);
}

TEST(LinkProbe, SaysOfEachWhyItCannotBeReached) {
  const doctor::ProbeListener one("127.0.0.1", base::make_secret());
  const doctor::ProbeListener two("127.0.0.1", base::make_secret());
  uint16_t closed_port = 0;
  {
    const base::Listener gone({.host = "127.0.0.1"});
    closed_port = gone.endpoint().port;
  }
  const base::Listener silent({.host = "127.0.0.1"});
  const std::vector<doctor::ProbeTarget> targets{
      {one.endpoint(), one.token()},
      {two.endpoint(), one.token()},
      {{"127.0.0.1", closed_port}, one.token()},
      {{"not an address", 1}, one.token()},
      {silent.endpoint(), one.token()},
      {two.endpoint(), two.token()},
  };
  EXPECT_THAT(doctor::try_links(targets, std::chrono::milliseconds(300)),
              ElementsAre("", "something else than lockstep answers there", "Connection refused",
                          "not a numeric address", "no answer within 300 ms", ""));
}

TEST(LinkProbe, StrangersAreSentAwayAndCostNothing) {
  const doctor::ProbeListener listener("127.0.0.1", base::make_secret());
  const base::Deadline deadline = base::Deadline::after(kTimeout);
  for (const std::string& greeting : {std::string(65, 'x'), listener.token() + "z",
                                      listener.token() + "ee", std::string(100000, '\0')}) {
    base::Socket stranger = base::Socket::connect(listener.endpoint(), deadline);
    stranger.send(greeting.data(), greeting.size(), deadline);
    EXPECT_TRUE(is_sent_away(stranger));
  }
  const base::Socket mute = base::Socket::connect(listener.endpoint(), deadline);
  EXPECT_THAT(doctor::try_links({{listener.endpoint(), listener.token()}}, kTimeout),
              ElementsAre(""));
}

TEST(LinkProbe, AnotherListenerIsNotMeasured) {
  const doctor::ProbeListener listener("127.0.0.1", base::make_secret());
  EXPECT_THROW(doctor::measure_link({listener.endpoint(), base::make_secret()}), IoError);
}

}  // namespace
}  // namespace lockstep
