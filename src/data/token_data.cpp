#include <algorithm>
#include <bit>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/data/token_data.h>

#include "data/sample_keys.h"
#include "formats/token_file.h"
#include "storage/parallel_read.h"
#include "storage/storage.h"

namespace lockstep {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

struct OpenFile {
  std::unique_ptr<base::ByteSource> source;
  formats::TokenFile tokens;
  int64_t first_sample = 0;
};

class TokenDataset : public Dataset {
 public:
  TokenDataset(const std::vector<std::string>& files, TokenDataOptions options)
      : options_(options) {
    for (const std::string& path : files) {
      OpenFile file{.source = storage::open_source(path), .tokens = {}, .first_sample = size_};
      file.tokens = formats::read_token_file(*file.source);
      size_ += static_cast<int64_t>(file.tokens.num_tokens) / options.sequence_length;
      is_remote_ = is_remote_ || storage::is_remote(path);
      files_.push_back(std::move(file));
    }
  }

  int64_t size() const override { return size_; }

  Batch batch(std::span<const SampleKey> samples) const override {
    data::check_samples(samples, size_);
    const int64_t length = options_.sequence_length;
    const at::Tensor ids_BT = at::empty({static_cast<int64_t>(samples.size()), length}, at::kLong);
    auto* const to = ids_BT.mutable_data_ptr<int64_t>();
    storage::for_each_parallel(
        samples.size(), is_remote_ ? storage::kRemoteReads : 1, [&](size_t i) {
          const std::span row(to + static_cast<int64_t>(i) * length, static_cast<size_t>(length));
          read_sample(samples[i].index, row);
        });
    return {ids_BT, ids_BT};
  }

 private:
  void read_sample(int64_t index, std::span<int64_t> row) const {
    const auto behind = std::upper_bound(
        files_.begin(), files_.end(), index,
        [](int64_t sample, const OpenFile& file) { return sample < file.first_sample; });
    const OpenFile& file = *std::prev(behind);
    const auto first = static_cast<uint64_t>(index - file.first_sample) * row.size();
    if (file.tokens.dtype == formats::DType::U16) {
      read_ids<uint16_t>(file, first, row);
    } else {
      read_ids<uint32_t>(file, first, row);
    }
  }

  template <typename Id>
  void read_ids(const OpenFile& file, uint64_t first, std::span<int64_t> row) const {
    thread_local std::vector<Id> ids;
    ids.resize(row.size());
    file.source->read_at(file.tokens.offset_bytes + first * sizeof(Id),
                         std::as_writable_bytes(std::span(ids)));
    Id largest = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      row[i] = ids[i];
      largest = std::max(largest, ids[i]);
    }
    if (options_.vocab_size > 0 && largest >= options_.vocab_size) {
      throw FormatError(
          "{}: id {} among the tokens {} to {} is not below {}, the size of the vocabulary; was it "
          "made by another tokenizer?",
          file.source->name(), largest, first, first + row.size() - 1, options_.vocab_size);
    }
  }

  const TokenDataOptions options_;
  std::vector<OpenFile> files_;
  int64_t size_ = 0;
  bool is_remote_ = false;
};

}  // namespace

std::shared_ptr<const Dataset> open_tokens(const std::vector<std::string>& files,
                                           TokenDataOptions options) {
  if (options.sequence_length < 1 || options.vocab_size < 0) {
    throw UsageError(
        "tokens: sequence_length is {} and vocab_size {}; they must be at least 1 and 0",
        options.sequence_length, options.vocab_size);
  }
  if (files.empty()) {
    throw UsageError("tokens: no file is named");
  }
  auto data = std::make_shared<TokenDataset>(files, options);
  if (data->size() == 0) {
    throw UsageError(
        "tokens: {}{} has not one whole sample of {} tokens; make sequence_length smaller",
        files[0], files.size() > 1 ? fmt::format(" and {} more files", files.size() - 1) : "",
        options.sequence_length);
  }
  return data;
}

}  // namespace lockstep
