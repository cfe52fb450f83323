#include "data/json_lines.h"

#include <algorithm>

#include <lockstep/base/error.h>

namespace lockstep::data {

namespace {

constexpr uint64_t kWindowBytes = 1u << 20;

// Collects the lines of a text that comes in pieces.
class Lines {
 public:
  explicit Lines(const std::string& name) : name_(name) {}

  void add(std::string_view text) {
    while (!text.empty()) {
      const size_t end = text.find('\n');
      const std::string_view part = text.substr(0, end);
      is_blank_ = is_blank_ && part.find_first_not_of(" \t\r") == std::string_view::npos;
      size_ += part.size();
      if (size_ > kMaxLineBytes) {
        throw FormatError("{}: line {} has more than {} bytes; is it a file of JSON lines?", name_,
                          number_, kMaxLineBytes);
      }
      if (end == std::string_view::npos) {
        return;
      }
      finish();
      text.remove_prefix(end + 1);
    }
  }

  std::vector<LinePlace> take() {
    finish();
    return std::move(places_);
  }

 private:
  void finish() {
    if (!is_blank_) {
      places_.push_back(
          {.offset_bytes = offset_, .size_bytes = static_cast<uint32_t>(size_), .number = number_});
    }
    offset_ += size_ + 1;
    size_ = 0;
    ++number_;
    is_blank_ = true;
  }

  const std::string& name_;
  std::vector<LinePlace> places_;
  uint64_t offset_ = 0;  // of the line
  uint64_t size_ = 0;
  uint32_t number_ = 1;
  bool is_blank_ = true;
};

}  // namespace

std::vector<LinePlace> find_lines(const base::ByteSource& source) {
  Lines lines(source.name());
  for (uint64_t offset = 0; offset < source.size(); offset += kWindowBytes) {
    lines.add(source.read_text(offset, std::min(kWindowBytes, source.size() - offset)));
  }
  return lines.take();
}

tokenizers::Json parse_json_line(std::string_view line, const std::string& place) {
  try {
    tokenizers::Json json = tokenizers::Json::parse(line);
    if (json.is_object()) {
      return json;
    }
    throw FormatError("{}: it is {}, not an object such as {{\"text\": \"a fine film\"}}", place,
                      json.type_name());
  } catch (const tokenizers::Json::parse_error& error) {
    throw FormatError(
        "{}: it is not JSON in UTF-8 at offset {} of the line; each line must be an object of its "
        "own, such as {{\"text\": \"a fine film\"}}",
        place, error.byte);
  } catch (const tokenizers::Json::out_of_range& /*error*/) {
    throw FormatError("{}: it has a number that is beyond all limits", place);
  }
}

}  // namespace lockstep::data
