#include <algorithm>
#include <optional>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/data/text_data.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "data/corrupt_samples.h"
#include "data/json_lines.h"
#include "data/only_label.h"
#include "data/sample_keys.h"
#include "storage/parallel_read.h"
#include "storage/storage.h"
#include "tokenizers/vocabulary.h"

namespace lockstep {

namespace {

// A remote file, in memory: a request for each line would be slower than all of it.
class CopiedSource : public base::ByteSource {
 public:
  explicit CopiedSource(const base::ByteSource& source)
      : name_(source.name()), bytes_(source.size()), memory_(bytes_, name_) {
    storage::read_parallel(source, 0, bytes_);
  }

  const std::string& name() const override { return name_; }
  uint64_t size() const override { return bytes_.size(); }

 private:
  void read_inside(uint64_t offset, std::span<std::byte> bytes) const override {
    memory_.read_at(offset, bytes);
  }

  std::string name_;
  std::vector<std::byte> bytes_;
  base::MemorySource memory_;
};

struct LabelledText {
  std::vector<int32_t> ids;
  int64_t label = kCorruptTarget;
};

// How many ids come before the padding. An id of padding inside a text counts, and at its end it
// does not: where a tokenizer has no padding, texts are filled up with an id that they may hold.
ptrdiff_t num_seen(const std::vector<int32_t>& ids, int64_t padding) {
  const auto last =
      std::find_if(ids.rbegin(), ids.rend(), [&](int32_t id) { return id != padding; });
  return ids.rend() - last;
}

class TextDataset : public Dataset {
 public:
  TextDataset(std::unique_ptr<base::ByteSource> source, LabelledTextOptions options)
      : options_(std::move(options)),
        tokenizer_(load_tokenizer(options_.tokenizer)),
        source_(std::move(source)),
        lines_(data::find_lines(*source_)),
        corrupt_(options_.on_corrupt) {
    tokenizer_.encode("", {.max_length = options_.max_length});  // refuses what is too short
    if (options_.num_labels > 0) {
      check_lines();
    }
  }

  int64_t size() const override { return std::ssize(lines_); }
  std::optional<int64_t> only_label() const { return only_label_; }
  int64_t num_corrupt() const override { return corrupt_.count(); }

  Batch batch(std::span<const SampleKey> samples) const override {
    data::check_samples(samples, size());
    std::vector<LabelledText> texts;
    size_t longest = 1;
    for (const SampleKey& sample : samples) {
      texts.push_back(read(sample.index));
      longest = std::max(longest, texts.back().ids.size());
    }
    const auto rows = static_cast<int64_t>(texts.size());
    const int64_t padding = padding_id(tokenizer_);
    const auto columns = static_cast<int64_t>(longest);
    const at::Tensor is_seen_BT = at::empty({rows, columns}, at::kBool);
    Batch batch{.input = at::empty({rows, columns}, at::kLong),
                .target = at::empty({rows}, at::kLong),
                .more = {{"attention_mask", is_seen_BT}}};
    auto* ids = batch.input.mutable_data_ptr<int64_t>();
    auto* is_seen = is_seen_BT.mutable_data_ptr<bool>();
    auto* labels = batch.target.mutable_data_ptr<int64_t>();
    for (const LabelledText& text : texts) {
      int64_t* const end = std::copy(text.ids.begin(), text.ids.end(), ids);
      bool* const end_seen = std::fill_n(is_seen, num_seen(text.ids, padding), true);
      ids += longest;
      is_seen += longest;
      std::fill(end, ids, padding);
      std::fill(end_seen, is_seen, false);
      *labels++ = text.label;
    }
    return batch;
  }

 private:
  // What is wrong with a line is said before the first step, not in the middle of an epoch.
  void check_lines() {
    std::optional<FormatError> first_error;
    int64_t num_readable = 0;
    int64_t lowest = INT64_MAX, highest = INT64_MIN;
    for (const data::LinePlace& line : lines_) {
      try {
        const tokenizers::Json json = parse(line);
        const int64_t label = label_of(json, place_of(line));
        tokenizers::text_field(json, options_.text_field.c_str(), place_of(line));
        lowest = std::min(lowest, label);
        highest = std::max(highest, label);
        ++num_readable;
      } catch (const FormatError& error) {
        if (options_.on_corrupt == CorruptSample::Fatal) {
          throw;
        }
        if (!first_error) {
          first_error = error;
        }
      }
    }
    if (first_error && num_readable == 0) {
      throw FormatError("{} (and no other line of {} can be used either)", first_error->what(),
                        source_->name());
    }
    if (num_readable > 1 && lowest == highest) {
      only_label_ = lowest;
    }
  }

  LabelledText read(int64_t index) const {
    const data::LinePlace& line = lines_[static_cast<size_t>(index)];
    try {
      const tokenizers::Json json = parse(line);
      const std::string place = place_of(line);
      return {
          .ids = tokenizer_.encode(tokenizers::text_field(json, options_.text_field.c_str(), place),
                                   {.max_length = options_.max_length}),
          .label = label_of(json, place)};
    } catch (const FormatError& error) {
      corrupt_.take(index, error);
      return {};
    }
  }

  std::string place_of(const data::LinePlace& line) const {
    return fmt::format("{}:{}", source_->name(), line.number);
  }

  tokenizers::Json parse(const data::LinePlace& line) const {
    return data::parse_json_line(source_->read_text(line.offset_bytes, line.size_bytes),
                                 place_of(line));
  }

  int64_t label_of(const tokenizers::Json& json, const std::string& place) const {
    const tokenizers::Json& found = tokenizers::field(json, options_.label_field.c_str());
    if (found.is_string()) {
      throw FormatError(
          "{}: \"{}\" is the text {}, but a label is the number of a class; number the "
          "classes from 0, for example \"bad\" as 0 and \"good\" as 1, and write the numbers "
          "without quotes",
          place, options_.label_field, tokenizers::in_quotes(found.get<std::string>()));
    }
    const int64_t label = tokenizers::number_field(json, options_.label_field.c_str(), place);
    if (label < 0) {
      throw FormatError("{}: \"{}\" is {}, it must be at least 0", place, options_.label_field,
                        label);
    }
    if (options_.num_labels > 0 && label >= options_.num_labels) {
      throw UsageError(
          "{}: \"{}\" is {}, which is not below num_labels = {} (model.num_labels of a recipe); "
          "raise it, or correct the line",
          place, options_.label_field, label, options_.num_labels);
    }
    return label;
  }

  const LabelledTextOptions options_;
  const Tokenizer tokenizer_;
  const std::unique_ptr<base::ByteSource> source_;
  const std::vector<data::LinePlace> lines_;
  mutable data::CorruptSamples corrupt_;
  std::optional<int64_t> only_label_;
};

}  // namespace

int64_t padding_id(const Tokenizer& tokenizer) {
  const SpecialIds& special = tokenizer.special_ids();
  return special.padding.value_or(special.end.value_or(0));
}

std::shared_ptr<const Dataset> open_labelled_text(const std::string& jsonl,
                                                  LabelledTextOptions options) {
  if (options.tokenizer.empty() || options.max_length < 1 || options.num_labels < 0) {
    throw UsageError(
        "labelled text: it needs a tokenizer, a max_length of at least 1, not {}, and num_labels "
        "of "
        "at least 0, not {}",
        options.max_length, options.num_labels);
  }
  std::unique_ptr<base::ByteSource> source = storage::open_source(jsonl);
  if (storage::is_remote(jsonl)) {
    source = std::make_unique<CopiedSource>(*source);
  }
  auto data = std::make_shared<TextDataset>(std::move(source), std::move(options));
  if (data->size() == 0) {
    throw UsageError("labelled text: {} has no line", jsonl);
  }
  return data;
}

}  // namespace lockstep

namespace lockstep::data {

std::optional<int64_t> only_label(const Dataset& dataset) {
  const auto* texts = dynamic_cast<const TextDataset*>(&dataset);
  return texts != nullptr ? texts->only_label() : std::nullopt;
}

}  // namespace lockstep::data
