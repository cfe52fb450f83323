#include "formats/tensor_reader.h"

#include <cstring>
#include <numeric>
#include <unistd.h>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/support.h"

namespace lockstep {
namespace {

std::vector<int32_t> all_of(const base::ByteSource& source, const formats::TensorInfo& tensor) {
  formats::TensorReader reader(source, tensor);
  std::vector<int32_t> values;
  for (auto piece = reader.next(); !piece.empty(); piece = reader.next()) {
    EXPECT_LE(piece.size(), formats::TensorReader::kWindowElements * sizeof(int32_t));
    const size_t old = values.size();
    values.resize(old + piece.size() / sizeof(int32_t));
    std::memcpy(values.data() + old, piece.data(), piece.size());
  }
  return values;
}

// Element by element, from the definition of strides.
std::vector<int32_t> expected(const std::vector<int32_t>& storage,
                              const formats::TensorInfo& tensor) {
  std::vector<int32_t> values(*formats::checked_elements(tensor.shape));
  for (size_t i = 0; i < values.size(); ++i) {
    size_t rest = i;
    size_t place = tensor.offset_bytes / sizeof(int32_t);
    for (size_t d = tensor.shape.size(); d-- > 0;) {
      const auto size = static_cast<size_t>(tensor.shape[d]);
      place += rest % size * static_cast<size_t>(tensor.strides[d]);
      rest /= size;
    }
    values[i] = storage[place];
  }
  return values;
}

TEST(TensorReader, GivesTheElementsInOrderWhateverTheStrides) {
  std::vector<int32_t> storage(3'000'000);
  std::iota(storage.begin(), storage.end(), 0);
  const base::MemorySource source(std::as_bytes(std::span(storage)));
  const formats::TensorInfo cases[] = {
      {.shape = {3, 4}, .strides = {1, 3}},
      {.shape = {5}, .strides = {3}, .offset_bytes = 8},
      {.shape = {2, 3, 4}, .strides = {100, 0, 7}},
      {.shape = {0, 3}, .strides = {1, 1}},
      {.shape = {1, 1, 1}, .strides = {9, 9, 9}},
      {.shape = {1000, 1500}, .strides = {1, 2000}},  // columns
      {.shape = {1500, 1200}, .strides = {2000, 1}},  // rows with a gap
      {.shape = {2, 1'400'000}, .strides = {1, 2}},   // a dimension larger than a piece
      {.shape = {3, 2, 200'000}, .strides = {2, 1, 7}},
      {.shape = {2'000'000}, .strides = {0}},
  };
  for (formats::TensorInfo tensor : cases) {
    tensor.dtype = formats::DType::I32;
    EXPECT_EQ(all_of(source, tensor), expected(storage, tensor))
        << formats::to_string(tensor.dtype, tensor.shape);
  }
  formats::TensorInfo plain{.dtype = formats::DType::I32, .shape = {3, 1'000'000}};
  EXPECT_EQ(all_of(source, plain), storage);
}

TEST(TensorReader, ReadsOnlyTheRunsOfATensorThatIsSpreadFar) {
  // Rows of a matrix of 400 MB, of which the file has only holes.
  const test::TempFolder folder;
  const std::string path = folder.file("holes", "");
  ASSERT_EQ(::truncate(path.c_str(), 400'000'000), 0);
  const base::FileSource source(path);
  const formats::TensorInfo rows{
      .dtype = formats::DType::F32, .shape = {100, 10}, .strides = {1'000'000, 1}};
  formats::TensorReader reader(source, rows);
  EXPECT_EQ(reader.next().size(), 4000u);
  EXPECT_TRUE(reader.next().empty());
}

TEST(TensorReader, ReadsPackedTypesAsBytes) {
  const std::string bytes(3, 'p');
  const base::MemorySource source = test::source_of(bytes);
  const formats::TensorInfo packed{.dtype = formats::DType::F4, .shape = {2, 3}};
  formats::TensorReader reader(source, packed);
  EXPECT_EQ(reader.next().size(), 3u);
  EXPECT_TRUE(reader.next().empty());
}

}  // namespace
}  // namespace lockstep
