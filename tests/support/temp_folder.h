#pragma once

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <system_error>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::test {

// A folder that goes away with its contents.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw IoError("cannot make {}: {}", name, base::errno_text(errno));
    }
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string at(const std::string& name) const { return path_ + "/" + name; }  // need not exist

  // Makes a file and returns its path.
  std::string file(const std::string& name, const std::string& text, int mode = 0644) const {
    const base::UniqueFd fd = base::open_file(at(name), O_WRONLY | O_CREAT | O_TRUNC, mode);
    base::write_all(fd.get(), text.data(), text.size());
    return at(name);
  }

 private:
  std::string path_;
};

}  // namespace lockstep::test
