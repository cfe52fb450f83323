#include "formats/fuzz.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/support.h"
#include "formats/zip_reader.h"

namespace lockstep::test {
namespace {

// A few of the changes that a fuzzer makes, the same ones in every run.
void mutate(std::string& bytes, std::mt19937_64& random) {
  const size_t num_changes = 1 + random() % 4;
  for (size_t i = 0; i < num_changes && !bytes.empty(); ++i) {
    const size_t at = random() % bytes.size();
    const size_t length = std::min<size_t>(bytes.size() - at, 1 + random() % 16);
    switch (random() % 5) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(random() % bytes.size(), length));
        break;
      default:
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), length,
                    random() % 2 == 0 ? '\xff' : '\0');
    }
  }
}

void fuzz(void (*reader)(std::string_view), const std::vector<std::string>& seeds, int num_inputs) {
  std::mt19937_64 random(42);
  for (int i = 0; i < num_inputs; ++i) {
    std::string bytes = seeds[static_cast<size_t>(i) % seeds.size()];
    mutate(bytes, random);
    ASSERT_NO_THROW(reader(bytes)) << "input " << i;
  }
}

TEST(Fuzz, SafetensorsReaderEndsInADescriptionOrAFormatError) {
  fuzz(fuzz_safetensors, {golden("small.safetensors")}, 20000);
}

TEST(Fuzz, ShardedIndexReaderEndsInAnIndexOrAFormatError) {
  fuzz(fuzz_sharded_index,
       {R"({"metadata":{"total_size":24},"weight_map":{"a":"one.bin","b":"two.bin"}})"}, 5000);
}

std::string pickle_of(const std::string& name, const std::string& record) {
  const std::string bytes = golden(name);
  const MemorySource source = source_of(bytes);
  const ZipReader reader(source);
  return reader.read(*reader.find(record), 1u << 20);
}

TEST(Fuzz, UnpicklerEndsInATreeOrAFormatError) {
  fuzz(fuzz_pickle,
       {pickle_of("state_dict.pth", "state_dict/data.pkl"),
        pickle_of("checkpoint.pth", "checkpoint/data.pkl")},
       40000);
}

TEST(Fuzz, ReadersOfArraysAndTokensEndOrGiveAFormatError) {
  fuzz(fuzz_npy, {golden("array.npy")}, 20000);
  fuzz(fuzz_npz, {golden("arrays.npz")}, 10000);
  std::string tokens("\x88\xd8\x34\x01\x01\0\0\0\x02\0\0\0", 12);
  tokens.resize(1024 + 4);
  fuzz(fuzz_tokens, {tokens, "abcd"}, 5000);
}

TEST(Fuzz, TorchReaderEndsInTensorsOrAFormatError) {
  fuzz(fuzz_torch,
       {golden("state_dict.pth"), golden("no_crc.pth"), golden("legacy.pth"),
        golden("legacy_view.pth"), golden("tar.pth")},
       30000);
}

TEST(Fuzz, ZipReaderEndsInRecordsOrAFormatError) {
  fuzz(fuzz_zip, {golden("state_dict.pth"), golden("no_crc.pth")}, 20000);
}

}  // namespace
}  // namespace lockstep::test
