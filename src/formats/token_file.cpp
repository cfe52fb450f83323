#include "formats/token_file.h"

#include <lockstep/base/error.h>

#include "formats/little_endian.h"

namespace lockstep::formats {

namespace {

constexpr uint64_t kHeaderBytes = 256 * 4;

struct TokenKind {
  uint32_t magic;
  uint32_t version;
  DType dtype;
};

constexpr TokenKind kTokenKinds[] = {
    {20240520, 1, DType::U16},  // GPT-2
    {20240801, 7, DType::U32},  // Llama 3
};

TokenFile read_llmc(const base::ByteSource& source, const TokenKind& kind) {
  if (source.size() < kHeaderBytes) {
    throw FormatError(
        "{}: {} bytes cannot hold the header of llm.c's tokens, which has {}; it is "
        "truncated",
        source.name(), source.size(), kHeaderBytes);
  }
  const std::string header = source.read_text(0, kHeaderBytes);
  const auto version = number_at<uint32_t>(header, 4);
  if (version != kind.version) {
    throw FormatError("{}: version {} (offset 4) of llm.c's tokens is not known; {} is",
                      source.name(), version, kind.version);
  }
  const auto num_tokens = number_at<uint32_t>(header, 8);
  const uint64_t end = kHeaderBytes + uint64_t{num_tokens} * (bits_of(kind.dtype) / 8);
  if (end != source.size()) {
    throw FormatError("{}: {} tokens (offset 8) end at offset {} and the file at {}", source.name(),
                      num_tokens, end, source.size());
  }
  return {.dtype = kind.dtype, .offset_bytes = kHeaderBytes, .num_tokens = num_tokens};
}

const TokenKind* find_kind(uint32_t magic) {
  for (const TokenKind& kind : kTokenKinds) {
    if (kind.magic == magic) {
      return &kind;
    }
  }
  return nullptr;
}

}  // namespace

bool is_llmc_magic(uint32_t magic) {
  return find_kind(magic) != nullptr;
}

TokenFile read_token_file(const base::ByteSource& source) {
  if (source.size() >= 4) {
    if (const TokenKind* kind = find_kind(number_at<uint32_t>(source.read_text(0, 4), 0))) {
      return read_llmc(source, *kind);
    }
  }
  if (source.size() == 0 || source.size() % 2 != 0) {
    throw FormatError(
        "{}: {} bytes are no file of tokens: neither llm.c's magic nor a whole number "
        "of uint16",
        source.name(), source.size());
  }
  return {.dtype = DType::U16, .offset_bytes = 0, .num_tokens = source.size() / 2};
}

TokenWriter::TokenWriter(std::string path, TokenLayout layout, uint64_t num_tokens)
    : path_(path), layout_(layout), num_tokens_(num_tokens), file_(std::move(path)) {
  if (layout == TokenLayout::NanoGpt) {
    return;
  }
  if (num_tokens > INT32_MAX) {
    throw UsageError(
        "cannot write {}: {} tokens; a file of llm.c holds fewer than 2^31, so write "
        "several",
        path_, num_tokens);
  }
  const TokenKind& kind = kTokenKinds[layout == TokenLayout::LlmcGpt2 ? 0 : 1];
  std::string header;
  for (const uint64_t number : {uint64_t{kind.magic}, uint64_t{kind.version}, num_tokens}) {
    append_number<uint32_t>(header, static_cast<uint32_t>(number));
  }
  header.resize(kHeaderBytes);
  file_.append(header);
}

void TokenWriter::append(std::span<const uint32_t> ids) {
  std::string bytes;
  for (const uint32_t id : ids) {
    if (layout_ == TokenLayout::LlmcLlama3) {
      append_number<uint32_t>(bytes, id);
    } else if (id <= UINT16_MAX) {
      append_number<uint16_t>(bytes, static_cast<uint16_t>(id));
    } else {
      throw UsageError("cannot write {}: token {} has the id {}, and uint16 ends at {}", path_,
                       num_appended_, id, UINT16_MAX);
    }
    ++num_appended_;
  }
  file_.append(bytes);
}

void TokenWriter::finish() {
  if (num_appended_ != num_tokens_) {
    throw UsageError("cannot write {}: {} tokens were promised and {} given", path_, num_tokens_,
                     num_appended_);
  }
  file_.commit();
}

}  // namespace lockstep::formats
