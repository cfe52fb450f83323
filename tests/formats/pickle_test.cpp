#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/little_endian.h"
#include "formats/support.h"
#include "formats/torch/pickler.h"
#include "formats/torch/unpickler.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using namespace std::string_literals;
using Kind = formats::PickleValue::Kind;

formats::Pickle load(const std::string& body,
                     formats::PersistentIds ids = formats::PersistentIds::Zip) {
  return formats::unpickle("\x80\x02" + body + ".", {.file = "x", .ids = ids});
}

std::string text(const std::string& letters) {
  std::string bytes = "X";
  formats::append_number<uint32_t>(bytes, static_cast<uint32_t>(letters.size()));
  return bytes + letters;
}

std::string storage_id(const std::string& type = "ctorch\nFloatStorage\n", int32_t count = 6) {
  std::string number = "J";
  formats::append_number<int32_t>(number, count);
  return "(" + text("storage") + type + text("0") + text("cpu") + number + "tQ";
}

// A call of _rebuild_tensor_v2 for a float tensor [2, 3], with `tail` after the hooks.
std::string tensor(const std::string& storage, const std::string& tail = "") {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + "K\0(K\x02K\x03t(K\x03K\x01t\x89"s +
         "ccollections\nOrderedDict\n)R" + tail + "tR";
}

TEST(Unpickler, ReadsPlainValues) {
  const formats::Pickle pickle =
      load("(NJ\xff\xff\xff\xffK\x07M\x01\x02\x8a\x05\0\0\0\0\x01\x8a\0G\x3f\xd0\0\0\0\0\0\0\x88"s +
           text("한") + "U\x02hi]K\x01"s + "a}K\x01K\x02s\x8ft"s);
  const std::vector<formats::PickleValue>& items = pickle.root.items;
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
  const formats::Pickle pickle = load(tensor(storage_id()));
  ASSERT_EQ(pickle.tensors.size(), 1u);
  EXPECT_THAT(pickle.tensors[0].shape, testing::ElementsAre(2, 3));
  EXPECT_EQ(pickle.storages.at(0).size_bytes, 24u);
  EXPECT_EQ(load(tensor(storage_id(), "}")).tensors.size(), 1u);
}

TEST(Unpickler, RefusesAStorageWhereNoneCanBe) {
  EXPECT_THAT(test::refusal([&] { load(storage_id(), formats::PersistentIds::None); }),
              HasSubstr("a persistent id that is not"));
}

TEST(Pickler, WritesWhatTheUnpicklerReads) {
  const std::vector<formats::PickledStorage> storages{{.key = "0", .size_bytes = 24}};
  const std::vector<formats::PickledTensor> tensors{
      {.dtype = formats::DType::F32, .offset = 1, .shape = {2, 2}, .strides = {1, 2}},
      {.dtype = formats::DType::U16, .shape = {12}, .strides = {1}}};
  formats::PickleValue root{.kind = Kind::Dict};
  const auto add = [&](const std::string& key, formats::PickleValue value) {
    root.items.push_back(formats::PickleValue::of(key));
    root.items.push_back(std::move(value));
  };
  add("tensor", formats::PickleValue::of_tensor(0));
  add("ids", formats::PickleValue::of_tensor(1));
  add("int", formats::PickleValue::of(-5));
  add("long", formats::PickleValue::of(int64_t{1} << 40));
  add("big", {.kind = Kind::BigInt, .text = "123456789"});
  add("float", {.kind = Kind::Float, .real = -0.1});
  add("bytes", {.kind = Kind::Bytes, .text = "\xff\x80 a\0"s});
  add("size", {.kind = Kind::Size, .items = {formats::PickleValue::of(3)}});
  add("set", {.kind = Kind::Set, .items = {formats::PickleValue::of(3)}});
  add("device", {.kind = Kind::Device, .text = "cuda:1"});
  add("dtype", {.kind = Kind::DType, .integer = static_cast<int64_t>(formats::DType::BF16)});
  add("list", {.kind = Kind::List, .items = {{}, {.kind = Kind::Bool, .integer = 1}}});
  const std::string bytes = formats::pickle(root, tensors, storages);
  const formats::Pickle back = formats::unpickle(bytes, {.file = "x"});
  EXPECT_EQ(back.size_bytes, bytes.size());
  ASSERT_EQ(back.tensors.size(), 2u);
  EXPECT_EQ(back.tensors[0].offset, 1u);
  EXPECT_EQ(back.tensors[1].dtype, formats::DType::U16);
  EXPECT_EQ(back.storages.size(), 1u);
  EXPECT_EQ(formats::pickle(back.root, back.tensors, back.storages), bytes);
  EXPECT_EQ(back.root.find("bytes")->text, "\xff\x80 a\0"s);
  EXPECT_THROW(
      formats::pickle(formats::PickleValue::of_tensor(0),
                      std::vector<formats::PickledTensor>{{.dtype = formats::DType::F4}}, storages),
      UsageError);
}

}  // namespace
}  // namespace lockstep
