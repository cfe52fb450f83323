#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/torch/pickler.h"
#include "formats/support.h"
#include "formats/torch/unpickler.h"

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

TEST(Unpickler, RefusesAStorageWhereNoneCanBe) {
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
