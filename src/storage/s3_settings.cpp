#include "storage/s3_settings.h"

#include <algorithm>
#include <cerrno>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"
#include "storage/aws_profile.h"
#include "storage/s3_url.h"

namespace lockstep::storage {

namespace {

// What a profile says in both files; the credentials file wins.
struct Profile {
  std::string name = "default";
  std::string files;  // for messages
  AwsSection values;

  std::string value(const std::string& key) const {
    const auto found = values.find(key);
    return found == values.end() ? "" : found->second;
  }
};

Profile read_profile(const base::Env& env) {
  const std::string home = env.text("HOME").value_or("/nonexistent");
  const std::string config = env.text("AWS_CONFIG_FILE").value_or(home + "/.aws/config");
  const std::string credentials =
      env.text("AWS_SHARED_CREDENTIALS_FILE").value_or(home + "/.aws/credentials");
  const auto named = env.text("AWS_PROFILE");
  Profile profile{.name = named.value_or("default"),
                  .files = fmt::format("{} and {}", credentials, config),
                  .values = {}};
  bool is_there = false;
  const auto merge = [&](const std::string& path, const std::string& section) {
    const auto sections = read_aws_file(path);
    if (sections && sections->count(section) != 0) {
      is_there = true;
      for (const auto& [key, value] : sections->at(section)) {
        profile.values[key] = value;
      }
    }
  };
  merge(config, profile.name == "default" ? "default" : "profile " + profile.name);
  merge(credentials, profile.name);
  if (named && !is_there) {
    throw UsageError("AWS_PROFILE={} is in neither of {}; correct the name or unset it", *named,
                     profile.files);
  }
  return profile;
}

void read_credentials(const base::Env& env, const Profile& profile, S3Settings& settings) {
  const auto key = env.text("AWS_ACCESS_KEY_ID");
  const auto secret = env.text("AWS_SECRET_ACCESS_KEY");
  if (key.has_value() != secret.has_value()) {
    throw UsageError("{} is set and {} is not; S3 needs both or, for public buckets, none",
                     key ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                     key ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID");
  }
  if (key) {
    settings.access_key = *key;
    settings.secret_key = *secret;
    settings.session_token = env.text("AWS_SESSION_TOKEN").value_or("");
    settings.origin = "AWS_ACCESS_KEY_ID";
    return;
  }
  settings.access_key = profile.value("aws_access_key_id");
  settings.secret_key = profile.value("aws_secret_access_key");
  settings.session_token = profile.value("aws_session_token");
  settings.origin = fmt::format("profile {} of {}", profile.name, profile.files);
  if (settings.access_key.empty() != settings.secret_key.empty()) {
    throw UsageError("{}: aws_access_key_id and aws_secret_access_key must both be there",
                     settings.origin);
  }
  if (!settings.access_key.empty()) {
    return;
  }
  for (const char* other : {"role_arn", "credential_process", "sso_session", "sso_start_url",
                            "web_identity_token_file"}) {
    if (!profile.value(other).empty()) {
      throw UsageError(
          "{}: {} is a way to credentials that lockstep does not go; put keys into the "
          "environment: "
          "`eval $(aws configure export-credentials --format env)`",
          settings.origin, other);
    }
  }
  settings.origin = "nowhere: the request is anonymous";
}

std::string checked_endpoint(std::string endpoint) {
  while (endpoint.ends_with('/')) {
    endpoint.pop_back();
  }
  const bool is_http = endpoint.starts_with("http://") || endpoint.starts_with("https://");
  const size_t host = endpoint.find("://") + 3;
  if (!is_http || endpoint.size() <= host ||
      endpoint.find_first_of("/?#@ ", host) != std::string::npos) {
    throw UsageError("the S3 endpoint '{}' is not http://HOST[:PORT] or https://HOST[:PORT]",
                     endpoint);
  }
  return endpoint;
}

// A region becomes part of a host's name and of the signature's text.
void check_region(const std::string& region) {
  if (!std::all_of(region.begin(), region.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '-' || c == '_';
      })) {
    throw UsageError("the AWS region '{}' has other letters than a-z, 0-9 and '-'", region);
  }
}

bool wants_path_style(const std::string& style, bool has_endpoint) {
  if (style.empty() || style == "auto") {
    return has_endpoint;
  }
  if (style != "path" && style != "virtual") {
    throw UsageError("S3 addressing style '{}' is unknown; it is path, virtual or auto", style);
  }
  return style == "path";
}

// libcurl would say no more than that it has a problem with it, at each request.
std::string checked_bundle(const std::string& path) {
  if (!path.empty() && ::access(path.c_str(), R_OK) != 0) {
    throw UsageError(
        "the file of certificates {} (AWS_CA_BUNDLE, or ca_bundle of the profile) cannot be "
        "read: {}",
        path, base::errno_text(errno));
  }
  return path;
}

std::string first_of(std::initializer_list<std::string> texts) {
  const auto* found = std::find_if(texts.begin(), texts.end(),
                                   [](const std::string& text) { return !text.empty(); });
  return found == texts.end() ? "" : *found;
}

}  // namespace

S3Settings S3Settings::from_env(const base::Env& env) {
  constexpr int64_t kMaxTimeout = 86400;
  const auto variable = [&](const char* name) { return env.text(name).value_or(""); };
  const Profile profile = read_profile(env);
  S3Settings settings;
  read_credentials(env, profile, settings);
  settings.region = first_of({variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"),
                              profile.value("region"), settings.region});
  check_region(settings.region);
  const std::string endpoint =
      first_of({variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"),
                profile.value("s3.endpoint_url"), profile.value("endpoint_url")});
  if (!endpoint.empty()) {
    settings.endpoint = checked_endpoint(endpoint);
  }
  settings.path_style = wants_path_style(
      first_of({variable("AWS_S3_ADDRESSING_STYLE"), profile.value("s3.addressing_style")}),
      !settings.endpoint.empty());
  settings.ca_bundle =
      checked_bundle(first_of({variable("AWS_CA_BUNDLE"), profile.value("ca_bundle")}));
  if (const auto seconds = env.integer("LOCKSTEP_S3_TIMEOUT", 1, kMaxTimeout)) {
    settings.timeout = std::chrono::seconds(*seconds);
    settings.stall = std::min(settings.stall, std::chrono::seconds(*seconds));
  }
  return settings;
}

std::string S3Settings::endpoint_text() const {
  return endpoint.empty() ? fmt::format("https://s3.{}.amazonaws.com", region) : endpoint;
}

std::string S3Settings::url(const std::string& bucket, const std::string& key) const {
  const std::string place = endpoint_text();
  const std::string path = percent_encoded(key, true);
  // The certificate of *.s3.amazonaws.com covers no name with a dot in it.
  const bool has_dot = bucket.find('.') != std::string::npos && place.starts_with("https://");
  if (path_style || has_dot) {
    return fmt::format("{}/{}/{}", place, bucket, path);
  }
  const size_t host = place.find("://") + 3;
  return fmt::format("{}{}.{}/{}", place.substr(0, host), bucket, place.substr(host), path);
}

}  // namespace lockstep::storage
