#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "formats/readers.h"
#include "formats/support.h"

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

TEST(Fuzz, EveryReaderEndsInADescriptionOrAFormatError) {
  constexpr int kNumInputs = 12'000;
  for (const Reader& reader : readers()) {
    const std::vector<std::string> good = seeds(reader);
    std::mt19937_64 random(42);
    for (int i = 0; i < kNumInputs; ++i) {
      std::string bytes = good[static_cast<size_t>(i) % good.size()];
      mutate(bytes, random);
      ASSERT_NO_THROW(refusal([&] { reader.read(bytes); })) << reader.name << ", input " << i;
    }
  }
}

}  // namespace
}  // namespace lockstep::test
