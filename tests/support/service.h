#pragma once

// Tests that need a service: real Slurm, ssh, network namespaces.

#include <cstdlib>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace lockstep::test {

// Whether LOCKSTEP_REQUIRE ("namespaces,slurm") names it: then a test must not do without.
inline bool is_required(const std::string& service) {
  const char* list = std::getenv("LOCKSTEP_REQUIRE");
  return list != nullptr &&
         fmt::format(",{},", list).find(fmt::format(",{},", service)) != std::string::npos;
}

}  // namespace lockstep::test

// For a test's body or SetUp(). `refusal`, a std::optional<std::string>, says why the service
// cannot be had, if it cannot: the test is skipped with that reason, or fails where it is required.
#define LOCKSTEP_NEEDS(service, refusal)                               \
  do {                                                                 \
    if (const auto reason = (refusal)) {                               \
      ASSERT_FALSE(::lockstep::test::is_required(service)) << *reason; \
      GTEST_SKIP() << *reason;                                         \
    }                                                                  \
  } while (false)
