#include "formats/weight_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/support.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

formats::WeightFile read(std::string_view bytes) {
  return formats::read_weight_file(test::source_of(bytes));
}

TEST(WeightFile, IsRecognisedByItsFirstBytes) {
  const std::pair<const char*, formats::WeightFormat> cases[] = {
      {"small.safetensors", formats::WeightFormat::Safetensors},
      {"state_dict.pth", formats::WeightFormat::TorchZip},
      {"legacy.pth", formats::WeightFormat::TorchLegacy},
      {"tar.pth", formats::WeightFormat::TorchTar},
      {"array.npy", formats::WeightFormat::Npy},
      {"arrays.npz", formats::WeightFormat::Npz},
  };
  for (const auto& [name, format] : cases) {
    const formats::WeightFile file = read(test::golden(name));
    EXPECT_EQ(file.format, format) << name;
    EXPECT_FALSE(file.tensors.empty()) << name;
  }
}

TEST(WeightFile, OfNoKnownKindIsRefusedWithWhatIsKnown) {
  for (const char* text : {"", "abc",
                           "\x7f"
                           "ELF and more bytes",
                           "{\"a\": 1}"}) {
    EXPECT_THAT(test::refusal([&] { read(text); }),
                HasSubstr("no known file of weights: safetensors, torch.save (zip, legacy, tar)"));
  }
}

TEST(WeightFile, CarriesTheChecksumsThatItsFormatHas) {
  EXPECT_THAT(read(test::golden("small.safetensors")).checksums, IsEmpty());
  EXPECT_THAT(read(test::golden("legacy.pth")).checksums, IsEmpty());
  EXPECT_THAT(read(test::golden("no_crc.pth")).checksums, IsEmpty());
  for (const char* name : {"state_dict.pth", "arrays.npz"}) {
    const std::string bytes = test::golden(name);
    const base::MemorySource source = test::source_of(bytes);
    const formats::WeightFile file = formats::read_weight_file(source);
    ASSERT_GT(file.checksums.size(), 1u) << name;
    uint64_t end = 0;
    for (const formats::WeightChecksum& range : file.checksums) {
      EXPECT_GE(range.offset_bytes, end);
      end = range.offset_bytes + range.size_bytes;
      EXPECT_LE(end, bytes.size());
    }
    formats::verify_checksums(source, file);
  }
}

TEST(WeightFile, ADamagedRecordIsNamedWithItsTensors) {
  std::string bytes = test::golden("arrays.npz");
  const formats::WeightFile file = read(bytes);
  bytes[file.tensors.at(0).offset_bytes] ^= 1;
  EXPECT_THAT(test::refusal([&] { formats::verify_checksums(test::source_of(bytes), file); }),
              HasSubstr("tensor \"ids\") has the CRC-32"));
}

TEST(WeightFile, ADamagedByteOfALargeTensorIsFoundWhereverItIs) {
  constexpr size_t kBytes = 1'600'000;
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (400000,), }";
  header.resize(117, ' ');
  header += '\n';
  const std::string array = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header;
  std::string bytes = test::zip_of({{"large.npy", array + std::string(kBytes, 'x')}});
  const formats::WeightFile file = read(bytes);
  ASSERT_EQ(file.tensors.size(), 1u);
  ASSERT_EQ(file.tensors[0].size_bytes, kBytes);
  formats::verify_checksums(test::source_of(bytes), file);
  for (const size_t place : {size_t{0}, size_t{100'001}, size_t{1 << 20}, kBytes - 1}) {
    bytes[file.tensors[0].offset_bytes + place] ^= 1;
    EXPECT_THAT(test::refusal([&] { formats::verify_checksums(test::source_of(bytes), file); }),
                HasSubstr("tensor \"large\") has the CRC-32"))
        << "byte " << place;
    bytes[file.tensors[0].offset_bytes + place] ^= 1;
  }
}

TEST(WeightFile, EveryRecordIsVerifiedAlsoOneWithoutWeights) {
  std::string bytes = test::golden("state_dict.pth");
  const formats::WeightFile file = read(bytes);
  const size_t name = bytes.find("serialization_id");
  ASSERT_NE(name, std::string::npos);
  const size_t digits = bytes.find_first_of("0123456789", name + 16);
  bytes[digits] ^= 1;
  EXPECT_THAT(test::refusal([&] { formats::verify_checksums(test::source_of(bytes), file); }),
              HasSubstr("serialization_id\" (offset"));
}

}  // namespace
}  // namespace lockstep
