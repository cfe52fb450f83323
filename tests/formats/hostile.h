#pragma once

// Files that break one rule each: docs/formats/hostile.md says which, and what the error must be.

#include <string>
#include <vector>

namespace lockstep::test {

struct HostileFile {
  std::string name;  // as in the table
  std::string bytes;
};

std::vector<HostileFile> hostile_safetensors();
std::vector<HostileFile> hostile_index();
std::vector<HostileFile> hostile_zip();
std::vector<HostileFile> hostile_torch();
std::vector<HostileFile> hostile_pickle();
std::vector<HostileFile> hostile_legacy();
std::vector<HostileFile> hostile_tar();
std::vector<HostileFile> hostile_npy();
std::vector<HostileFile> hostile_npz();
std::vector<HostileFile> hostile_tokens();
std::vector<HostileFile> hostile_sidecar();
std::vector<HostileFile> hostile_any();

}  // namespace lockstep::test
