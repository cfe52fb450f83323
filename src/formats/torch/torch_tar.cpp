#include <unordered_map>

#include <lockstep/base/error.h>

#include "formats/archive/tar_reader.h"
#include "formats/little_endian.h"
#include "formats/torch/pickle_rebuild.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/unpickler.h"

namespace lockstep::formats {

namespace {

using Kind = PickleValue::Kind;

constexpr uint64_t kMaxTableBytes = 64u << 20;
constexpr uint64_t kRowBytes = 4096;  // more than a row's key, place and class can have
constexpr int64_t kMaxRows = 200'000;
constexpr uint64_t kNumberBytes = 8;

// A member, from its start to its end: pickles with raw numbers between them.
class Cursor {
 public:
  Cursor(const base::ByteSource& source, const TarMember& member)
      : source_(source), offset_(member.offset_bytes), end_(offset_ + member.size_bytes) {}

  uint64_t offset() const { return offset_; }
  uint64_t left() const { return end_ - offset_; }

  PickleValue pickle(uint64_t max_bytes = kRowBytes) {
    const std::string bytes = source_.read_text(offset_, std::min(left(), max_bytes));
    Pickle pickle =
        unpickle(bytes, {.file = source_.name(), .offset = offset_, .ids = PersistentIds::Tar});
    offset_ += pickle.size_bytes;
    return std::move(pickle.root);
  }

  // How many rows follow.
  int64_t num_rows() {
    const PickleValue value = pickle();
    if (value.kind != Kind::Int || value.integer < 0 || value.integer > kMaxRows) {
      fail("a number of rows that is none, or above the limit of 200000");
    }
    return value.integer;
  }

  // (key, ..., ...), the last of them a type.
  std::vector<PickleValue> row() {
    PickleValue value = pickle();
    if (value.kind != Kind::Tuple || value.items.size() != 3 ||
        value.items[2].kind != Kind::DType) {
      fail("a row that is not a key, something and a class of torch");
    }
    return std::move(value.items);
  }

  // The key of a storage as persistent ids spell it.
  std::string key(const PickleValue& value) const {
    if (value.kind != Kind::Int && value.kind != Kind::String) {
      fail("a key that is neither number nor text");
    }
    return value.kind == Kind::Int ? std::to_string(value.integer) : value.text;
  }

  template <typename Number>
  Number number() {
    const uint64_t at = offset_;
    skip(sizeof(Number));
    return number_at<Number>(source_.read_text(at, sizeof(Number)), 0);
  }

  void skip(uint64_t size) {
    if (size > left()) {
      fail(fmt::format("{} bytes where {} are left: it is truncated", size, left()));
    }
    offset_ += size;
  }

  void check_end() const {
    if (left() != 0) {
      fail(fmt::format("{} bytes that belong to nothing", left()));
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError("{}: the tar has, at offset {}, {}", source_.name(), offset_, what);
  }

 private:
  const base::ByteSource& source_;
  uint64_t offset_;
  uint64_t end_;
};

class TarTables {
 public:
  explicit TarTables(const base::ByteSource& source) : source_(source) {}

  void read_storages(Cursor cursor) {
    const int64_t num_storages = cursor.num_rows();
    for (int64_t i = 0; i < num_storages; ++i) {
      const std::vector<PickleValue> row = cursor.row();
      const auto dtype = static_cast<DType>(row[2].integer);
      const auto count = cursor.number<uint64_t>();
      const auto size = checked_multiply(count, static_cast<uint64_t>(bits_of(dtype)) / 8);
      if (!size || *size > cursor.left()) {
        cursor.fail(
            fmt::format("storage {} of {} elements, where {} bytes are left: it is "
                        "truncated",
                        base::shown(cursor.key(row[0])), count, cursor.left()));
      }
      add(cursor, cursor.key(row[0]), {storages_.size(), dtype, 0, *size});
      storages_.push_back(
          {.key = cursor.key(row[0]), .offset_bytes = cursor.offset(), .size_bytes = *size});
      cursor.skip(*size);
    }
    read_views(cursor);
    cursor.check_end();
  }

  void read_tensors(Cursor cursor) {
    const int64_t num_tensors = cursor.num_rows();
    for (int64_t i = 0; i < num_tensors; ++i) {
      const std::vector<PickleValue> row = cursor.row();
      const auto found = places_.find(cursor.key(row[1]));
      if (found == places_.end() || static_cast<DType>(row[2].integer) != found->second.dtype) {
        cursor.fail(fmt::format("tensor {} in storage {}, which is not there or of another type",
                                base::shown(cursor.key(row[0])), base::shown(cursor.key(row[1]))));
      }
      tensors_.push_back(read_tensor(cursor, found->second));
      if (!tensor_of_key_.emplace(cursor.key(row[0]), tensors_.size() - 1).second) {
        cursor.fail(fmt::format("tensor {} twice", base::shown(cursor.key(row[0]))));
      }
    }
    cursor.check_end();
  }

  TorchFile read_root(const TarMember& member) {
    if (member.size_bytes > kMaxTableBytes) {
      throw FormatError("{}: a pickle of {} bytes at offset {} is above the limit of {}",
                        source_.name(), member.size_bytes, member.offset_bytes, kMaxTableBytes);
    }
    Pickle pickle = unpickle(source_.read_text(member.offset_bytes, member.size_bytes),
                             {.file = source_.name(),
                              .offset = member.offset_bytes,
                              .ids = PersistentIds::Tar,
                              .tensors = &tensor_of_key_});
    if (pickle.size_bytes != member.size_bytes) {
      throw FormatError("{}: {} bytes follow the pickle at offset {}", source_.name(),
                        member.size_bytes - pickle.size_bytes,
                        member.offset_bytes + pickle.size_bytes);
    }
    pickle.tensors = std::move(tensors_);
    return place_tensors(source_, std::move(pickle), std::move(storages_));
  }

 private:
  struct Place {
    size_t storage = 0;
    DType dtype = DType::F32;
    uint64_t offset = 0;  // in elements
    uint64_t size_bytes = 0;
  };

  void add(const Cursor& cursor, const std::string& key, const Place& place) {
    if (!places_.emplace(key, place).second) {
      cursor.fail(fmt::format("storage {} twice", base::shown(key)));
    }
  }

  // [(key, key of the storage that it lies in, first element, number of elements), ...]
  void read_views(Cursor& cursor) {
    const PickleValue views = cursor.pickle(kMaxTableBytes);
    if (views.kind != Kind::List) {
      cursor.fail("something else than a list of views");
    }
    for (const PickleValue& view : views.items) {
      if (view.kind != Kind::Tuple || view.items.size() != 4 || view.items[2].kind != Kind::Int ||
          view.items[3].kind != Kind::Int) {
        cursor.fail("a view that is not two keys, offset and size");
      }
      const auto root = places_.find(cursor.key(view.items[1]));
      if (root == places_.end()) {
        cursor.fail(fmt::format("a view of storage {}, which is not there",
                                base::shown(cursor.key(view.items[1]))));
      }
      Place place = root->second;
      const uint64_t element_bytes = static_cast<uint64_t>(bits_of(place.dtype)) / 8;
      const uint64_t num_elements = place.size_bytes / element_bytes;
      const auto offset = static_cast<uint64_t>(view.items[2].integer);
      const auto count = static_cast<uint64_t>(view.items[3].integer);
      if (offset > num_elements || count > num_elements - offset) {
        cursor.fail(
            fmt::format("a view of {} elements from {} on, which reaches out of its "
                        "storage of {}",
                        view.items[3].integer, view.items[2].integer, num_elements));
      }
      place.offset += offset;
      place.size_bytes = count * element_bytes;
      add(cursor, cursor.key(view.items[0]), place);
    }
  }

  PickledTensor read_tensor(Cursor& cursor, const Place& place) const {
    const auto num_dims = cursor.number<uint32_t>();
    cursor.skip(4);
    if (num_dims > kMaxDims) {
      cursor.fail(fmt::format("a tensor of {} dimensions, the limit is {}", num_dims, kMaxDims));
    }
    PickledTensor tensor{.storage = place.storage, .dtype = place.dtype};
    for (std::vector<int64_t>* numbers : {&tensor.shape, &tensor.strides}) {
      for (uint32_t i = 0; i < num_dims; ++i) {
        numbers->push_back(cursor.number<int64_t>());
      }
    }
    tensor.offset = cursor.number<uint64_t>();
    try {
      check_tensor(tensor, place.size_bytes);
    } catch (const FormatError& error) {
      cursor.fail(error.what());
    }
    tensor.offset += place.offset;
    return tensor;
  }

  const base::ByteSource& source_;
  std::vector<TorchStorage> storages_;
  std::unordered_map<std::string, Place> places_;
  std::vector<PickledTensor> tensors_;
  std::unordered_map<std::string, size_t> tensor_of_key_;
};

const TarMember& find(const base::ByteSource& source, const std::vector<TarMember>& members,
                      std::string_view name) {
  for (const TarMember& member : members) {
    if (member.name == name) {
      return member;
    }
  }
  throw FormatError("{}: no member {} in the tar; is this a file of torch.save?", source.name(),
                    base::shown(name));
}

}  // namespace

TorchFile read_torch_tar(const base::ByteSource& source) {
  const std::vector<TarMember> members = read_tar(source);
  const PickleValue system = Cursor(source, find(source, members, "sys_info")).pickle();
  check_little_endian(source, system);
  TarTables tables(source);
  tables.read_storages({source, find(source, members, "storages")});
  tables.read_tensors({source, find(source, members, "tensors")});
  return tables.read_root(find(source, members, "pickle"));
}

}  // namespace lockstep::formats
