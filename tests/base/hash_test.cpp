#include "base/hash.h"

#include <array>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

uint64_t fnv1a(std::string_view text) {
  base::Fnv1a hash;
  hash.add(text);
  return hash.value();
}

// http://www.isthe.com/chongo/tech/comp/fnv/, the table of test vectors.
TEST(Fnv1a, HasTheValuesOfItsAuthors) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325u);
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(base::fnv1a_32(""), 0x811c9dc5u);
  EXPECT_EQ(base::fnv1a_32("a"), 0xe40c292cu);
  EXPECT_EQ(base::fnv1a_32("foobar"), 0xbf9cf968u);
}

TEST(Fnv1a, TakesBytesTextsAndNumbersAlike) {
  base::Fnv1a bytes;
  bytes.add(std::as_bytes(std::span("ab\0\0\0\0\0\0", 8)));
  base::Fnv1a text;
  text.add("ab");
  text.add(std::string_view("\0\0\0\0\0\0", 6));
  base::Fnv1a number;
  number.add(uint64_t{0x6261});
  EXPECT_EQ(bytes.value(), text.value());
  EXPECT_EQ(bytes.value(), number.value());
  EXPECT_NE(base::Fnv1a(7).value(), base::Fnv1a().value());
}

// XXH3_64bits and `xxhsum -H2` of xxHash 0.8.
TEST(Xxh3, HasTheValuesOfItsAuthor) {
  EXPECT_EQ(base::xxh3({}), 0x2d06800538d394c2u);
  EXPECT_EQ(base::xxh3_hex(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(base::xxh3_hex("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(Xxh3, IsTheSameInPieces) {
  std::string text(100'003, '\0');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(i * 7 + i / 251);
  }
  base::Xxh3 hash;
  for (size_t at = 0; at < text.size(); at += 1009) {
    hash.add(std::string_view(text).substr(at, 1009));
  }
  EXPECT_EQ(hash.hex(), base::xxh3_hex(text));
  EXPECT_NE(hash.hex(), base::xxh3_hex(text.substr(1)));
}

}  // namespace
}  // namespace lockstep
