#include "comm/c10d/c10d_store.h"

#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/store.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

std::vector<uint8_t> bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

TEST(C10dStore, BehavesAsLibtorchExpects) {
  const Store host = Store::host({.job_id = "job", .secret = "s"});
  auto store = c10::make_intrusive<comm::C10dStore>(host.client(), "p/", 20000ms);
  store->set("k", bytes("v"));
  EXPECT_EQ(store->get("k"), bytes("v"));
  EXPECT_EQ(host.client()->get("p/k", base::Deadline::after(1s)), "v") << "under its prefix";
  EXPECT_TRUE(store->check({"k"}));
  EXPECT_FALSE(store->check({"k", "none"}));
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_EQ(store->compareSet("c", bytes(""), bytes("x")), bytes("x"));
  store->append("k", bytes("w"));
  EXPECT_EQ(store->clone()->get("k"), bytes("vw"));
  EXPECT_EQ(store->getNumKeys(), 3);
  EXPECT_TRUE(store->deleteKey("k"));
  store->wait({"n", "c"});
  EXPECT_THROW(store->wait({"none"}, 20ms), TimeoutError);
}

}  // namespace
}  // namespace lockstep
