#include "formats/sidecar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.h"
#include "formats/support.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr const char* kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

std::string read(const std::string& line, const std::string& file = "folder/abc.bin") {
  return formats::read_sidecar(test::source_of(line), file);
}

TEST(Sidecar, IsTheLineOfSha256sum) {
  const std::string digest = kAbc;
  EXPECT_EQ(read(digest + "  abc.bin\n"), digest);
  EXPECT_EQ(read(digest + " *abc.bin"), digest);
  EXPECT_EQ(read(digest + "  elsewhere/abc.bin\n"), digest);
  EXPECT_EQ(read("BA" + digest.substr(2) + "  abc.bin\n"), digest);
}

TEST(Sidecar, IsComparedWithEveryByteOfTheFile) {
  formats::verify_sidecar(test::source_of("abc"), kAbc);
  EXPECT_THAT(test::refusal([] { formats::verify_sidecar(test::source_of("abd"), kAbc); }),
              HasSubstr("and its sidecar says ba7816bf"));
  const std::string large(3'000'000, 'x');
  formats::verify_sidecar(test::source_of(large), base::sha256_hex(large));
}

}  // namespace
}  // namespace lockstep
