#pragma once

// How S3 is reached, from the variables and files that other tools use.

#include <chrono>
#include <string>

#include "base/env.h"

namespace lockstep::storage {

struct S3Settings {
  std::string access_key;  // empty: requests are not signed
  std::string secret_key;
  std::string session_token;
  std::string
      origin;  // of the credentials, for messages: "AWS_ACCESS_KEY_ID", "profile 'x' in ..."
  std::string region = "us-east-1";
  std::string endpoint;     // "http://127.0.0.1:9000"; empty: Amazon's of the region
  bool path_style = false;  // endpoint/bucket, not bucket.endpoint
  std::string ca_bundle;    // a file of certificates to trust (PEM); empty: those of this host
  std::chrono::milliseconds timeout = std::chrono::seconds(60);  // of a request with its retries
  std::chrono::seconds stall =
      std::chrono::seconds(20);  // without a byte: the connection is given up

  // AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; else the profile AWS_PROFILE (or
  // default) of AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE (~/.aws/credentials,
  // ~/.aws/config). AWS_REGION, AWS_DEFAULT_REGION; AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL;
  // AWS_S3_ADDRESSING_STYLE; AWS_CA_BUNDLE; LOCKSTEP_S3_TIMEOUT in seconds. Throws UsageError for
  // what makes no sense.
  static S3Settings from_env(const base::Env& env);

  // The address of an object or, without a key, of the bucket. It has no query.
  std::string url(const std::string& bucket, const std::string& key) const;
  std::string endpoint_text() const;  // for messages
};

}  // namespace lockstep::storage
