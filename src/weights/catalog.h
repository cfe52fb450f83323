#pragma once

// What all files of a location hold: read by one rank, sent to the others as bytes.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <lockstep/weights/weights.h>

#include "base/byte_source.h"
#include "formats/weight_file.h"

namespace lockstep::weights {

struct CatalogFile {
  std::string location;  // as the user's, for messages and other nodes
  std::string opened;    // what to open: the same, or this node's copy of it
  uint64_t size_bytes = 0;
  std::vector<formats::WeightChecksum> checksums;
};

struct CatalogTensor {
  formats::TensorInfo info;
  size_t file = 0;  // which of the files
};

struct WeightCatalog {
  std::string location;
  std::vector<CatalogFile> files;
  std::vector<CatalogTensor> tensors;
  std::vector<WeightInfo> infos;                  // the same tensors, for users
  std::unordered_map<std::string, size_t> index;  // by name, into both
  std::map<std::string, std::string> metadata;

  // Fills `infos` and `index`. Throws FormatError if a name stands there twice.
  void finish();
};

// The files that make up a location: the location itself, or those of a folder.
std::vector<std::string> find_weight_files(const std::string& location);

// Reads the headers of `files` (what find_weight_files found; opened as `opened` says).
WeightCatalog read_catalog(const std::string& location, const std::vector<std::string>& files,
                           const std::vector<std::string>& opened);

std::vector<uint8_t> to_bytes(const WeightCatalog& catalog);
WeightCatalog catalog_of(const std::vector<uint8_t>& bytes);

// Whether the ranks of a host read the same bytes, which the page cache then saves them, or each
// its own.
enum class ReadsBy { OneRank, ManyRanks };

// Opens a file of the catalog. Throws IoError if it has another size than when the headers were
// read.
std::unique_ptr<base::ByteSource> open_file_of(const CatalogFile& file, ReadsBy reads_by);

}  // namespace lockstep::weights
