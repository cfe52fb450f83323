#include "base/digest.h"

#include <gtest/gtest.h>

#include "base/sidecar.h"

namespace lockstep {
namespace {

constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

// FIPS 180-2, appendix B, and RFC 1321, appendix A.5.
TEST(Digest, HasTheValuesOfTheStandards) {
  EXPECT_EQ(base::sha256_hex("abc"), kAbc);
  EXPECT_EQ(base::sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(base::md5_hex({}), "d41d8cd98f00b204e9800998ecf8427e");
}

TEST(Digest, IsTheSameInPiecesAndFromASource) {
  const std::string text(2'500'001, 'x');
  base::Digest digest = base::Digest::sha256();
  digest.add(text.substr(0, 1000));
  digest.add(text.substr(1000));
  const std::string whole = base::sha256_hex(text);
  EXPECT_EQ(digest.hex(), whole);
  EXPECT_EQ(base::sha256_of(base::MemorySource(std::as_bytes(std::span(text)))), whole);
}

TEST(ParseSidecar, ReadsALineOfSha256sum) {
  const std::string abc = kAbc;
  for (const std::string& line : {abc + "  a b\n", abc + " *a b", "BA" + abc.substr(2) + "  a b"}) {
    const auto sidecar = base::parse_sidecar(line);
    ASSERT_TRUE(sidecar) << line;
    EXPECT_EQ(sidecar->digest, abc) << line;
    EXPECT_EQ(sidecar->name, "a b") << line;
  }
}

TEST(ParseSidecar, HasNoNameWhereThereIsNotJustOneLine) {
  const std::string abc = kAbc;
  for (const std::string& text :
       {abc, abc + "\n", abc + "\tname", abc + " name", abc + "  a\n" + abc + "  b\n"}) {
    const auto sidecar = base::parse_sidecar(text);
    ASSERT_TRUE(sidecar) << text;
    EXPECT_EQ(sidecar->digest, abc);
    EXPECT_FALSE(sidecar->name) << text;
  }
}

TEST(ParseSidecar, RefusesWhatIsNoDigest) {
  const std::string abc = kAbc;
  for (const std::string& text : {std::string(), abc.substr(1), abc + "0  a", " " + abc + "  a",
                                  "x" + abc.substr(1) + "  a", std::string("no digits")}) {
    EXPECT_FALSE(base::parse_sidecar(text)) << text;
  }
}

}  // namespace
}  // namespace lockstep
