#include "formats/sidecar.h"

#include <lockstep/base/error.h>

#include "base/digest.h"
#include "formats/tensor_info.h"

namespace lockstep::formats {

namespace {

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

}  // namespace

std::string read_sidecar(const base::ByteSource& sidecar, const std::string& file) {
  if (sidecar.size() > base::kMaxSidecarBytes) {
    throw FormatError("{}: {} bytes; the line of sha256sum has at most {}", sidecar.name(),
                      sidecar.size(), base::kMaxSidecarBytes);
  }
  const auto line = base::parse_sidecar(sidecar.read_text(0, sidecar.size()));
  if (!line || !line->name) {
    throw FormatError(
        "{}: not one line of sha256sum (64 digits, two spaces, the name of the file); make it "
        "anew: sha256sum FILE > FILE.sha256",
        sidecar.name());
  }
  if (base_name(*line->name) != base_name(file)) {
    throw FormatError("{}: the digest of {}, and the file beside it is {}", sidecar.name(),
                      base::shown(*line->name), base::shown(base_name(file)));
  }
  return line->digest;
}

void verify_sidecar(const base::ByteSource& source, const std::string& digest) {
  const std::string found = base::sha256_of(source);
  if (found != digest) {
    throw FormatError(
        "{}: it has the SHA-256 {}, and its sidecar says {}: it is damaged or another file; copy "
        "it again",
        source.name(), found, digest);
  }
}

}  // namespace lockstep::formats
