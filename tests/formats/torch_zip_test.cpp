#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/support.h"
#include "formats/torch/pickler.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/torch_writer.h"
#include "formats/weight_file.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;
using Kind = formats::PickleValue::Kind;

formats::TorchFile read(std::string_view bytes) {
  const base::MemorySource source = test::source_of(bytes);
  formats::TorchFile file = formats::read_torch_zip(source);
  formats::verify_checksums(source, formats::read_weight_file(source));
  return file;
}

const formats::TensorInfo& named(const formats::TorchFile& file, const std::string& name) {
  for (const formats::TensorInfo& tensor : file.tensors) {
    if (tensor.name == name) {
      return tensor;
    }
  }
  throw std::runtime_error("no tensor " + name);
}

template <typename Number>
std::vector<Number> numbers(const std::string& bytes, const formats::TensorInfo& tensor) {
  std::vector<Number> values(tensor.size_bytes / sizeof(Number));
  std::memcpy(values.data(), bytes.data() + tensor.offset_bytes, tensor.size_bytes);
  return values;
}

TEST(TorchZip, ReadsAStateDictOfTorch) {
  const std::string bytes = test::golden("state_dict.pth");
  const formats::TorchFile file = read(bytes);
  EXPECT_EQ(file.tensors.size(), 10u);
  EXPECT_TRUE(file.has_checksums);
  const formats::TensorInfo& embedding = named(file, "wte.weight");
  EXPECT_THAT(embedding.shape, ElementsAre(4, 3));
  EXPECT_THAT(embedding.strides, IsEmpty());
  EXPECT_EQ(numbers<float>(bytes, embedding)[11], 11);
  EXPECT_EQ(named(file, "lm_head.weight").storage, embedding.storage) << "tied";
  EXPECT_EQ(named(file, "lm_head.weight").offset_bytes, embedding.offset_bytes);
  EXPECT_EQ(named(file, "ln.bias").dtype, formats::DType::BF16);
  EXPECT_THAT(numbers<int64_t>(bytes, named(file, "steps")), ElementsAre(7));
  EXPECT_THAT(named(file, "steps").shape, IsEmpty());
  EXPECT_EQ(named(file, "mask").dtype, formats::DType::Bool);
  EXPECT_THAT(named(file, "transposed").shape, ElementsAre(3, 2));
  EXPECT_THAT(named(file, "transposed").strides, ElementsAre(1, 3));
  EXPECT_EQ(named(file, "transposed").size_bytes, 12u);
  EXPECT_THAT(numbers<float>(bytes, named(file, "view")), ElementsAre(4, 5));
  EXPECT_EQ(named(file, "empty").size_bytes, 0u);
  EXPECT_THAT(numbers<uint16_t>(bytes, named(file, "ids")), ElementsAre(65535, 1));
  EXPECT_EQ(named(file, "fp8").dtype, formats::DType::F8E4M3);
}

TEST(TorchZip, ReadsACheckpointOfATrainer) {
  const std::string bytes = test::golden("checkpoint.pth");
  const formats::TorchFile file = read(bytes);
  EXPECT_THAT(named(file, "model.weight").shape, ElementsAre(2, 3));
  EXPECT_THAT(numbers<float>(bytes, named(file, "optimizer.state.0.step")), ElementsAre(1));
  EXPECT_THAT(named(file, "optimizer.state.1.exp_avg_sq").shape, ElementsAre(2));
  EXPECT_THAT(numbers<float>(bytes, named(file, "parameter")), ElementsAre(1, 1));
  EXPECT_THAT(numbers<uint8_t>(bytes, named(file, "rng")), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(file.root.find("step")->integer, 3);
  EXPECT_EQ(file.root.find("seed")->kind, Kind::BigInt);
  EXPECT_EQ(file.root.find("big")->integer, int64_t{1} << 40);
  EXPECT_EQ(file.root.find("loss")->real, 0.25);
  EXPECT_EQ(file.root.find("flags")->items.at(4).integer, 70000);
  EXPECT_EQ(file.root.find("shape")->kind, Kind::Size);
  EXPECT_EQ(file.root.find("device")->text, "cuda:1");
  EXPECT_EQ(file.root.find("dtype")->integer, static_cast<int64_t>(formats::DType::BF16));
  EXPECT_EQ(file.root.find("tags")->items.at(0).text, "only");
  EXPECT_EQ(file.root.find("raw")->text, std::string("\x00\xff"
                                                     "ab",
                                                     4));
  EXPECT_EQ(file.root.find("absent"), nullptr);
}

TEST(TorchZip, SaysThatAFileHasNoChecksums) {
  const formats::TorchFile file = read(test::golden("no_crc.pth"));
  EXPECT_FALSE(file.has_checksums);
  EXPECT_FALSE(file.storages.at(0).crc.has_value());
}

TEST(TorchZip, TakesAnExpandedTensorWhileItIsSmall) {
  const formats::PickledTensor tensor{
      .dtype = formats::DType::F32, .shape = {1'000'000}, .strides = {0}};
  const std::string text =
      formats::pickle(formats::PickleValue::of_tensor(0), std::vector{tensor},
                      std::vector<formats::PickledStorage>{{.key = "0", .size_bytes = 4}});
  const formats::TorchFile file =
      read(test::zip_of({{"r/data.pkl", text}, {"r/data/0", "1234"}, {"r/version", "3\n"}}));
  EXPECT_EQ(file.tensors.at(0).size_bytes, 4u);
  EXPECT_THAT(file.tensors.at(0).strides, ElementsAre(0));
}

TEST(TorchZip, RefusesEveryTruncationAndNeverGivesAWrongWeight) {
  const std::string bytes = test::golden("state_dict.pth");
  test::for_each_cut(bytes, [](std::string_view cut) {
    EXPECT_NE(test::refusal([&] { read(cut); }), "") << cut.size() << " bytes";
  });
  const formats::TorchFile whole = read(bytes);
  test::for_each_flip(bytes, 0, bytes.size(), [&](std::string_view flipped, size_t byte) {
    const std::string message = test::refusal([&] {
      const formats::TorchFile file = read(flipped);
      ASSERT_EQ(file.tensors.size(), whole.tensors.size());
      for (size_t i = 0; i < whole.tensors.size(); ++i) {
        const formats::TensorInfo& a = whole.tensors[i];
        const formats::TensorInfo& b = file.tensors[i];
        EXPECT_TRUE(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape &&
                    bytes.substr(a.offset_bytes, a.size_bytes) ==
                        flipped.substr(b.offset_bytes, b.size_bytes))
            << "byte " << byte;
      }
    });
  });
}

TEST(TorchWriter, ItsFilesAreReadBack) {
  const test::TempFolder folder;
  formats::StateDict state;
  state.add("a.weight", formats::DType::F32, {2, 3});
  state.add("a.bias", formats::DType::U16, {5});
  state.add("empty", formats::DType::F64, {0});
  formats::TorchWriter writer(folder.at("a.pth"), state.root, state.tensors, state.storages);
  for (const formats::PickledStorage& storage : state.storages) {
    const std::string bytes(storage.size_bytes, storage.key[0]);
    writer.begin();
    writer.append(std::as_bytes(std::span(bytes)));
  }
  writer.finish();
  const formats::TorchFile file = read(test::file_text(folder.at("a.pth")));
  ASSERT_EQ(file.tensors.size(), 3u);
  EXPECT_EQ(named(file, "a.bias").size_bytes, 10u);
  EXPECT_EQ(named(file, "a.weight").offset_bytes % 64, 0u);
  EXPECT_TRUE(file.has_checksums);
}

TEST(TorchWriter, RefusesStoragesThatAreMissingOrOfAnotherSize) {
  const test::TempFolder folder;
  formats::StateDict state;
  state.add("a", formats::DType::U8, {2});
  EXPECT_THROW(state.add("b", formats::DType::U8, {-1}), UsageError);
  formats::TorchWriter writer(folder.at("a.pth"), state.root, state.tensors, state.storages);
  EXPECT_THAT([&] { writer.finish(); },
              ThrowsMessage<UsageError>(HasSubstr("0 of its 1 storages")));
  writer.begin();
  EXPECT_THAT([&] { writer.finish(); },
              ThrowsMessage<UsageError>(HasSubstr("storage \"0\" has 2 bytes, and 0 were given")));
}

}  // namespace
}  // namespace lockstep
