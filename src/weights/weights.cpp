#include <sstream>

#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/weights/weights.h>

#include "comm/agree.h"
#include "storage/fetch.h"
#include "storage/location.h"
#include "storage/storage.h"
#include "weights/catalog.h"

namespace lockstep {

namespace {

using Paths = std::vector<std::string>;

// Returns on every rank what `make` returns on rank 0, and throws what it throws there.
template <typename Make>
std::vector<uint8_t> from_rank0(Group& group, Make make) {
  std::vector<uint8_t> bytes;
  const auto error = comm::caught([&] {
    if (group.rank() == 0) {
      bytes = make();
    }
  });
  comm::throw_together(group, error);
  return comm::broadcast_bytes(group, std::move(bytes));
}

// A name with a newline in it is not a name of weights.
std::vector<uint8_t> lines_of(const Paths& paths) {
  const std::string text = fmt::format("{}", fmt::join(paths, "\n"));
  return {text.begin(), text.end()};
}

Paths paths_of(const std::vector<uint8_t>& bytes) {
  Paths paths;
  std::istringstream lines(std::string(bytes.begin(), bytes.end()));
  for (std::string line; std::getline(lines, line);) {
    paths.push_back(line);
  }
  return paths;
}

// "s3://bucket/key" is bucket/key under the folder.
std::string copy_of(const std::string& location, const std::string& cache_dir) {
  const storage::Location place = storage::parse_location(location);
  const std::string path = place.bucket + "/" + place.path;
  storage::check_relative(path, cache_dir);
  return cache_dir + "/" + path;
}

// Every rank asks; the first one of a host copies, the others wait for it and find the copy.
void fetch_copies(Group& group, const Paths& files, const Paths& copies) {
  const auto error = comm::caught([&] {
    for (size_t i = 0; i < files.size(); ++i) {
      storage::fetch(files[i], copies[i]);
    }
  });
  comm::throw_together(group, error);
}

}  // namespace

Weights Weights::open(const std::string& location, Group& group, WeightsOptions options) {
  const Paths files =
      paths_of(from_rank0(group, [&] { return lines_of(weights::find_weight_files(location)); }));
  Paths opened = files;
  if (!options.cache_dir.empty() && storage::is_remote(location)) {
    for (std::string& path : opened) {
      path = copy_of(path, options.cache_dir);
    }
    fetch_copies(group, files, opened);
  }
  const auto bytes = from_rank0(
      group, [&] { return weights::to_bytes(weights::read_catalog(location, files, opened)); });
  return Weights(std::make_shared<const weights::WeightCatalog>(weights::catalog_of(bytes)));
}

Weights Weights::open(const std::string& location, WeightsOptions options) {
  Group group = make_single_group();
  return open(location, group, std::move(options));
}

const std::string& Weights::location() const {
  return catalog_->location;
}

const std::vector<WeightInfo>& Weights::tensors() const {
  return catalog_->infos;
}

const WeightInfo* Weights::find(std::string_view name) const {
  const auto found = catalog_->index.find(std::string(name));
  return found == catalog_->index.end() ? nullptr : &catalog_->infos[found->second];
}

const std::map<std::string, std::string>& Weights::metadata() const {
  return catalog_->metadata;
}

int64_t Weights::file_bytes() const {
  uint64_t bytes = 0;
  for (const weights::CatalogFile& file : catalog_->files) {
    bytes += file.size_bytes;
  }
  return static_cast<int64_t>(bytes);
}

bool Weights::has_checksums() const {
  for (const weights::CatalogFile& file : catalog_->files) {
    if (file.checksums.empty()) {
      return false;
    }
  }
  return true;
}

}  // namespace lockstep
