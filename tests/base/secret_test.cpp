#include "base/secret.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Secret, EachIsNewAndLong) {
  EXPECT_EQ(base::make_secret().size(), 64u);
  EXPECT_NE(base::make_secret(), base::make_secret());
  EXPECT_NE(base::make_job_id(), base::make_job_id());
  EXPECT_NE(base::random_nonce(), base::random_nonce());
}

TEST(Secret, OneThatCanBeGuessedIsTold) {
  for (int i = 0; i < 1000; ++i) {
    const std::string hex = base::make_secret();
    EXPECT_EQ(base::secret_weakness(hex), "") << hex;
    EXPECT_EQ(base::secret_weakness(hex.substr(0, 32)), "")
        << "128 bits, as openssl rand -hex 16 makes";
    EXPECT_NE(base::secret_weakness(hex.substr(0, 31)), "") << hex;
  }
  EXPECT_EQ(base::secret_weakness("f3M0b1ZxXqLr7dYtP9wKjA"), "") << "22 letters of base64";
  EXPECT_EQ(base::secret_weakness("0123456789abcdef"), "16 hexadecimal digits are 64 bits at most");
  EXPECT_EQ(base::secret_weakness("12345678901234567890123456789012"),
            "32 digits are 106 bits at most");
  EXPECT_EQ(base::secret_weakness("password12345678"), "16 letters are 82 bits at most");
  EXPECT_EQ(base::secret_weakness(std::string(40, 'a')),
            "40 hexadecimal digits are 103 bits at most");
  EXPECT_EQ(base::secret_weakness("hunter2hunter2hunter2hunter2hunter2"),
            "its 35 letters repeat themselves");
  EXPECT_NE(base::secret_weakness(""), "");
}

TEST(Proof, DependsOnEverythingItIsMadeOf) {
  const base::Nonce a = base::random_nonce();
  const base::Nonce b = base::random_nonce();
  const base::Proof proof = base::make_proof("secret", "client", "job", a, b);
  EXPECT_TRUE(base::same_proof(proof, base::make_proof("secret", "client", "job", a, b)));
  EXPECT_FALSE(base::same_proof(proof, base::make_proof("other", "client", "job", a, b)));
  EXPECT_FALSE(base::same_proof(proof, base::make_proof("secret", "server", "job", a, b)));
  EXPECT_FALSE(base::same_proof(proof, base::make_proof("secret", "client", "job2", a, b)));
  EXPECT_FALSE(base::same_proof(proof, base::make_proof("secret", "client", "job", b, a)));
  EXPECT_FALSE(base::same_proof(proof, base::make_proof("secret", "client", "job", a, a)));
}

TEST(Proof, OneWrongBitAnywhereIsEnough) {
  const base::Proof proof = base::make_proof("secret", "client", "job", {}, {});
  for (size_t byte = 0; byte < proof.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      base::Proof other = proof;
      other[byte] = static_cast<uint8_t>(other[byte] ^ (1 << bit));
      EXPECT_FALSE(base::same_proof(proof, other)) << "byte " << byte << ", bit " << bit;
    }
  }
}

TEST(Proof, PartsCannotBeMovedAcrossTheirBorder) {
  const base::Nonce n{};
  EXPECT_FALSE(base::same_proof(base::make_proof("s", "client", "job", n, n),
                                base::make_proof("s", "clientj", "ob", n, n)));
}

}  // namespace
}  // namespace lockstep
