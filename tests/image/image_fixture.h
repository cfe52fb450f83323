#pragma once

// A small image, built once, and ways to run in it: as this user, as an ordinary one, without loop
// devices.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/job.h"
#include "support/service.h"

namespace lockstep::test {

// What is mounted where this process is.
std::string mount_table();

// Loop devices whose file lies below `folder`.
std::vector<std::string> loop_devices(const std::string& folder);

class ImageTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite();
  static void TearDownTestSuite();

  // Skips the test where images cannot be built or entered.
  void SetUp() override;
  // Nothing is left: no process with our mark, no mount, no loop device.
  void TearDown() override;

  // Runs a command to its end with our mark in its environment.
  base::Output run(std::vector<std::string> argv, std::map<std::string, std::string> env = {});

  // `lockstep image enter IMAGE FLAGS -- sh -c SCRIPT`, as whoever runs the tests.
  base::Output enter(const std::vector<std::string>& flags, const std::string& script,
                     std::map<std::string, std::string> env = {});

  static const std::string& folder();   // open to every user
  static const std::string& image();    // of an empty folder with /hello and a few others in it
  static const std::string& program();  // lockstep, where every user can start it
  const std::string& mark() const { return mark_; }
  bool is_gone() const;

 private:
  std::string mark_;
  std::string mounts_before_;
};

}  // namespace lockstep::test
