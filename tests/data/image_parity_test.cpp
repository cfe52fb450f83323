// Pictures beside what torchvision makes of the same files.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <lockstep/data/image_data.h>

#include "base/byte_source.h"
#include "formats/npy.h"
#include "support/paths.h"

namespace lockstep {
namespace {

const std::string kFolder = testing_support::in_tree("tests/pictures/golden");

at::Tensor read_golden(const std::string& name) {
  const base::FileSource source(std::string(kFolder) + "/" + name + ".npy");
  const formats::TensorInfo info = formats::read_npy(source);
  const at::Tensor tensor = at::empty(info.shape, at::kFloat);
  source.read_at(info.offset_bytes, {static_cast<std::byte*>(tensor.mutable_data_ptr()),
                                     static_cast<size_t>(info.size_bytes)});
  return tensor;
}

// torchvision rounds to whole bytes after each step and always decodes at the full size.
TEST(ImageParity, PicturesAreCloseToTorchvisions) {
  struct Case {
    const char* name;
    double mean;  // difference that is allowed, in 1/255
    double most;
  };
  const Case cases[] = {{"large_jpg", 1, 6},
                        {"small_jpg", 0.5, 1.5},
                        {"small_png", 0.5, 1.5},
                        {"tall_jpg", 0.5, 1.5},
                        {"tall_png", 0.5, 1.5}};
  const auto data = open_image_folder(kFolder, {.size = 56});
  ASSERT_EQ(data->size(), std::ssize(cases));
  const at::Tensor std = at::tensor({0.229f, 0.224f, 0.225f}).view({3, 1, 1});
  for (int64_t i = 0; i < data->size(); ++i) {
    const Case& now = cases[i];
    const at::Tensor ours = data->batch(std::vector<SampleKey>{{.index = i}}).input[0];
    const at::Tensor difference = ((ours - read_golden(now.name)) * std * 255).abs();
    const auto mean = difference.mean().item<double>();
    const auto most = difference.max().item<double>();
    EXPECT_LT(mean, now.mean) << now.name;
    EXPECT_LT(most, now.most) << now.name;
    RecordProperty(std::string(now.name) + "_mean", std::to_string(mean));
    RecordProperty(std::string(now.name) + "_most", std::to_string(most));
  }
}

}  // namespace
}  // namespace lockstep
