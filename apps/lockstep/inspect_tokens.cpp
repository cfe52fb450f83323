#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/token_file.h"
#include "inspect.h"

namespace lockstep::app {

namespace {

constexpr size_t kNumFirst = 16;
constexpr uint64_t kWindowTokens = 1u << 19;

struct TokenSummary {
  uint32_t least = UINT32_MAX;
  uint32_t greatest = 0;
  std::vector<uint32_t> first;
};

template <typename Id>
TokenSummary read_all(const base::ByteSource& source, const formats::TokenFile& file) {
  TokenSummary summary;
  for (uint64_t next = 0; next < file.num_tokens; next += kWindowTokens) {
    const uint64_t count = std::min(file.num_tokens - next, kWindowTokens);
    const std::string bytes =
        source.read_text(file.offset_bytes + next * sizeof(Id), count * sizeof(Id));
    for (uint64_t i = 0; i < count; ++i) {
      const uint32_t id = formats::number_at<Id>(bytes, i * sizeof(Id));
      summary.least = std::min(summary.least, id);
      summary.greatest = std::max(summary.greatest, id);
      if (summary.first.size() < kNumFirst) {
        summary.first.push_back(id);
      }
    }
  }
  return summary;
}

}  // namespace

bool may_be_tokens(const base::ByteSource& source) {
  const std::string start = source.read_text(0, std::min<uint64_t>(source.size(), 4));
  return source.name().ends_with(".bin") ||
         (start.size() == 4 && formats::is_llmc_magic(formats::number_at<uint32_t>(start, 0)));
}

int inspect_tokens(const base::ByteSource& source, const TokenOptions& options) {
  const formats::TokenFile file = formats::read_token_file(source);
  const TokenSummary summary = file.dtype == formats::DType::U16 ? read_all<uint16_t>(source, file)
                                                                 : read_all<uint32_t>(source, file);
  const bool has_header = file.offset_bytes != 0;
  std::vector<Verified> verified;
  if (options.verify) {
    verified.push_back(verify_with_sidecar(source, source.name(), 0));
  }
  if (options.as_json) {
    nlohmann::ordered_json json{{"location", source.name()},
                                {"format", has_header ? "tokens of llm.c" : "tokens of nanoGPT"},
                                {"dtype", formats::name_of(file.dtype)},
                                {"num_tokens", file.num_tokens},
                                {"min_id", file.num_tokens != 0 ? summary.least : 0},
                                {"max_id", summary.greatest},
                                {"first_ids", summary.first}};
    for (const Verified& one : verified) {
      json["verified"].push_back({{"file", one.file},
                                  {"crc32_records", one.num_records},
                                  {"has_sidecar", one.has_sidecar}});
    }
    fmt::print("{}\n", json.dump(2, ' ', true, nlohmann::json::error_handler_t::replace));
    return 0;
  }
  fmt::print("{}: {}, {}\n", base::escaped(source.name()),
             has_header ? "tokens of llm.c"
                        : "taken for tokens of nanoGPT (no header says what the file is)",
             size_text(source.size()));
  fmt::print("{} tokens of {}", file.num_tokens, formats::name_of(file.dtype));
  if (file.num_tokens != 0) {
    fmt::print(", ids from {} to {}; first: {}", summary.least, summary.greatest,
               fmt::join(summary.first, " "));
  }
  fmt::print("\n{}", verified_text(verified));
  return 0;
}

}  // namespace lockstep::app
