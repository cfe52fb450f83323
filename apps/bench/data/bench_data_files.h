#pragma once

// What `lockstep bench data` reads.

#include <cstdint>
#include <string>

namespace lockstep {

// A folder that goes away with its contents.
class BenchFolder {
 public:
  explicit BenchFolder(const std::string& parent);  // throws IoError
  ~BenchFolder();
  BenchFolder(const BenchFolder&) = delete;

  std::string at(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Writes JPEG pictures of 500 x 375 pixels in two classes, as rich in detail as photographs:
// about 60 KB each. Returns their bytes. Throws UsageError where lockstep was built without
// libjpeg.
int64_t write_bench_pictures(const std::string& folder, int64_t count);

// Writes random ids of GPT-2's vocabulary in llm.c's layout. Returns the file's bytes.
int64_t write_bench_tokens(const std::string& path, int64_t megabytes);

}  // namespace lockstep
