// Which files are a checkpoint's own: only these are ever deleted.

#include "checkpoint_files/own_files.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(OwnFiles, HaveTheNamesThatLockstepGives) {
  EXPECT_EQ(checkpoint_files::shard_name(1, 4), "shard-00001-of-00004.safetensors");
  EXPECT_EQ(checkpoint_files::shard_name(1, 4, 7), "shard-00001-of-00004-save-7.safetensors");
  for (const std::string& name : {std::string("manifest.json"), checkpoint_files::shard_name(0, 1),
                                  checkpoint_files::shard_name(7, 8, 0),
                                  checkpoint_files::shard_name(123456, 200000, 12345678901),
                                  checkpoint_files::attachment_file_name("tokenizer.json"),
                                  checkpoint_files::attachment_file_name("labels.txt", 7)}) {
    EXPECT_TRUE(checkpoint_files::is_own_file(name)) << name;
  }
}

TEST(OwnFiles, AreNoOthers) {
  for (const char* name :
       {"", "manifest.json.bak", "MANIFEST.json", "notes/manifest.json", "shard-0-of-1.safetensors",
        "shard-00000-of-00001.safetensors.sha256", "shard-00000-of-00001-save-.safetensors",
        "shard-00000-of-00001-save-1-mine.safetensors", "my-shard-00000-of-00001.safetensors",
        "shard-000000-of-00001.safetensors", "shard-00000-of-00001", "shard-.safetensors",
        "model.safetensors", "attached-", "attached-my notes.txt", "attached", "attached-.x"}) {
    EXPECT_FALSE(checkpoint_files::is_own_file(name)) << name;
  }
}

}  // namespace
}  // namespace lockstep
