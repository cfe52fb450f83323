#pragma once

// A real S3 server over a folder: `rclone serve s3`, on loopback, on a port of its own.

#include <map>
#include <optional>
#include <string>

#include "base/process/process.h"

namespace lockstep::test {

// Stopped when it goes. It checks signatures: only key() with secret() gets in.
class S3Server {
 public:
  // Serves the folders in `folder` as buckets; what is written there behind its back is seen late.
  // `address`: to listen on. Throws IoError.
  explicit S3Server(const std::string& folder, const std::string& address = "127.0.0.1");

  const std::string& endpoint() const { return endpoint_; }  // "http://127.0.0.1:41234"
  static std::string key() { return "lockstep-key"; }
  static std::string secret() { return "lockstep-secret"; }

  // The variables by which a program finds it.
  std::map<std::string, std::string> env() const;

 private:
  base::Process process_;
  std::string endpoint_;
};

// Why there can be no S3 server here, if there can be none.
std::optional<std::string> s3_refusal();

}  // namespace lockstep::test
