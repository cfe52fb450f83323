#include <CLI/Version.hpp>
#include <fmt/core.h>
#include <gnu/libc-version.h>
#include <nlohmann/json.hpp>
#include <openssl/crypto.h>
#include <spdlog/version.h>
#include <toml++/impl/version.h>

#include <lockstep/base/version.h>

#include "commands.h"

namespace lockstep::app {

int version() {
  fmt::print("lockstep {}\n", kVersion);
  fmt::print("  fmt            {}.{}.{}\n", FMT_VERSION / 10000, FMT_VERSION / 100 % 100,
             FMT_VERSION % 100);
  fmt::print("  CLI11          {}\n", CLI11_VERSION);
  fmt::print("  nlohmann-json  {}.{}.{}\n", NLOHMANN_JSON_VERSION_MAJOR,
             NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH);
  fmt::print("  toml++         {}.{}.{}\n", TOML_LIB_MAJOR, TOML_LIB_MINOR, TOML_LIB_PATCH);
  fmt::print("  spdlog         {}.{}.{}\n", SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH);
  fmt::print("  OpenSSL        {}\n", ::OpenSSL_version(OPENSSL_VERSION_STRING));
  fmt::print("  compiler       g++ {}\n", __VERSION__);
  fmt::print("  C library      glibc {}\n", ::gnu_get_libc_version());
  fmt::print("libtorch is asked only when needed: see `lockstep doctor`\n");
  return 0;
}

}  // namespace lockstep::app
