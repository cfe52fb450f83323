#include "base/secret.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <set>
#include <sys/random.h>

#include <openssl/crypto.h>
#include <openssl/hmac.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::base {
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
std::string secret_weakness(std::string_view secret) {
  const auto is = [&](auto kind) { return std::any_of(secret.begin(), secret.end(), kind); };
  const auto among = [](char first, char last) {
    return [=](char c) { return c >= first && c <= last; };
  };
  const bool is_hex = secret.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
  int alphabet = 0;
  alphabet += is(among('0', '9')) ? 10 : 0;
  alphabet += is(among('a', 'z')) ? (is_hex ? 6 : 26) : 0;
  alphabet += is(among('A', 'Z')) ? (is_hex ? 6 : 26) : 0;
  alphabet += is([](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }) ? 33 : 0;
  alphabet = is_hex ? std::min(alphabet, 16) : alphabet;
  const double bits = static_cast<double>(secret.size()) * std::log2(std::max(alphabet, 1));
  const char* letters = alphabet == 10 ? "digits" : is_hex ? "hexadecimal digits" : "letters";
  if (bits < kMinSecretBits) {
    return fmt::format("{} {} are {:.0f} bits at most", secret.size(), letters, std::floor(bits));
  }
  std::set<std::string_view> parts;
  for (size_t i = 0; i + 3 <= secret.size(); ++i) {
    parts.insert(secret.substr(i, 3));
  }
  if (parts.size() * 2 < secret.size() - 2) {
    return fmt::format("its {} {} repeat themselves", secret.size(), letters);
  }
  return "";
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

}  // namespace lockstep::base
