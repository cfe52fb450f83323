#include "base/secret.h"

#include <cerrno>
#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/hmac.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep {
namespace {

void fill_random(uint8_t* bytes, size_t size) {
  while (size > 0) {
    const ssize_t n = ::getrandom(bytes, size, 0);
    if (n < 0) {
      if (errno == EINTR) {
        continue;
      }
      throw IoError("cannot get random bytes from the kernel: {}", errno_text(errno));
    }
    bytes += n;
    size -= static_cast<size_t>(n);
  }
}

std::string hex(const std::array<uint8_t, 32>& bytes, size_t num_bytes) {
  std::string text;
  for (size_t i = 0; i < num_bytes; ++i) {
    text += fmt::format("{:02x}", bytes.at(i));
  }
  return text;
}

// Length first, so that no two different lists of parts give the same text to sign.
void append(std::string& text, std::string_view part) {
  text += fmt::format("{}:", part.size());
  text += part;
}

std::string_view view(const Nonce& nonce) {
  return {reinterpret_cast<const char*>(nonce.data()), nonce.size()};
}

Proof sign(std::string_view secret, std::string_view text) {
  Proof proof{};
  unsigned int size = 0;
  const auto* result =
      HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), proof.data(), &size);
  LOCKSTEP_CHECK(result != nullptr && size == proof.size(), "HMAC-SHA256 gave {} bytes", size);
  return proof;
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce;
  fill_random(nonce.data(), nonce.size());
  return nonce;
}

std::string make_secret() {
  return hex(random_nonce(), 32);
}
std::string derive_secret(std::string_view key, std::string_view job_id) {
  std::string text;
  append(text, "lockstep-job-secret-1");
  append(text, job_id);
  return hex(sign(key, text), 32);
}
std::string make_job_id() {
  return hex(random_nonce(), 6);
}

Proof make_proof(std::string_view secret, std::string_view side, std::string_view job_id,
                 const Nonce& client, const Nonce& server) {
  std::string text;
  append(text, "lockstep-store-1");
  append(text, side);
  append(text, job_id);
  append(text, view(client));
  append(text, view(server));
  return sign(secret, text);
}

bool same_proof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace lockstep
