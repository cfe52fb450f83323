#include "storage/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <lockstep/base/error.h>

namespace lockstep::storage {

void Digest::Free::operator()(void* context) const {
  EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context));
}

Digest::Digest(const char* algorithm) : context_(EVP_MD_CTX_new()) {
  const std::unique_ptr<EVP_MD, void (*)(EVP_MD*)> kind(EVP_MD_fetch(nullptr, algorithm, nullptr),
                                                        EVP_MD_free);
  if (!kind ||
      EVP_DigestInit_ex2(static_cast<EVP_MD_CTX*>(context_.get()), kind.get(), nullptr) != 1) {
    throw IoError("OpenSSL has no {} here; does a FIPS policy forbid it?", algorithm);
  }
}

void Digest::add(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_.get()), bytes.data(), bytes.size());
}

std::string Digest::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned size = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_.get()), bytes.data(), &size);
  return fmt::format("{:02x}", fmt::join(bytes.begin(), bytes.begin() + size, ""));
}

namespace {

std::string hex_of(Digest digest, std::span<const std::byte> bytes) {
  digest.add(bytes);
  return digest.hex();
}

}  // namespace

std::string md5_hex(std::span<const std::byte> bytes) {
  return hex_of(Digest::md5(), bytes);
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  return hex_of(Digest::sha256(), bytes);
}

}  // namespace lockstep::storage
