#pragma once

#include "storage/storage.h"

namespace lockstep::storage {

// A folder, local or on a file system that the nodes share.
class FolderStorage : public Storage {
 public:
  FolderStorage(std::string location, std::string folder);

  const std::string& location() const override { return location_; }
  std::vector<ObjectInfo> list(const std::string& prefix) const override;
  std::optional<ObjectInfo> find(const std::string& path) const override;
  std::unique_ptr<base::ByteSource> open(const std::string& path) const override;
  std::unique_ptr<ObjectWriter> create(const std::string& path) override;
  bool create_new(const std::string& path, std::string_view text) override;
  void remove(const std::string& path) override;

 private:
  std::string at(const std::string& path) const;

  std::string location_;
  std::string folder_;  // ends with a slash
};

}  // namespace lockstep::storage
