#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/pickler.h"
#include "formats/support.h"
#include "formats/unpickler.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using namespace std::string_literals;
using Kind = PickleValue::Kind;

Pickle load(const std::string& body, PersistentIds ids = PersistentIds::Zip) {
  return unpickle("\x80\x02" + body + ".", {.file = "x", .ids = ids});
}

std::string text(const std::string& letters) {
  std::string bytes = "X";
  append_number<uint32_t>(bytes, static_cast<uint32_t>(letters.size()));
  return bytes + letters;
}

std::string storage_id(const std::string& type = "ctorch\nFloatStorage\n", int32_t count = 6) {
  std::string number = "J";
  append_number<int32_t>(number, count);
  return "(" + text("storage") + type + text("0") + text("cpu") + number + "tQ";
}

// A call of _rebuild_tensor_v2 for a float tensor [2, 3], with `tail` after the hooks.
std::string tensor(const std::string& storage, const std::string& tail = "") {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + "K\0(K\x02K\x03t(K\x03K\x01t\x89"s +
         "ccollections\nOrderedDict\n)R" + tail + "tR";
}

TEST(Unpickler, ReadsPlainValues) {
  const Pickle pickle =
      load("(NJ\xff\xff\xff\xffK\x07M\x01\x02\x8a\x05\0\0\0\0\x01\x8a\0G\x3f\xd0\0\0\0\0\0\0\x88"s +
           text("한") + "U\x02hi]K\x01"s + "a}K\x01K\x02s\x8ft"s);
  const std::vector<PickleValue>& items = pickle.root.items;
  ASSERT_EQ(items.size(), 13u);
  EXPECT_EQ(items[0].kind, Kind::None);
  EXPECT_EQ(items[1].integer, -1);
  EXPECT_EQ(items[2].integer, 7);
  EXPECT_EQ(items[3].integer, 513);
  EXPECT_EQ(items[4].integer, int64_t{1} << 32);
  EXPECT_EQ(items[5].integer, 0);
  EXPECT_EQ(items[6].real, 0.25);
  EXPECT_EQ(items[7].kind, Kind::Bool);
  EXPECT_EQ(items[8].text, "한");
  EXPECT_EQ(items[9].text, "hi");
  EXPECT_EQ(items[10].items.at(0).integer, 1);
  EXPECT_EQ(items[11].items.at(1).integer, 2);
}

TEST(Unpickler, ReadsTensorsInsideTheirStorages) {
  const Pickle pickle = load(tensor(storage_id()));
  ASSERT_EQ(pickle.tensors.size(), 1u);
  EXPECT_THAT(pickle.tensors[0].shape, testing::ElementsAre(2, 3));
  EXPECT_EQ(pickle.storages.at(0).size_bytes, 24u);
  EXPECT_EQ(load(tensor(storage_id(), "}")).tensors.size(), 1u);
}

TEST(Unpickler, RefusesEveryHostilePickleWithItsReason) {
  std::string laughs = "(]q\0"s;
  for (char level = 1; level < 30; ++level) {
    laughs +=
        "](h"s + static_cast<char>(level - 1) + "h" + static_cast<char>(level - 1) + "eq" + level;
  }
  std::string copies = "(" + text(std::string(1 << 20, 'x')) + "q\0"s;
  std::string calls = "](" + std::string(100'000, 'N') + "eq\0("s;
  for (int i = 0; i < 1000; ++i) {
    copies += "h\0"s;
    calls += "c__builtin__\nset\nh\0\x85R"s;
  }
  const std::pair<std::string, const char*> cases[] = {
      {"cos\nsystem\n" + text("id") + "\x85R", "the constructor \"os.system\""},
      {"cnumpy\nndarray\n", "the constructor \"numpy.ndarray\""},
      {"ctorch\nload\n", "the constructor \"torch.load\""},
      {"c__builtin__\neval\n", "the constructor \"__builtin__.eval\""},
      {"c" + std::string(1000, 'x'), "a name that does not end"},
      {"ios\nsystem\n", "the opcode 0x69"},
      {"o", "the opcode 0x6f"},
      {"Pid\n", "the opcode 0x50"},
      {"\x93", "the opcode 0x93"},
      {"\x80\x04N", "a protocol that is not 2"},
      {"X\xff\xff\xff\xff", "4294967295 bytes where 1 are left"},
      {"\x8a\x20", "32 bytes where 1 are left"},
      {"", "an end with 0 values"},
      {"NN", "an end with 2 values"},
      {"N(", "1 open marks"},
      {"0", "the opcode 0x30"},
      {"t", "needs a mark"},
      {"N\x86", "more values than there are"},
      {"N(\x85", "more values than there are"},
      {"]NNs", "is no dict"},
      {"}Na", "is no list"},
      {"}(Nu", "a key without a value"},
      {"h\x05", "slot 5, where nothing was remembered"},
      {"q\x05", "more values than there are"},
      {"]q\0h\0a"s, "nested deeper than 100"},
      {std::string(1000, ']') + std::string(999, 'a'), "nested deeper than 100"},
      {laughs + "t", "a tree of more than 4000000 values"},
      {copies + "t", "a tree of more than 4000000 values or 268435456 bytes"},
      {calls + "t", "values of more than 268435456 bytes"},
      {std::string(1'100'000, '('), "more than 1000000 marks"},
      {std::string(1'100'000, 'N'), "more than 1000000 values on its stack"},
      {text("f") + ")R", "a call of something that is no function"},
      {"ccollections\nOrderedDict\nNR", "or without a tuple"},
      {"ccollections\nOrderedDict\nN\x85R", "something else than pairs"},
      {"ctorch\nFloatStorage\n)R", "only named, never called"},
      {"ctorch\nfloat32\n)R", "a call of something that is no function"},
      {"ctorch\nFloatStorage\n", "a class or a storage where a value belongs"},
      {storage_id(), "a class or a storage where a value belongs"},
      {"}}b", "a state for something that is no OrderedDict"},
      {"c__builtin__\nset\nN\x85R", "arguments that it does not take"},
      {"ctorch\nSize\nN\x85R", "a tuple of numbers belongs"},
      {"c_codecs\nencode\n" + text("a") + text("utf-8") + "\x86R", "another encoding"},
      {"c_codecs\nencode\n" + text("한") + text("latin1") + "\x86R", "beyond 255"},
      {"}" + text("a") + "Ns" + text("a") + "Ns", "the key \"a\" twice"},
      {"}]Ns", "a key that no dict can have"},
      {"NQ", "a persistent id that is not"},
      {"(" + text("module") + "NNNNtQ", "a persistent id that is not"},
      {storage_id("N"), "a storage whose class is none"},
      {storage_id("ctorch\nSize\n"), "a storage whose class is none"},
      {storage_id("ctorch\nFloatStorage\n", -1), "storage \"0\" of -1 elements"},
      {"(" + storage_id() + storage_id("ctorch\nLongStorage\n") + "t", "which had 24 before"},
      {tensor("N"), "not from a storage"},
      {tensor(storage_id("ctorch.storage\nUntypedStorage\n")), "a tensor without a type"},
      {tensor(storage_id("ctorch\nFloatStorage\n", 5)), "reaches out of its storage of 20 bytes"},
      {text("w") + tensor(storage_id("ctorch\nFloatStorage\n", 5)), "(near \"w\")"},
      {tensor(storage_id(), "}" + text("conj") + "\x88s"), "resolve_conj"},
      {tensor(storage_id(), "NN"), "a tensor from 8 arguments"},
  };
  for (const auto& [body, expected] : cases) {
    const std::string message = test::refusal([&body = body] { load(body); });
    EXPECT_THAT(message, HasSubstr(expected)) << body.substr(0, 60);
    EXPECT_THAT(message, testing::StartsWith("x: the pickle has, at offset "));
  }
  EXPECT_THAT(test::refusal([&] { load(storage_id(), PersistentIds::None); }),
              HasSubstr("a persistent id that is not"));
}

TEST(Pickler, WritesWhatTheUnpicklerReads) {
  const std::vector<PickledStorage> storages{{.key = "0", .size_bytes = 24}};
  const std::vector<PickledTensor> tensors{
      {.dtype = DType::F32, .offset = 1, .shape = {2, 2}, .strides = {1, 2}},
      {.dtype = DType::U16, .shape = {12}, .strides = {1}}};
  PickleValue root{.kind = Kind::Dict};
  const auto add = [&](const std::string& key, PickleValue value) {
    root.items.push_back(PickleValue::of(key));
    root.items.push_back(std::move(value));
  };
  add("tensor", PickleValue::of_tensor(0));
  add("ids", PickleValue::of_tensor(1));
  add("int", PickleValue::of(-5));
  add("long", PickleValue::of(int64_t{1} << 40));
  add("big", {.kind = Kind::BigInt, .text = "123456789"});
  add("float", {.kind = Kind::Float, .real = -0.1});
  add("bytes", {.kind = Kind::Bytes, .text = "\xff\x80 a\0"s});
  add("size", {.kind = Kind::Size, .items = {PickleValue::of(3)}});
  add("set", {.kind = Kind::Set, .items = {PickleValue::of(3)}});
  add("device", {.kind = Kind::Device, .text = "cuda:1"});
  add("dtype", {.kind = Kind::DType, .integer = static_cast<int64_t>(DType::BF16)});
  add("list", {.kind = Kind::List, .items = {{}, {.kind = Kind::Bool, .integer = 1}}});
  const std::string bytes = pickle(root, tensors, storages);
  const Pickle back = unpickle(bytes, {.file = "x"});
  EXPECT_EQ(back.size_bytes, bytes.size());
  ASSERT_EQ(back.tensors.size(), 2u);
  EXPECT_EQ(back.tensors[0].offset, 1u);
  EXPECT_EQ(back.tensors[1].dtype, DType::U16);
  EXPECT_EQ(back.storages.size(), 1u);
  EXPECT_EQ(pickle(back.root, back.tensors, back.storages), bytes);
  EXPECT_EQ(back.root.find("bytes")->text, "\xff\x80 a\0"s);
  EXPECT_THROW(
      pickle(PickleValue::of_tensor(0), std::vector<PickledTensor>{{.dtype = DType::F4}}, storages),
      UsageError);
}

}  // namespace
}  // namespace lockstep
