#pragma once

#include <memory>
#include <string>
#include <vector>

#include "storage/storage.h"

namespace lockstep::storage {

// A file of the source and its place here.
struct FetchItem {
  ObjectInfo object;
  std::string target;
  bool has_sidecar = false;
};

// The source as a folder, and what is wanted of it.
struct FetchSource {
  std::shared_ptr<Storage> storage;
  std::string location;  // as given, without slashes at its end
  std::string folder;    // of a path here; empty for S3
  std::vector<FetchItem> items;

  std::string location_of(const FetchItem& item) const {
    return storage->location() + (storage->location().ends_with('/') ? "" : "/") + item.object.path;
  }
};

// Looks what `location` is and where each of its files goes. Throws IoError if there is none.
FetchSource find_source(const std::string& location, const std::string& destination);

}  // namespace lockstep::storage
