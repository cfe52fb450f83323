#include "base/digest.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <openssl/evp.h>

#include <lockstep/base/error.h>

namespace lockstep::base {

namespace {

constexpr uint64_t kDigestPiece = 1u << 20;  // read at a time

EVP_MD_CTX* context_of(void* context) {
  return static_cast<EVP_MD_CTX*>(context);
}

std::string hex_of(Digest digest, std::span<const std::byte> bytes) {
  digest.add(bytes);
  return digest.hex();
}

}  // namespace

void Digest::Free::operator()(void* context) const {
  EVP_MD_CTX_free(context_of(context));
}

Digest::Digest(const char* algorithm) : context_(EVP_MD_CTX_new()) {
  const std::unique_ptr<EVP_MD, void (*)(EVP_MD*)> kind(EVP_MD_fetch(nullptr, algorithm, nullptr),
                                                        EVP_MD_free);
  if (!kind || EVP_DigestInit_ex2(context_of(context_.get()), kind.get(), nullptr) != 1) {
    throw IoError("OpenSSL has no {} here; does a FIPS policy forbid it?", algorithm);
  }
}

void Digest::add(std::span<const std::byte> bytes) {
  LOCKSTEP_CHECK(EVP_DigestUpdate(context_of(context_.get()), bytes.data(), bytes.size()) == 1,
                 "a digest refused {} bytes", bytes.size());
}

std::string Digest::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned size = 0;
  LOCKSTEP_CHECK(EVP_DigestFinal_ex(context_of(context_.get()), bytes.data(), &size) == 1,
                 "a digest has no end");
  return fmt::format("{:02x}", fmt::join(bytes.begin(), bytes.begin() + size, ""));
}

std::string md5_hex(std::span<const std::byte> bytes) {
  return hex_of(Digest::md5(), bytes);
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  return hex_of(Digest::sha256(), bytes);
}

std::string sha256_hex(std::string_view text) {
  return sha256_hex(std::as_bytes(std::span(text)));
}

std::string sha256_of(const ByteSource& source) {
  Digest digest = Digest::sha256();
  std::vector<std::byte> piece;
  for (uint64_t at = 0; at < source.size(); at += piece.size()) {
    piece.resize(std::min(kDigestPiece, source.size() - at));
    source.read_at(at, piece);
    digest.add(piece);
  }
  return digest.hex();
}

}  // namespace lockstep::base
