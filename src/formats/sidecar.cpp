#include "formats/sidecar.h"

#include <algorithm>
#include <vector>

#include <openssl/evp.h>

#include <lockstep/base/error.h>

#include "formats/tensor_info.h"

namespace lockstep::formats {

namespace {

constexpr size_t kDigits = 64;
constexpr size_t kMarkBytes = 2;  // two spaces, or space and star
constexpr uint64_t kMaxSidecarBytes = 8192;
constexpr uint64_t kReadBytes = 1u << 20;

EVP_MD_CTX* context_of(void* context) {
  return static_cast<EVP_MD_CTX*>(context);
}

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

}  // namespace

void Sha256::Free::operator()(void* context) const {
  EVP_MD_CTX_free(context_of(context));
}

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  LOCKSTEP_CHECK(context_ != nullptr &&
                     EVP_DigestInit_ex(context_of(context_.get()), EVP_sha256(), nullptr) == 1,
                 "no SHA-256");
}

void Sha256::append(std::span<const std::byte> bytes) {
  LOCKSTEP_CHECK(EVP_DigestUpdate(context_of(context_.get()), bytes.data(), bytes.size()) == 1,
                 "SHA-256 of {} bytes", bytes.size());
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  LOCKSTEP_CHECK(EVP_DigestFinal_ex(context_of(context_.get()), digest, &size) == 1,
                 "no end of SHA-256");
  std::string text;
  for (unsigned int i = 0; i < size; ++i) {
    text += fmt::format("{:02x}", digest[i]);
  }
  return text;
}

std::string read_sidecar(const base::ByteSource& sidecar, const std::string& file) {
  if (sidecar.size() > kMaxSidecarBytes) {
    throw FormatError("{}: {} bytes; the line of sha256sum has at most {}", sidecar.name(),
                      sidecar.size(), kMaxSidecarBytes);
  }
  std::string line = sidecar.read_text(0, sidecar.size());
  if (line.ends_with('\n')) {
    line.pop_back();
  }
  std::string digest = line.substr(0, kDigits);
  std::transform(digest.begin(), digest.end(), digest.begin(),
                 [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c; });
  const std::string_view rest = std::string_view(line).substr(digest.size());
  if (digest.size() != kDigits || digest.find_first_not_of("0123456789abcdef") != digest.npos ||
      (!rest.starts_with("  ") && !rest.starts_with(" *")) || rest.find('\n') != rest.npos) {
    throw FormatError(
        "{}: not one line of sha256sum (64 digits, two spaces, the name of the file); make it "
        "anew: sha256sum FILE > FILE.sha256",
        sidecar.name());
  }
  if (base_name(rest.substr(kMarkBytes)) != base_name(file)) {
    throw FormatError("{}: the digest of {}, and the file beside it is {}", sidecar.name(),
                      base::shown(rest.substr(kMarkBytes)), base::shown(base_name(file)));
  }
  return digest;
}

void verify_sidecar(const base::ByteSource& source, const std::string& digest) {
  Sha256 sha256;
  std::vector<std::byte> buffer;
  for (uint64_t offset = 0; offset < source.size(); offset += buffer.size()) {
    buffer.resize(std::min(source.size() - offset, kReadBytes));
    source.read_at(offset, buffer);
    sha256.append(buffer);
  }
  const std::string found = sha256.hex();
  if (found != digest) {
    throw FormatError(
        "{}: it has the SHA-256 {}, and its sidecar says {}: it is damaged or another file; copy "
        "it again",
        source.name(), found, digest);
  }
}

}  // namespace lockstep::formats
