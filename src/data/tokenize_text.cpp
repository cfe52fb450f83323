#include <filesystem>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/data/token_data.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "base/atomic_file.h"
#include "base/digest.h"
#include "data/json_lines.h"
#include "data/text_pieces.h"
#include "data/token_note.h"
#include "formats/token_file.h"
#include "storage/storage.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;

constexpr size_t kDigestBytes = 64;        // a share begins with it, the ids follow as uint32
constexpr uint64_t kJoinIds = 1u << 20;    // read and written at a time
constexpr int64_t kMaxShortIds = 1 << 16;  // that uint16 can hold

void check_options(const TokenizeOptions& options) {
  if (options.inputs.empty() || options.tokenizer.empty() || options.output.empty()) {
    throw UsageError("tokenize: it needs inputs, a tokenizer and an output");
  }
  if (options.num_ranks < 1 || options.rank < 0 || options.rank >= options.num_ranks) {
    throw UsageError("tokenize: rank {} is not in [0, {})", options.rank, options.num_ranks);
  }
  if (storage::is_remote(options.output)) {
    throw UsageError("tokenize: {} is not a path; the output must be a file that all ranks see",
                     options.output);
  }
}

std::string share_path(const TokenizeOptions& options, int rank) {
  return fmt::format("{}.share-{}-of-{}", options.output, rank, options.num_ranks);
}

// Tells the shares of this run from those that an earlier one has left.
std::string run_digest(const TokenizeOptions& options, const nlohmann::json& made_from) {
  return base::sha256_hex(fmt::format("{} {}", options.num_ranks, made_from.dump()));
}

class PieceEncoder {
 public:
  PieceEncoder(const TokenizeOptions& options, base::AtomicFile& share)
      : options_(options), tokenizer_(load_tokenizer(options.tokenizer)), share_(share) {}

  void add(const data::TextInput& input, const data::TextPiece& piece) {
    if (piece.begin == piece.end) {
      return;  // the one before it went on to the input's end
    }
    const std::string text = input.source->read_text(piece.begin, piece.end - piece.begin);
    if (!input.is_json) {
      add_text(text);
      if (piece.end == input.source->size()) {
        end_document();
      }
    } else {
      data::for_each_line(text, [&](std::string_view line) {
        const auto at = piece.begin + static_cast<uint64_t>(line.data() - text.data());
        const std::string place =
            fmt::format("{}: the line at offset {}", input.source->name(), at);
        add_text(tokenizers::text_field(data::parse_json_line(line, place),
                                        options_.text_field.c_str(), place));
        end_document();
      });
    }
    share_.append(std::as_bytes(std::span(ids_)));
    ids_.clear();
  }

 private:
  void add_text(std::string_view text) {
    const std::vector<int32_t> ids = tokenizer_.encode(text, {.add_special_tokens = false});
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

  void end_document() {
    if (const auto end = tokenizer_.special_ids().end) {
      ids_.push_back(*end);
    }
  }

  const TokenizeOptions& options_;
  const Tokenizer tokenizer_;
  base::AtomicFile& share_;
  std::vector<int32_t> ids_;
};

std::unique_ptr<base::ByteSource> open_share(const TokenizeOptions& options, int rank,
                                             const std::string& digest) {
  const std::string path = share_path(options, rank);
  if (!fs::exists(path)) {
    throw FormatError("{} is not there; did rank {} call tokenize_share(), and a barrier follow?",
                      path, rank);
  }
  auto share = std::make_unique<base::FileSource>(path);
  if (share->size() < kDigestBytes || (share->size() - kDigestBytes) % 4 != 0 ||
      share->read_text(0, kDigestBytes) != digest) {
    throw FormatError("{} was made from other inputs or by another tokenizer; delete it", path);
  }
  return share;
}

void append_share(const base::ByteSource& share, formats::TokenWriter& writer) {
  std::vector<uint32_t> ids;
  const uint64_t count = (share.size() - kDigestBytes) / 4;
  for (uint64_t first = 0; first < count; first += kJoinIds) {
    ids.resize(std::min(kJoinIds, count - first));
    share.read_at(kDigestBytes + first * 4, std::as_writable_bytes(std::span(ids)));
    writer.append(ids);
  }
}

void delete_shares(const TokenizeOptions& options) {
  const fs::path output = fs::absolute(options.output);
  const std::string prefix = output.filename().string() + ".share-";
  for (const auto& entry : fs::directory_iterator(output.parent_path())) {
    if (entry.path().filename().string().starts_with(prefix)) {
      fs::remove(entry.path());
    }
  }
}

formats::TokenLayout layout_for(int64_t vocab_size, uint64_t num_tokens) {
  if (vocab_size > kMaxShortIds) {
    return formats::TokenLayout::LlmcLlama3;
  }
  return num_tokens > INT32_MAX ? formats::TokenLayout::NanoGpt : formats::TokenLayout::LlmcGpt2;
}

}  // namespace

bool tokens_are_current(const TokenizeOptions& options) {
  check_options(options);
  return data::is_noted(options, data::describe_tokens(options));
}

void tokenize_share(const TokenizeOptions& options) {
  check_options(options);
  const nlohmann::json made_from = data::describe_tokens(options);
  if (data::is_noted(options, made_from)) {
    return;
  }
  std::vector<data::TextInput> inputs;
  for (const std::string& input : options.inputs) {
    inputs.push_back(data::open_text_input(input));
  }
  base::AtomicFile share(share_path(options, options.rank));
  share.append(run_digest(options, made_from));
  PieceEncoder encoder(options, share);
  for (const data::TextPiece& piece :
       data::share_of_pieces(inputs, {.rank = options.rank, .num_ranks = options.num_ranks})) {
    encoder.add(inputs[piece.input], piece);
  }
  share.commit();
}

void join_token_shares(const TokenizeOptions& options) {
  check_options(options);
  const nlohmann::json made_from = data::describe_tokens(options);
  if (data::is_noted(options, made_from)) {
    return;
  }
  const std::string digest = run_digest(options, made_from);
  std::vector<std::unique_ptr<base::ByteSource>> shares;
  uint64_t num_tokens = 0;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    shares.push_back(open_share(options, rank, digest));
    num_tokens += (shares.back()->size() - kDigestBytes) / 4;
  }
  if (num_tokens == 0) {
    throw FormatError("{}: it has no text, and the other inputs neither", options.inputs[0]);
  }
  const int64_t vocab_size = load_tokenizer(options.tokenizer).vocab_size();
  fs::remove(data::token_note_path(options));  // it must never be beside another file than its own
  formats::TokenWriter writer(options.output, layout_for(vocab_size, num_tokens), num_tokens);
  for (const auto& share : shares) {
    append_share(*share, writer);
  }
  writer.finish();
  data::write_token_note(options, {.made_from = made_from,
                                   .num_tokens = num_tokens,
                                   .size_bytes = fs::file_size(options.output)});
  delete_shares(options);
  log::info("data", "{}: {} tokens from {} files", options.output, num_tokens,
            options.inputs.size());
}

}  // namespace lockstep
