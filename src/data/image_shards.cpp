#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <lockstep/base/log.h>

#include "data/image_batch.h"
#include "data/image_names.h"
#include "data/json_lines.h"
#include "formats/archive/tar_reader.h"
#include "storage/parallel_read.h"
#include "storage/storage.h"

namespace lockstep {

namespace {

constexpr size_t kMaxMembers = 10'000'000;
constexpr uint64_t kMaxLabelBytes = 1u << 20;
constexpr int kOpenThreads = 8;

// What a sample is read from; the first picture that it has is taken.
constexpr std::array<std::string_view, 5> kKinds = {"jpg", "jpeg", "png", "cls", "json"};
constexpr size_t kNumber = 3;  // KEY.cls
constexpr size_t kJson = 4;

struct Part {
  uint64_t offset_bytes = 0;  // 0: it is not there
  uint64_t size_bytes = 0;

  bool is_there() const { return offset_bytes > 0; }
};

// The members of a key, which follow one another.
struct ShardSample {
  std::string key;
  std::array<Part, kKinds.size()> parts;

  // The last kind of picture if none is there.
  const Part& picture() const {
    return *std::find_if(parts.begin(), parts.begin() + kNumber - 1,
                         [](const Part& part) { return part.is_there(); });
  }
};

struct Shard {
  std::unique_ptr<base::ByteSource> source;
  std::vector<ShardSample> samples;
  int64_t first_sample = 0;
  int64_t num_unrelated = 0;  // members
};

// A member's name as WebDataset cuts it: "a/0001.mask.PNG" is "a/0001" and "mask.png".
struct MemberName {
  std::string key;
  std::string kind;
};

// Returns nothing for a name that WebDataset skips: without a dot, hidden, or __of_the_writer__.
std::optional<MemberName> split_name(const std::string& name) {
  const size_t begin = name.find_last_of('/') + 1;  // npos + 1 is 0
  const size_t dot = name.find('.', begin);
  const std::string_view first = std::string_view(name).substr(0, name.find('/'));
  const bool is_note = first.size() >= 4 && first.starts_with("__") && first.ends_with("__");
  if (dot == std::string::npos || dot == begin || is_note) {
    return std::nullopt;
  }
  return MemberName{.key = name.substr(0, dot), .kind = data::small_letters(name.substr(dot + 1))};
}

// Takes a member that is read; the others belong to the sample all the same.
void take_part(ShardSample& sample, const std::string& kind, const formats::TarMember& member,
               const base::ByteSource& source) {
  const auto place =
      static_cast<size_t>(std::find(kKinds.begin(), kKinds.end(), kind) - kKinds.begin());
  if (place == kKinds.size()) {
    return;
  }
  if (sample.parts[place].is_there()) {
    throw FormatError("{}: sample {} has two members of the kind .{}; which of them is meant?",
                      source.name(), sample.key, kind);
  }
  sample.parts[place] = {member.offset_bytes, member.size_bytes};
}

Shard open_shard(const std::string& location) {
  Shard shard{.source = storage::open_source(location), .samples = {}};
  int64_t num_members = 0;  // of the last sample
  // A key with neither a picture nor a class is no sample: a README, an index.
  const auto finish = [&] {
    if (num_members > 0 && !shard.samples.back().picture().is_there() &&
        !shard.samples.back().parts[kNumber].is_there()) {
      shard.num_unrelated += num_members;
      shard.samples.pop_back();
    }
    num_members = 0;
  };
  for (const formats::TarMember& member :
       formats::read_tar(*shard.source, {.max_members = kMaxMembers, .allow_any = true})) {
    const auto name = split_name(member.name);
    if (!name) {
      ++shard.num_unrelated;
      continue;
    }
    if (num_members == 0 || shard.samples.back().key != name->key) {
      finish();
      shard.samples.push_back({.key = name->key, .parts = {}});
    }
    ++num_members;
    take_part(shard.samples.back(), name->kind, member, *shard.source);
  }
  finish();
  return shard;
}

class ImageShards : public data::ImageDataset {
 public:
  ImageShards(const std::vector<std::string>& tars, const ImageOptions& options)
      : data::ImageDataset(options), shards_(tars.size()) {
    storage::for_each_parallel(tars.size(), kOpenThreads,
                               [&](size_t i) { shards_[i] = open_shard(tars[i]); });
    for (size_t i = 0; i < tars.size(); ++i) {
      shards_[i].first_sample = size_;
      size_ += std::ssize(shards_[i].samples);
      is_remote_ = is_remote_ || lockstep::storage::is_remote(tars[i]);
      if (shards_[i].num_unrelated > 0) {
        log::info("data", "{}: {} files belong to no sample and are left out", tars[i],
                  shards_[i].num_unrelated);
      }
    }
  }

  int64_t size() const override { return size_; }

 private:
  data::ImageSource read(int64_t index) const override {
    const auto behind = std::upper_bound(
        shards_.begin(), shards_.end(), index,
        [](int64_t sample, const Shard& shard) { return sample < shard.first_sample; });
    const Shard& shard = *std::prev(behind);
    const ShardSample& sample = shard.samples[static_cast<size_t>(index - shard.first_sample)];
    const std::string name = fmt::format("{}: sample {}", shard.source->name(), sample.key);
    const Part& picture = sample.picture();
    if (!picture.is_there()) {
      throw FormatError("{} has no picture (.jpg, .jpeg or .png)", name);
    }
    data::check_file_size(picture.size_bytes, name);
    return {.name = name,
            .bytes = shard.source->read_text(picture.offset_bytes, picture.size_bytes),
            .label = label_of(shard, sample, name)};
  }
  bool is_remote() const override { return is_remote_; }

  int64_t label_of(const Shard& shard, const ShardSample& sample, const std::string& name) const {
    const bool is_number = sample.parts[kNumber].is_there();
    const Part& part = sample.parts[is_number ? kNumber : kJson];
    if (!part.is_there() || part.size_bytes > kMaxLabelBytes) {
      throw FormatError("{} has no label (.cls, or .json with \"label\")", name);
    }
    std::string text = shard.source->read_text(part.offset_bytes, part.size_bytes);
    int64_t label = -1;
    if (is_number) {
      text.resize(std::min(text.find_last_not_of(" \r\n") + 1, text.size()));
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
      label = error == std::errc() && end == text.data() + text.size() ? label : -1;
    } else {
      label = tokenizers::number_field(data::parse_json_line(text, name), "label", name);
    }
    if (label < 0) {
      throw FormatError("{} has a label that is not a whole number of at least 0", name);
    }
    if (options().num_classes > 0 && label >= options().num_classes) {
      throw UsageError(
          "{} has the label {}, which is not below num_classes = {} (model.num_classes of a "
          "recipe); raise it, or correct the label",
          name, label, options().num_classes);
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
  data::check_image_options(options);
  auto data = std::make_shared<ImageShards>(tars, options);
  if (data->size() == 0) {
    throw UsageError("images: there is no sample in {} shards", tars.size());
  }
  return data;
}

}  // namespace lockstep
