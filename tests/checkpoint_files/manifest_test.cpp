// A manifest is believed only if every bit of it is as it was written and makes sense.

#include "checkpoint_files/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "checkpoint_files/checkpoint_list.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

checkpoint_files::Manifest sample() {
  return {.step = 100,
          .sequence = 7,
          .created_s = 1'700'000'000,
          .score = 0.1,
          .values = {{"config", "lr = 3e-4\n"}, {"epoch", "2"}},
          .shards = {{"shard-00000-of-00002.safetensors", 4096 + 24, "00"},
                     {"shard-00001-of-00002.safetensors", 4096 + 8, "11"}},
          .tensors = {{"w", formats::DType::F32, {2, 3}, {{0, 4096, 0, 4}, {1, 4096, 4, 2}}},
                      {"empty", formats::DType::BF16, {0, 5}, {}},
                      {"scalar", formats::DType::F64, {}, {{0, 4112, 0, 1}}}},
          .attachments = {{"tokenizer.json", {"attached-tokenizer.json", 466'247, "22"}},
                          {"empty", {"attached-empty", 0, "33"}}}};
}

std::string refused(const checkpoint_files::Manifest& manifest) {
  try {
    checkpoint_files::parse_manifest("m", checkpoint_files::manifest_text(manifest));
  } catch (const FormatError& error) {
    return error.what();
  }
  return "none";
}

TEST(Manifest, ComesBackAsItWas) {
  const checkpoint_files::Manifest before = sample();
  const checkpoint_files::Manifest after =
      checkpoint_files::parse_manifest("m", checkpoint_files::manifest_text(before));
  EXPECT_EQ(after.step, 100);
  EXPECT_EQ(after.sequence, 7u);
  EXPECT_EQ(after.created_s, 1'700'000'000);
  EXPECT_EQ(after.score, 0.1);
  EXPECT_EQ(after.values, before.values);
  EXPECT_EQ(after.shard_bytes(), 8192u + 32 + 466'247);
  ASSERT_EQ(after.attachments.size(), 2u);
  EXPECT_EQ(after.attachments[0].name, "tokenizer.json");
  EXPECT_EQ(after.attachments[0].stored.file, "attached-tokenizer.json");
  EXPECT_EQ(after.file(2).xxh3, "22") << "attachments follow the shards";
  EXPECT_EQ(checkpoint_files::manifest_text(after), checkpoint_files::manifest_text(before));
}

TEST(Manifest, EveryFlippedBitIsSeen) {
  const std::string text = checkpoint_files::manifest_text(sample());
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ 1 << bit);
      EXPECT_THROW(checkpoint_files::parse_manifest("m", damaged), FormatError)
          << "bit " << bit << " of byte " << i;
    }
  }
}

TEST(Manifest, EveryShorterOneIsSeen) {
  const std::string text = checkpoint_files::manifest_text(sample());
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_THROW(checkpoint_files::parse_manifest("m", text.substr(0, size)), FormatError) << size;
  }
  EXPECT_THROW(checkpoint_files::parse_manifest("m", text + "\n"), FormatError);
}

TEST(Manifest, AttachmentsThatCannotBeAreRefused) {
  const auto refuses = [](const checkpoint_files::ManifestAttachment& attachment,
                          const char* reason) {
    checkpoint_files::Manifest manifest = sample();
    manifest.attachments.push_back(attachment);
    EXPECT_THAT(refused(manifest), HasSubstr(reason)) << attachment.name;
  };
  for (const char* name : {"", "../x", "a/b", ".hidden", "a b", "a\nb", "\xc3\xa9"}) {
    refuses({name, {"attached-x", 1, "44"}}, "is no name of an attachment");
  }
  refuses({std::string(101, 'a'), {"attached-x", 1, "44"}}, "is no name of an attachment");
  refuses({"tokenizer.json", {"attached-x", 1, "44"}}, "stands there twice");
  refuses({"x", {"../attached-x", 1, "44"}}, "is no name of a shard");
  refuses({"x", {".x", 1, "44"}}, "is no name of a shard");
  refuses({"x", {"manifest.json", 1, "44"}}, "stands there twice");
  refuses({"x", {"shard-00000-of-00002.safetensors", 1, "44"}}, "stands there twice");
  refuses({"x", {"attached-x", ~uint64_t{0}, "44"}}, "the limit is 268435456");
  checkpoint_files::Manifest manifest = sample();
  for (int i = 0; i < 100; ++i) {
    manifest.attachments.push_back(
        {fmt::format("a{}", i), {fmt::format("attached-a{}", i), 1, "44"}});
  }
  EXPECT_THAT(refused(manifest), HasSubstr("102 attachments"));
}

TEST(Manifest, AnAttachmentsNameIsLettersDigitsAndThreeSigns) {
  for (const char* name : {"a", "Z", "0", "my-model_2.json", "-", "_", "a..b"}) {
    EXPECT_TRUE(checkpoint_files::is_attachment_name(name)) << name;
  }
  for (const char* name : {"", ".hidden", "a/b", "a b", "a+b", "\xc3\xa4", "a\n"}) {
    EXPECT_FALSE(checkpoint_files::is_attachment_name(name)) << name;
  }
}

TEST(Manifest, WhatCannotBeIsRefused) {
  checkpoint_files::Manifest manifest = sample();
  manifest.tensors[0].pieces[1].offset_bytes = 4097;
  EXPECT_EQ(refused(manifest), "m: the piece of tensor \"w\" at element 4 is not where it can be");
  manifest = sample();
  manifest.tensors[0].pieces[0].offset_bytes = ~uint64_t{0} - 3;
  EXPECT_THAT(refused(manifest), HasSubstr("is not where it can be"));
  manifest = sample();
  manifest.tensors[0].pieces[0].shard = 2;
  EXPECT_THAT(refused(manifest), HasSubstr("is not where it can be"));
  manifest = sample();
  manifest.tensors[0].pieces.pop_back();
  EXPECT_EQ(refused(manifest), "m: the pieces of tensor \"w\" have 4 of its 6 elements");
  manifest = sample();
  manifest.tensors[0].shape = {int64_t{1} << 62, 8};
  EXPECT_THAT(refused(manifest), HasSubstr("cannot be F32"));
  manifest = sample();
  manifest.tensors[1].name = "w";
  EXPECT_EQ(refused(manifest), "m: the name \"w\" stands there twice");
  manifest = sample();
  manifest.shards[0].file = "../../etc/passwd";
  EXPECT_THAT(refused(manifest), HasSubstr("is no name of a shard"));
  manifest = sample();
  manifest.step = -1;
  EXPECT_EQ(refused(manifest), "m: its step is -1");
}

TEST(Manifest, OnlyTextIsWritten) {
  checkpoint_files::Manifest manifest = sample();
  manifest.values["rng"] = "\xff\xfe";
  EXPECT_THROW(checkpoint_files::manifest_text(manifest), UsageError);
}

TEST(CheckpointName, IsTheStep) {
  EXPECT_EQ(checkpoint_files::checkpoint_name(100), "step-00000100");
  EXPECT_EQ(checkpoint_files::step_of("step-00000100"), 100);
  EXPECT_EQ(checkpoint_files::step_of("step-123456789"), 123456789);
  for (const char* name : {"step-100", "step-", "step-00000100x", "step--0000001", "stop-00000100",
                           ".step-00000100.part"}) {
    EXPECT_EQ(checkpoint_files::step_of(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace lockstep
