#pragma once

// A real S3 server over a folder: `rclone serve s3`, on loopback, on a port of its own.

#include <map>
#include <optional>
#include <string>

#include "base/process/process.h"

namespace lockstep::test {

struct S3ServerOptions {
  std::string certificate;  // files (PEM): it then speaks TLS
  std::string key;
  bool has_virtual_hosts = false;  // bucket.localhost, not localhost/bucket
};

// Stopped when it goes. It checks signatures: only key() with secret() gets in.
class S3Server {
 public:
  // Serves the folders in `folder` as buckets; what is written there behind its back is seen late.
  // Throws IoError.
  explicit S3Server(const std::string& folder, const S3ServerOptions& options = {});

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
