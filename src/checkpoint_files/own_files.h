#pragma once

// The names of the files of a checkpoint. Whatever lockstep deletes has one of these names: a
// folder or a bucket may hold files of others, also between the shards.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::checkpoint_files {

// "shard-00001-of-00004.safetensors"; with the save's number where shards of an older save of the
// same step stay beside it until the manifest is replaced:
// "shard-00001-of-00004-save-7.safetensors".
std::string shard_name(int rank, int size, std::optional<uint64_t> sequence = {});

// "attached-tokenizer.json", or "attached-save-7-tokenizer.json": a file of the program's that is
// kept with the tensors, named by the same rule.
std::string attachment_file_name(const std::string& name, std::optional<uint64_t> sequence = {});

// Whether it is the manifest's name or one that these functions give, and no other.
bool is_own_file(std::string_view name);

}  // namespace lockstep::checkpoint_files
