#include "base/secret.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Secret, EachIsNewAndLong) {
  EXPECT_EQ(make_secret().size(), 64u);
  EXPECT_NE(make_secret(), make_secret());
  EXPECT_NE(make_job_id(), make_job_id());
  EXPECT_NE(random_nonce(), random_nonce());
}

TEST(Proof, DependsOnEverythingItIsMadeOf) {
  const Nonce a = random_nonce();
  const Nonce b = random_nonce();
  const Proof proof = make_proof("secret", "client", "job", a, b);
  EXPECT_TRUE(same_proof(proof, make_proof("secret", "client", "job", a, b)));
  EXPECT_FALSE(same_proof(proof, make_proof("other", "client", "job", a, b)));
  EXPECT_FALSE(same_proof(proof, make_proof("secret", "server", "job", a, b)));
  EXPECT_FALSE(same_proof(proof, make_proof("secret", "client", "job2", a, b)));
  EXPECT_FALSE(same_proof(proof, make_proof("secret", "client", "job", b, a)));
  EXPECT_FALSE(same_proof(proof, make_proof("secret", "client", "job", a, a)));
}

TEST(Proof, PartsCannotBeMovedAcrossTheirBorder) {
  const Nonce n{};
  EXPECT_FALSE(
      same_proof(make_proof("s", "client", "job", n, n), make_proof("s", "clientj", "ob", n, n)));
}

}  // namespace
}  // namespace lockstep
