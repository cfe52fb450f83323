#include <fmt/format.h>

#include "formats/sidecar.h"
#include "inspect.h"
#include "storage/storage.h"

namespace lockstep::app {

Verified verify_with_sidecar(const base::ByteSource& source, const std::string& location,
                             size_t num_records) {
  Verified verified{.file = location, .num_records = num_records};
  const std::string sidecar = location + base::kSidecarSuffix;
  if (storage::find_file(sidecar)) {
    formats::verify_sidecar(source, formats::read_sidecar(*open_location(sidecar), location));
    verified.has_sidecar = true;
  }
  return verified;
}

std::vector<Verified> verify_weights(const formats::WeightSet& set) {
  std::vector<Verified> verified;
  for (const formats::WeightPart& part : set.parts) {
    formats::verify_checksums(*part.source, part.file);
    verified.push_back(verify_with_sidecar(*open_location(part.location), part.location,
                                           part.file.checksums.size()));
  }
  return verified;
}

std::string verified_text(const std::vector<Verified>& verified) {
  std::string text;
  for (const Verified& file : verified) {
    text += fmt::format("verified {}: structure", base::escaped(file.file));
    if (file.num_records != 0) {
      text += fmt::format(", CRC-32 of {} records", file.num_records);
    }
    if (file.has_sidecar) {
      text += ", SHA-256 of its sidecar";
    }
    if (file.num_records == 0 && !file.has_sidecar) {
      text += fmt::format(
          "; it carries no checksum and has no sidecar, so that a flipped bit among the data "
          "cannot "
          "be seen (sha256sum FILE > FILE{} makes one)",
          base::kSidecarSuffix);
    }
    text += "\n";
  }
  return text;
}

}  // namespace lockstep::app
