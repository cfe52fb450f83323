#include "formats/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/support.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string llmc(uint32_t magic, uint32_t version, uint32_t num_tokens, size_t data_bytes) {
  std::string bytes;
  for (const uint32_t number : {magic, version, num_tokens}) {
    formats::append_number<uint32_t>(bytes, number);
  }
  bytes.resize(1024);
  return bytes + std::string(data_bytes, 't');
}

TEST(TokenFile, ReadsBothKinds) {
  const formats::TokenFile gpt2 =
      formats::read_token_file(test::source_of(llmc(20240520, 1, 3, 6)));
  EXPECT_EQ(gpt2.dtype, formats::DType::U16);
  EXPECT_EQ(gpt2.offset_bytes, 1024u);
  EXPECT_EQ(gpt2.num_tokens, 3u);
  EXPECT_EQ(formats::read_token_file(test::source_of(llmc(20240801, 7, 3, 12))).dtype,
            formats::DType::U32);
  const formats::TokenFile plain = formats::read_token_file(test::source_of("ab"));
  EXPECT_EQ(plain.offset_bytes, 0u);
  EXPECT_EQ(plain.num_tokens, 1u);
}

TEST(TokenWriter, ItsFilesAreReadBack) {
  const test::TempFolder folder;
  const std::pair<formats::TokenLayout, size_t> cases[] = {
      {formats::TokenLayout::NanoGpt, 6},
      {formats::TokenLayout::LlmcGpt2, 1030},
      {formats::TokenLayout::LlmcLlama3, 1036}};
  for (const auto& [layout, size] : cases) {
    formats::TokenWriter writer(folder.at("tokens.bin"), layout, 3);
    writer.append(std::vector<uint32_t>{1, 50256});
    writer.append(std::vector<uint32_t>{65535});
    writer.finish();
    const std::string bytes = test::file_text(folder.at("tokens.bin"));
    ASSERT_EQ(bytes.size(), size);
    const formats::TokenFile file = formats::read_token_file(test::source_of(bytes));
    EXPECT_EQ(file.num_tokens, 3u);
    const size_t second = file.offset_bytes + static_cast<size_t>(formats::bits_of(file.dtype)) / 8;
    EXPECT_EQ(formats::number_at<uint16_t>(bytes, second), 50256);
  }
}

TEST(TokenWriter, RefusesWhatDoesNotFit) {
  const test::TempFolder folder;
  const std::string path = folder.at("tokens.bin");
  formats::TokenWriter writer(path, formats::TokenLayout::LlmcGpt2, 2);
  writer.append(std::vector<uint32_t>{7});
  EXPECT_THAT([&] { writer.append(std::vector<uint32_t>{65536}); },
              ThrowsMessage<UsageError>(HasSubstr("token 1 has the id 65536")));
  EXPECT_THAT([&] { writer.finish(); },
              ThrowsMessage<UsageError>(HasSubstr("2 tokens were promised and 1 given")));
  EXPECT_THAT([&] { formats::TokenWriter(path, formats::TokenLayout::LlmcGpt2, 1ull << 31); },
              ThrowsMessage<UsageError>(HasSubstr("fewer than 2^31")));
  formats::TokenWriter(path, formats::TokenLayout::NanoGpt, 1ull << 31);
}

}  // namespace
}  // namespace lockstep
