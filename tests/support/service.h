#pragma once

// Tests that need a service: real Slurm, ssh, network namespaces.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace lockstep::test {

// Every service that a test may need, by the name that LOCKSTEP_REQUIRE ("namespaces,slurm") has
// for it. tools/skips.py reads this list.
inline constexpr std::string_view kServices[] = {
    "arm64",                // a cross compiler
    "clang",                // with libFuzzer
    "device",               // a GPU with its driver
    "image",                // what makes and enters job images
    "minilm",               // a pretrained model
    "mpi",                  // Open MPI
    "namespaces",           // emulated machines, small disks
    "nvcc",                 // CUDA's compiler
    "pkgconfig",            // pkg-config
    "python-torch",         // an interpreter that has torch
    "python-transformers",  // one that has transformers too
    "s3",                   // rclone as a server
    "slurm",                // slurmctld, slurmd, munge
    "ssh",                  // sshd
};

// A name in kServices; another one does not compile.
class ServiceName {
 public:
  consteval ServiceName(const char* name)  // NOLINT(google-explicit-constructor)
      : name_(name) {
    if (std::find(std::begin(kServices), std::end(kServices), name_) == std::end(kServices)) {
      throw "no such service: add it to kServices";
    }
  }
  constexpr std::string_view text() const { return name_; }

 private:
  std::string_view name_;
};

// The first name in `list`, a value of LOCKSTEP_REQUIRE, that is no service's; empty if there is
// none.
inline std::string unknown_service(std::string_view list) {
  while (!list.empty()) {
    const std::string_view name = list.substr(0, list.find(','));
    if (std::find(std::begin(kServices), std::end(kServices), name) == std::end(kServices)) {
      return name.empty() ? "(an empty name)" : std::string(name);
    }
    list.remove_prefix(std::min(list.size(), name.size() + 1));
  }
  return "";
}

inline std::string required_services() {
  const char* list = std::getenv("LOCKSTEP_REQUIRE");
  return list == nullptr ? "" : list;
}

// Whether LOCKSTEP_REQUIRE names it: then a test must not do without.
inline bool is_required(ServiceName service) {
  return fmt::format(",{},", required_services()).find(fmt::format(",{},", service.text())) !=
         std::string::npos;
}

}  // namespace lockstep::test

// For a test's body or SetUp(). `refusal`, a std::optional<std::string>, says why the service
// cannot be had, if it cannot: the test is skipped with that reason, or fails where it is required.
#define LOCKSTEP_NEEDS(service, refusal)                                                        \
  do {                                                                                          \
    ASSERT_EQ(::lockstep::test::unknown_service(::lockstep::test::required_services()), "")     \
        << "LOCKSTEP_REQUIRE names it, and there is no such service (tests/support/service.h)"; \
    if (const auto reason = (refusal)) {                                                        \
      ASSERT_FALSE(::lockstep::test::is_required(service)) << *reason;                          \
      GTEST_SKIP() << *reason;                                                                  \
    }                                                                                           \
  } while (false)
