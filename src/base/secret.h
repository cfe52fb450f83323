#pragma once

// The per-job secret and the proof that a peer knows it, without sending it.
//
// Both sides send a random nonce; each then sends HMAC-SHA256(secret, side | job id | both nonces).
// A recorded handshake is useless later (the nonce differs), another job's is refused (the job id
// and the secret differ), and a reflected one fails (the side is part of what is signed).

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::base {

using Nonce = std::array<uint8_t, 32>;
using Proof = std::array<uint8_t, 32>;

Nonce random_nonce();

// 32 random bytes in hexadecimal: a new job's secret.
std::string make_secret();

// A job's secret from one that outlives jobs: HMAC-SHA256(key, job id) in hexadecimal.
std::string derive_secret(std::string_view key, std::string_view job_id);

// Why a secret that a user gave can be guessed by who has recorded a greeting (it is tried offline,
// as fast as hashes are made), as "16 hexadecimal digits are 64 bits"; empty if it has 128 bits, as
// far as its letters tell: those of a random text of these kinds.
std::string secret_weakness(std::string_view secret);
inline constexpr int kMinSecretBits = 128;

// Short and unique: a job's name when the user gives none.
std::string make_job_id();

// `side` is "client" or "server".
Proof make_proof(std::string_view secret, std::string_view side, std::string_view job_id,
                 const Nonce& client, const Nonce& server);

// Compares in constant time.
bool same_proof(const Proof& a, const Proof& b);

}  // namespace lockstep::base
