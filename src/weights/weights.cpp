#include <lockstep/base/error.h>
#include <lockstep/weights/weights.h>

#include "weights/agree.h"
#include "weights/catalog.h"

namespace lockstep {

Weights Weights::open(const std::string& location, Group& group, WeightsOptions /*options*/) {
  std::vector<uint8_t> bytes;
  const auto error = caught([&] {
    if (group.rank() == 0) {
      const std::vector<std::string> files = find_weight_files(location);
      bytes = to_bytes(read_catalog(location, files, files));
    }
  });
  throw_together(group, error);
  bytes = broadcast_bytes(group, std::move(bytes));
  return Weights(std::make_shared<const WeightCatalog>(catalog_of(bytes)));
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
  for (const CatalogFile& file : catalog_->files) {
    bytes += file.size_bytes;
  }
  return static_cast<int64_t>(bytes);
}

bool Weights::has_checksums() const {
  for (const CatalogFile& file : catalog_->files) {
    if (file.checksums.empty()) {
      return false;
    }
  }
  return true;
}

}  // namespace lockstep
