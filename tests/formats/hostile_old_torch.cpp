#include "formats/hostile.h"
#include "formats/little_endian.h"
#include "formats/support.h"

namespace lockstep::test {

namespace {

using namespace std::string_literals;

// A stream of one tensor of two floats, whose parts can be spoilt one by one.
struct Stream {
  std::string magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."s;
  std::string version = "\x80\x02M\xe9\x03."s;
  std::string little = "\x88";
  std::string id_tail = "K\x02N";  // number of elements, view_metadata
  std::string keys = "X\x01\0\0\0k"s;
  uint64_t count = 2;
  std::string data = "12345678";

  std::string file() const {
    std::string bytes = magic + version + "\x80\x02}X\x0d\0\0\0little_endian"s + little + "s.";
    bytes += "\x80\x02"s +
             "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n"s +
             "X\x01\0\0\0kX\x03\0\0\0cpu"s + id_tail + "tQK\0(K\x02t(K\x01t\x89}tR."s;
    bytes += "\x80\x02](" + keys + "e.";
    formats::append_number<uint64_t>(bytes, count);
    return bytes + data;
  }
};

std::string view(const std::string& offset_and_size, char key = 'v') {
  return "K\x02(X\x01\0\0\0"s + key + offset_and_size + "t";
}

std::string row(const std::string& fields) {
  return "\x80\x02(" + fields + "t.";
}

std::string value(const std::string& body) {
  return "\x80\x02" + body + ".";
}

std::string system(const std::string& little) {
  return value("}X\x0d\0\0\0little_endian"s + little + "s");
}

// (key, location, class), count; the elements follow.
std::string storage_row(const std::string& key = "K\x07",
                        const std::string& type = "ctorch\nFloatStorage\n", uint64_t count = 2) {
  std::string bytes = row(key + "N" + type);
  formats::append_number<uint64_t>(bytes, count);
  return bytes;
}

// A tar of one tensor of two floats, whose parts can be spoilt one by one.
struct Tables {
  std::string little = "\x88";
  std::string num_storages = "K\x01";
  std::string key = "K\x07";
  std::string storage_class = "ctorch\nFloatStorage\n";
  uint64_t count = 2;
  std::string more_storages;
  std::string views = "]";
  std::string behind;
  std::string storage_of_tensor = "K\x07";
  std::string tensor_class = "ctorch\nFloatTensor\n";
  uint32_t num_dims = 1;
  int64_t size = 2;
  int64_t offset = 0;
  std::string root = "K\x01Q";

  std::string file() const {
    const std::string storages = value(num_storages) + storage_row(key, storage_class, count) +
                                 "12345678" + more_storages + value(views) + behind;
    std::string tensors = value("K\x01") + row("K\x01" + storage_of_tensor + tensor_class);
    formats::append_number<uint32_t>(tensors, num_dims);
    formats::append_number<uint32_t>(tensors, 0);
    formats::append_number<int64_t>(tensors, size);
    formats::append_number<int64_t>(tensors, 1);
    formats::append_number<int64_t>(tensors, offset);
    return tar_of({{"sys_info", system(little)},
                   {"storages", storages},
                   {"tensors", tensors},
                   {"pickle", value(root)}});
  }
};

std::string extended(const std::string& record) {
  std::string bytes = tar_header("pax", record.size(), 'x') + record;
  bytes.resize(1024);
  return bytes + tar_of({});
}

std::string without_size() {
  std::string header = tar_header("pickle", 0);
  header[124] = 'z';
  header[0] = static_cast<char>('p' - ('z' - '0'));  // so that the checksum stays right
  return header + tar_of({});
}

}  // namespace

std::vector<HostileFile> hostile_legacy() {
  return {
      {"other-magic",
       Stream{.magic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x18."s}.file()},
      {"other-version", Stream{.version = "\x80\x02M\xea\x03."s}.file()},
      {"big-endian", Stream{.little = "\x89"}.file()},
      {"no-endianness", Stream{.little = "N"}.file()},
      {"five-fields", Stream{.id_tail = "K\x02"}.file()},
      {"view-without-fields", Stream{.id_tail = "K\x02)"}.file()},
      {"view-outside", Stream{.id_tail = view("K\x01K\x02")}.file()},
      {"negative-view", Stream{.id_tail = view("J\xff\xff\xff\xffK\x01")}.file()},
      {"outside-of-view", Stream{.id_tail = view("K\0K\x01"s)}.file()},
      {"view-of-itself", Stream{.id_tail = view("K\0K\x02"s, 'k')}.file()},
      {"outside", Stream{.id_tail = "K\x01N"}.file()},
      {"other-count", Stream{.id_tail = "K\x03N"}.file()},
      {"no-keys", Stream{.keys = ""}.file()},
      {"unused-key", Stream{.keys = "X\x01\0\0\0j"s}.file()},
      {"key-none", Stream{.keys = "N"}.file()},
      {"larger-count", Stream{.count = 3}.file()},
      {"count-overflow", Stream{.count = 1ull << 62}.file()},
      {"truncated", Stream{.data = "1234567"}.file()},
      {"bytes-behind", Stream{.data = "123456789"}.file()},
  };
}

std::vector<HostileFile> hostile_tar() {
  const std::string good = Tables{}.file();
  return {
      {"flipped-header", flipped(good, "sys_info")},
      {"size-not-octal", without_size()},
      {"member-past-end", tar_header("pickle", 1u << 20)},
      {"no-end", good.substr(0, good.size() - 1024)},
      {"bytes-behind", good + "x"},
      {"duplicate", tar_of({{"pickle", ""}, {"pickle", ""}})},
      {"symbolic-link", tar_header("storages", 0, '2') + std::string(1024, '\0')},
      {"parent", tar_of({{"../pickle", ""}})},
      {"extended-size", extended("11 size=99\n")},
      {"extended-garbage", extended("99 mtime=1\n")},
      {"no-storages", tar_of({{"sys_info", system("\x88")}})},
      {"big-endian", Tables{.little = "\x89"}.file()},
      {"rows-none", Tables{.num_storages = "N"}.file()},
      {"many-rows", Tables{.num_storages = "J\xff\xff\xff\x7f"}.file()},
      {"negative-rows", Tables{.num_storages = "J\xff\xff\xff\xff"}.file()},
      {"row-without-class", Tables{.storage_class = "N"}.file()},
      {"row-of-os", Tables{.storage_class = "cos\nsystem\n"}.file()},
      {"key-none", Tables{.key = "N"}.file()},
      {"count-too-large", Tables{.count = 4}.file()},
      {"count-overflow", Tables{.count = 1ull << 62}.file()},
      {"duplicate-storage",
       Tables{.num_storages = "K\x02", .more_storages = storage_row() + "12345678"}.file()},
      {"views-none", Tables{.views = "N"}.file()},
      {"view-without-fields", Tables{.views = "])a"}.file()},
      {"view-of-nothing", Tables{.views = "](K\x08K\x09K\0K\x01ta"s}.file()},
      {"view-outside", Tables{.views = "](K\x08K\x07K\x01K\x02ta"}.file()},
      {"bytes-behind-table", Tables{.behind = "x"}.file()},
      {"tensor-of-nothing", Tables{.storage_of_tensor = "K\x09"}.file()},
      {"other-type", Tables{.tensor_class = "ctorch\nLongTensor\n"}.file()},
      {"many-dimensions", Tables{.num_dims = 65}.file()},
      {"shape-outside", Tables{.size = 3}.file()},
      {"negative-size", Tables{.size = -1}.file()},
      {"offset-outside", Tables{.offset = 1}.file()},
      {"unknown-tensor", Tables{.root = "K\x05Q"}.file()},
      {"module", Tables{.root = ")Q"}.file()},
      {"os-system", Tables{.root = "cos\nsystem\n"}.file()},
      {"bytes-behind-pickle", Tables{.root = "N.N"}.file()},
  };
}

}  // namespace lockstep::test
