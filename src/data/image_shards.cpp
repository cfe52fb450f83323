#include <algorithm>
#include <charconv>

#include "data/image_batch.h"
#include "data/image_names.h"
#include "data/json_lines.h"
#include "formats/tar_reader.h"
#include "storage/parallel_read.h"
#include "storage/storage.h"

namespace lockstep {

namespace {

constexpr size_t kMaxMembers = 10'000'000;
constexpr uint64_t kMaxLabelBytes = 1u << 20;
constexpr int kOpenThreads = 8;

struct Part {
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;  // 0: it is not there
};

// The members of a key, which follow one another.
struct ShardSample {
  std::string key;
  Part picture;
  Part number;  // KEY.cls
  Part json;
};

struct Shard {
  std::unique_ptr<ByteSource> source;
  std::vector<ShardSample> samples;
  int64_t first_sample = 0;
};

// Up to the first dot of the last part, as WebDataset cuts.
std::string key_of(const std::string& name) {
  const size_t slash = name.find_last_of('/');
  return name.substr(0, name.find('.', slash == std::string::npos ? 0 : slash));
}

Shard open_shard(const std::string& location) {
  Shard shard{.source = open_source(location), .samples = {}};
  for (const TarMember& member :
       read_tar(*shard.source, {.max_members = kMaxMembers, .allow_folders = true})) {
    const std::string key = key_of(member.name);
    const Part part{member.offset_bytes, member.size_bytes};
    if (shard.samples.empty() || shard.samples.back().key != key) {
      shard.samples.push_back({.key = key, .picture = {}, .number = {}, .json = {}});
    }
    ShardSample& sample = shard.samples.back();
    const std::string extension = extension_of(member.name);
    if (is_picture_name(member.name)) {
      sample.picture = part;
    } else if (extension == "cls") {
      sample.number = part;
    } else if (extension == "json") {
      sample.json = part;
    }
  }
  return shard;
}

class ImageShards : public ImageDataset {
 public:
  ImageShards(const std::vector<std::string>& tars, const ImageOptions& options)
      : ImageDataset(options), shards_(tars.size()) {
    for_each_parallel(tars.size(), kOpenThreads,
                      [&](size_t i) { shards_[i] = open_shard(tars[i]); });
    for (size_t i = 0; i < tars.size(); ++i) {
      shards_[i].first_sample = size_;
      size_ += std::ssize(shards_[i].samples);
      is_remote_ = is_remote_ || lockstep::is_remote(tars[i]);
    }
  }

  int64_t size() const override { return size_; }

 private:
  ImageSource read(int64_t index) const override {
    const auto behind = std::upper_bound(
        shards_.begin(), shards_.end(), index,
        [](int64_t sample, const Shard& shard) { return sample < shard.first_sample; });
    const Shard& shard = *std::prev(behind);
    const ShardSample& sample = shard.samples[static_cast<size_t>(index - shard.first_sample)];
    const std::string name = fmt::format("{}: sample {}", shard.source->name(), sample.key);
    if (sample.picture.size_bytes == 0) {
      throw FormatError("{} has no picture (.jpg, .jpeg or .png)", name);
    }
    check_file_size(sample.picture.size_bytes, name);
    return {
        .name = name,
        .bytes = shard.source->read_text(sample.picture.offset_bytes, sample.picture.size_bytes),
        .label = label_of(shard, sample, name)};
  }
  bool is_remote() const override { return is_remote_; }

  static int64_t label_of(const Shard& shard, const ShardSample& sample, const std::string& name) {
    const Part& part = sample.number.size_bytes > 0 ? sample.number : sample.json;
    if (part.size_bytes == 0 || part.size_bytes > kMaxLabelBytes) {
      throw FormatError("{} has no label (.cls, or .json with \"label\")", name);
    }
    std::string text = shard.source->read_text(part.offset_bytes, part.size_bytes);
    int64_t label = -1;
    if (sample.number.size_bytes > 0) {
      text.resize(std::min(text.find_last_not_of(" \r\n") + 1, text.size()));
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
      label = error == std::errc() && end == text.data() + text.size() ? label : -1;
    } else {
      label = number_field(parse_json_line(text, name), "label", name);
    }
    if (label < 0) {
      throw FormatError("{} has a label that is no whole number of at least 0", name);
    }
    return label;
  }

  std::vector<Shard> shards_;
  int64_t size_ = 0;
  bool is_remote_ = false;
};

}  // namespace

std::shared_ptr<const Dataset> open_image_shards(const std::vector<std::string>& tars,
                                                 ImageOptions options) {
  check_image_options(options);
  auto data = std::make_shared<ImageShards>(tars, options);
  if (data->size() == 0) {
    throw UsageError("images: there is no sample in {} shards", tars.size());
  }
  return data;
}

}  // namespace lockstep
