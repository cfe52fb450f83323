#include "bench/data/bench_data_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include <lockstep/base/error.h>

#include "base/dice.h"
#include "base/unique_fd.h"
#include "formats/token_file.h"
#include "pictures/picture_encoder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWidth = 500;
constexpr int64_t kHeight = 375;
constexpr size_t kNumWords = 50257;

// Adds noise with a grain of `grain` pixels, interpolated in between.
void add_noise(std::vector<float>& rgb, int64_t grain, float strength, base::Dice& dice) {
  const int64_t columns = kWidth / grain + 2;
  const int64_t rows = kHeight / grain + 2;
  std::vector<float> points(static_cast<size_t>(columns * rows * 3));
  for (float& point : points) {
    point = strength * dice.noise();
  }
  const auto point = [&](int64_t x, int64_t y, int64_t c) {
    return points[static_cast<size_t>((y * columns + x) * 3 + c)];
  };
  size_t at = 0;
  for (int64_t y = 0; y < kHeight; ++y) {
    const float down = static_cast<float>(y % grain) / static_cast<float>(grain);
    for (int64_t x = 0; x < kWidth; ++x) {
      const float across = static_cast<float>(x % grain) / static_cast<float>(grain);
      for (int64_t c = 0; c < 3; ++c) {
        const int64_t left = x / grain;
        const int64_t top = y / grain;
        const float above =
            point(left, top, c) + across * (point(left + 1, top, c) - point(left, top, c));
        const float below = point(left, top + 1, c) +
                            across * (point(left + 1, top + 1, c) - point(left, top + 1, c));
        rgb[at++] += above + down * (below - above);
      }
    }
  }
}

pictures::Picture make_picture(uint64_t number) {
  base::Dice dice(1, number);
  std::vector<float> rgb(static_cast<size_t>(kWidth * kHeight * 3), 128.0f);
  add_noise(rgb, 100, 60, dice);
  add_noise(rgb, 30, 40, dice);
  add_noise(rgb, 8, 25, dice);
  add_noise(rgb, 2, 12, dice);
  pictures::Picture picture{.size = {kWidth, kHeight}, .rgb = {}, .box = {}};
  for (const float value : rgb) {
    picture.rgb.push_back(static_cast<uint8_t>(std::clamp(value, 0.0f, 255.0f)));
  }
  return picture;
}

}  // namespace

BenchFolder::BenchFolder(const std::string& parent) : path_(parent + "/lockstep-bench-XXXXXX") {
  if (::mkdtemp(path_.data()) == nullptr) {
    throw IoError("cannot make a folder in {}: {}", parent, base::errno_text(errno));
  }
}

BenchFolder::~BenchFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

int64_t write_bench_pictures(const std::string& folder, int64_t count) {
  for (const char* name : {"/first", "/second"}) {
    fs::create_directories(folder + name);
  }
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::string jpeg = pictures::encode_jpeg(make_picture(static_cast<uint64_t>(i)));
    base::write_file_atomically(
        fmt::format("{}/{}/{:06}.jpg", folder, i % 2 == 0 ? "first" : "second", i), jpeg);
    bytes += std::ssize(jpeg);
  }
  return bytes;
}

int64_t write_bench_tokens(const std::string& path, int64_t megabytes) {
  constexpr uint64_t kPieceIds = 500'000;  // a megabyte
  base::Dice dice(2, 0);
  std::vector<uint32_t> ids(kPieceIds);
  formats::TokenWriter writer(path, formats::TokenLayout::LlmcGpt2,
                              kPieceIds * static_cast<uint64_t>(megabytes));
  for (int64_t i = 0; i < megabytes; ++i) {
    for (uint32_t& id : ids) {
      id = static_cast<uint32_t>(dice.below(kNumWords));
    }
    writer.append(ids);
  }
  writer.finish();
  return static_cast<int64_t>(fs::file_size(path));
}

}  // namespace lockstep
