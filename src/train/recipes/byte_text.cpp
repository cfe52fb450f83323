#include "train/recipes/byte_text.h"

#include <span>
#include <string_view>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/byte_source.h"
#include "data/json_lines.h"
#include "data/text_pieces.h"

namespace lockstep::train {
namespace {

class ByteText : public Dataset {
 public:
  ByteText(std::string text, int64_t sequence_length)
      : text_(std::move(text)), sequence_length_(sequence_length) {}

  int64_t size() const override { return static_cast<int64_t>(text_.size()) / sequence_length_; }

  Batch batch(std::span<const SampleKey> samples) const override {
    const at::Tensor ids_BT =
        at::empty({static_cast<int64_t>(samples.size()), sequence_length_}, at::kLong);
    auto* out = ids_BT.mutable_data_ptr<int64_t>();
    for (const SampleKey& sample : samples) {
      const auto* bytes =
          reinterpret_cast<const uint8_t*>(text_.data()) + sample.index * sequence_length_;
      out = std::copy(bytes, bytes + sequence_length_, out);
    }
    return {ids_BT, ids_BT};
  }

 private:
  std::string text_;
  int64_t sequence_length_;
};

// Returns the texts of JSON lines, each with a newline after it; of other files, all there is.
std::string read_documents(const std::string& file) {
  const data::TextInput input = data::open_text_input(file);
  const std::string all = input.source->read_text(0, input.source->size());
  if (!input.is_json) {
    return all;
  }
  std::string texts;
  const base::MemorySource memory(std::as_bytes(std::span(all)), input.source->name());
  for (const data::LinePlace& line : data::find_lines(memory)) {
    const std::string place = fmt::format("{}:{}", file, line.number);
    const std::string_view text(all.data() + line.offset_bytes, line.size_bytes);
    texts += tokenizers::text_field(data::parse_json_line(text, place), "text", place) + "\n";
  }
  return texts;
}

}  // namespace

std::shared_ptr<const Dataset> open_byte_text(const std::vector<std::string>& files,
                                              int64_t sequence_length) {
  std::string text;
  for (const std::string& file : files) {
    text += read_documents(file);
  }
  if (static_cast<int64_t>(text.size()) < sequence_length) {
    throw UsageError("data.text has {} bytes, less than one sequence of data.sequence_length = {}",
                     text.size(), sequence_length);
  }
  return std::make_shared<ByteText>(std::move(text), sequence_length);
}

std::vector<int64_t> encode_bytes(const std::string& text) {
  std::vector<int64_t> ids;
  for (const char byte : text) {
    ids.push_back(static_cast<uint8_t>(byte));
  }
  return ids;
}

std::string decode_bytes(const std::vector<int64_t>& ids) {
  std::string text;
  for (const int64_t id : ids) {
    if (id >= 0 && id < kByteVocabulary) {
      text += static_cast<char>(id);
    }
  }
  return text;
}

}  // namespace lockstep::train
