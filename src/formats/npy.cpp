#include "formats/npy.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/round.h"
#include "formats/little_endian.h"

namespace lockstep::formats {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view kNpyMagic = "\x93NUMPY"sv;
constexpr uint64_t kHeadBytes = 12;  // magic, version, the longer form of the header's length
constexpr size_t kShortStart = 10;   // where the header of version 1 begins
constexpr size_t kHeaderAlignment = 64;
constexpr uint64_t kMaxHeaderBytes = 1u << 20;
constexpr std::string_view kSuffix = ".npy";

struct NpyKind {
  std::string_view descr;
  DType dtype;
};

constexpr NpyKind kNpyKinds[] = {
    {"|b1", DType::Bool}, {"|u1", DType::U8},    {"|i1", DType::I8},  {"<i2", DType::I16},
    {"<u2", DType::U16},  {"<f2", DType::F16},   {"<i4", DType::I32}, {"<u4", DType::U32},
    {"<f4", DType::F32},  {"<c8", DType::C64},   {"<f8", DType::F64}, {"<i8", DType::I64},
    {"<u8", DType::U64},  {"<c16", DType::C128},
};

// The header is a Python dict: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : rest_(text) {}

  // False: not such a dict.
  bool parse(std::string& descr, bool& is_fortran, std::vector<int64_t>& shape) {
    int num_fields[3] = {};
    if (!take("{")) {
      return false;
    }
    while (!take("}")) {
      std::string key;
      if (!text(key) || !take(":")) {
        return false;
      }
      if (key == "descr" && text(descr)) {
        ++num_fields[0];
      } else if (key == "fortran_order" && boolean(is_fortran)) {
        ++num_fields[1];
      } else if (key == "shape" && tuple(shape)) {
        ++num_fields[2];
      } else {
        return false;
      }
      if (!take(",") && !rest_.starts_with("}")) {
        return false;
      }
    }
    return rest_.empty() && num_fields[0] == 1 && num_fields[1] == 1 && num_fields[2] == 1;
  }

 private:
  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) {
      return false;
    }
    rest_.remove_prefix(word.size());
    rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size()));
    return true;
  }

  bool text(std::string& value) {
    const size_t end = rest_.find('\'', 1);
    if (!rest_.starts_with("'") || end == std::string_view::npos) {
      return false;
    }
    value = rest_.substr(1, end - 1);
    rest_.remove_prefix(end);
    return take("'");
  }

  bool boolean(bool& value) {
    value = rest_.starts_with("True");
    return take("True") || take("False");
  }

  bool tuple(std::vector<int64_t>& values) {
    values.clear();
    if (!take("(")) {
      return false;
    }
    while (!take(")")) {
      int64_t number = 0;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
      if (error != std::errc() || values.size() == kMaxDims) {
        return false;
      }
      values.push_back(number);
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      if (!take(",") && !rest_.starts_with(")")) {
        return false;
      }
    }
    return true;
  }

  std::string_view rest_;
};

std::optional<DType> dtype_of(std::string_view descr) {
  for (const NpyKind& kind : kNpyKinds) {
    if (kind.descr == descr) {
      return kind.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace

TensorInfo read_npy(const base::ByteSource& source, const NpyPlace& place) {
  const auto& [name, offset, size] = place;
  const auto fail = [&](const std::string& what) {
    throw FormatError("{}: array {} at offset {} {}", source.name(), base::shown(place.name),
                      place.offset_bytes, what);
  };
  const std::string head = source.read_text(offset, std::min(size, kHeadBytes));
  if (head.size() < kHeadBytes || !head.starts_with(kNpyMagic)) {
    fail("does not begin as .npy does");
  }
  const auto version = number_at<uint8_t>(head, 6);
  if (version < 1 || version > 3 || head[7] != 0) {
    fail(fmt::format("has the unknown version {}.{} of .npy", version, head[7] + 0));
  }
  const uint64_t start = version == 1 ? kShortStart : kHeadBytes;
  const uint64_t length =
      version == 1 ? number_at<uint16_t>(head, 8) : number_at<uint32_t>(head, 8);
  if (length > kMaxHeaderBytes || start + length > size) {
    fail(fmt::format("has a header of {} bytes, which does not end inside its {}", length, size));
  }
  std::string descr;
  bool is_fortran = false;
  TensorInfo info{.name = name, .offset_bytes = offset + start + length};
  if (!HeaderParser(source.read_text(offset + start, length))
           .parse(descr, is_fortran, info.shape)) {
    fail("has a header that is not descr (of one type), fortran_order and shape");
  }
  const std::optional<DType> dtype = dtype_of(descr);
  if (!dtype) {
    fail(fmt::format("is of type {}; only little-endian numbers and bools are read",
                     base::shown(descr)));
  }
  info.dtype = *dtype;
  const auto bytes = checked_bytes(info.dtype, info.shape);
  if (bytes != size - start - length) {
    fail(fmt::format("is {} and has {} bytes", to_string(info.dtype, info.shape),
                     size - start - length));
  }
  info.size_bytes = *bytes;
  if (is_fortran && info.shape.size() > 1) {
    int64_t stride = 1;
    for (const int64_t dimension : info.shape) {
      info.strides.push_back(stride);
      stride *= dimension == 0 ? 1 : dimension;
    }
  }
  return info;
}

TensorInfo read_npy(const base::ByteSource& source) {
  return read_npy(source, {.name = "", .offset_bytes = 0, .size_bytes = source.size()});
}

std::vector<TensorInfo> read_npz(const ZipReader& zip) {
  std::vector<TensorInfo> arrays;
  for (const ZipEntry& entry : zip.entries()) {
    if (!entry.name.ends_with(kSuffix)) {
      throw FormatError("{}: record {} is not an array (.npy)", zip.source().name(),
                        base::shown(entry.name));
    }
    arrays.push_back(
        read_npy(zip.source(), {.name = entry.name.substr(0, entry.name.size() - kSuffix.size()),
                                .offset_bytes = entry.data_offset,
                                .size_bytes = entry.size_bytes}));
  }
  return arrays;
}

NpyWriter::NpyWriter(std::string path, DType dtype, std::span<const int64_t> shape)
    : path_(path), file_(std::move(path)) {
  const auto bytes = checked_bytes(dtype, shape);
  const auto kind = std::find_if(std::begin(kNpyKinds), std::end(kNpyKinds),
                                 [&](const NpyKind& other) { return other.dtype == dtype; });
  if (!bytes || kind == std::end(kNpyKinds) || shape.size() > kMaxDims) {
    throw UsageError("cannot write {}: NumPy cannot hold {}; write a .safetensors file", path_,
                     to_string(dtype, shape));
  }
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", kind->descr,
                  fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  // Spaces and a line end up to the alignment that NumPy promises.
  header.resize(
      base::rounded_up<size_t>(kShortStart + header.size() + 1, kHeaderAlignment) - kShortStart - 1,
      ' ');
  header += '\n';
  std::string head = std::string(kNpyMagic) + '\x01' + '\0';
  append_number<uint16_t>(head, static_cast<uint16_t>(header.size()));
  file_.append(head + header);
  end_ = file_.size() + *bytes;
}

void NpyWriter::finish() {
  if (file_.size() != end_) {
    throw UsageError("cannot write {}: its array ends at offset {}, and bytes up to {} were given",
                     path_, end_, file_.size());
  }
  file_.commit();
}

}  // namespace lockstep::formats
