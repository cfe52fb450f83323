#include "formats/safetensors_header.h"

#include <unordered_set>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

namespace lockstep::formats {

namespace {

using Json = nlohmann::json;

constexpr size_t kHeaderStart = 8;  // after N

// Event by event, not as a tree: a tree keeps the last of two equal keys without a word, and needs
// ten times the memory of the text.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(const std::string& file, const SafetensorsLimits& limits)
      : file_(file), limits_(limits) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool start_object(size_t /*elements*/) override {
    if (place_ == Place::Start) {
      place_ = Place::Names;
    } else if (place_ == Place::Names) {
      place_ = name_ == kMetadata ? Place::Metadata : Place::Entry;
      entry_ = {.name = name_};
      seen_.clear();
    } else {
      fail("an object where a value belongs");
    }
    return true;
  }

  bool key(std::string& text) override {
    if (place_ == Place::Names) {
      name_ = text;
      if (!names_.insert(text).second) {
        throw FormatError("{}: the header names {} twice; which of them is meant?", file_,
                          base::shown(text));
      }
      if (names_.size() > limits_.num_tensors) {
        throw FormatError("{}: the header names more than {} tensors, the limit", file_,
                          limits_.num_tensors);
      }
      return true;
    }
    field_ = text;
    if (place_ == Place::Metadata ? header_.metadata.contains(text) : !seen_.insert(text).second) {
      fail("the field {} twice", base::shown(text));
    }
    if (place_ == Place::Entry && text != "dtype" && text != "shape" && text != "data_offsets") {
      fail("the unknown field {}", base::shown(text));
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::Metadata) {
      header_.metadata.emplace(field_, text);
      return true;
    }
    if (place_ != Place::Entry || field_ != "dtype") {
      fail("text where it does not belong");
    }
    const std::optional<DType> dtype = dtype_of_safetensors(text);
    if (!dtype) {
      fail("the unknown dtype {}", base::shown(text));
    }
    entry_.dtype = *dtype;
    return true;
  }

  bool number_unsigned(uint64_t number) override {
    if (place_ == Place::Shape) {
      if (number > INT64_MAX || entry_.shape.size() == kMaxDims) {
        fail("a dimension of {} (at most {} dimensions, each below 2^63)", number, kMaxDims);
      }
      entry_.shape.push_back(static_cast<int64_t>(number));
    } else if (place_ == Place::Offsets && num_offsets_ < 2) {
      (num_offsets_++ == 0 ? entry_.begin : entry_.end) = number;
    } else {
      fail("the number {} where it does not belong", number);
    }
    return true;
  }

  bool start_array(size_t /*elements*/) override {
    if (place_ != Place::Entry || field_ == "dtype") {
      fail("a list where it does not belong");
    }
    place_ = field_ == "shape" ? Place::Shape : Place::Offsets;
    num_offsets_ = 0;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::Offsets && num_offsets_ != 2) {
      fail("{} data_offsets, not 2", num_offsets_);
    }
    place_ = Place::Entry;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::Entry) {
      if (seen_.size() != 3) {
        fail("no dtype, no shape or no data_offsets");
      }
      header_.entries.push_back(std::move(entry_));
    }
    place_ = place_ == Place::Names ? Place::End : Place::Names;
    return true;
  }

  bool number_integer(int64_t number) override { return fail("the negative number {}", number); }
  bool number_float(double /*number*/, const std::string& text) override {
    return fail("the number {}, which is not whole or beyond 64 bits", base::shown(text));
  }
  bool null() override { return fail("null"); }
  bool boolean(bool /*value*/) override { return fail("true or false"); }
  bool binary(Json::binary_t& /*value*/) override { return fail("binary data"); }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    throw FormatError("{}: the header is not JSON in UTF-8 at offset {}", file_,
                      kHeaderStart + position);
  }

 private:
  enum class Place { Start, Names, Metadata, Entry, Shape, Offsets, End };

  template <typename... Values>
  [[noreturn]] bool fail(fmt::format_string<Values...> format, Values&&... values) {
    const std::string what = fmt::format(format, std::forward<Values>(values)...);
    if (place_ == Place::Start) {
      throw FormatError("{}: the header is {}, not an object", file_, what);
    }
    throw FormatError("{}: {}: the header has {}", file_,
                      name_ == kMetadata ? name_ : "tensor " + base::shown(name_), what);
  }

  const std::string& file_;
  const SafetensorsLimits& limits_;
  SafetensorsHeader header_;
  Place place_ = Place::Start;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> seen_;  // fields of the entry
  std::string name_;
  std::string field_;
  SafetensorsEntry entry_;
  int num_offsets_ = 0;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& file, std::string_view json,
                                           const SafetensorsLimits& limits) {
  HeaderReader reader(file, limits);
  Json::sax_parse(json.begin(), json.end(), &reader);  // what it refuses, the reader throws
  return reader.take();
}

}  // namespace lockstep::formats
