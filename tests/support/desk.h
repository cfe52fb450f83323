#pragma once

// A terminal, and whoever sits there.

#include <optional>
#include <string>

#include "base/process/process.h"
#include "support/job.h"

namespace lockstep::test {

// A shell script at a terminal, which is its controlling one.
class Desk {
 public:
  explicit Desk(const std::string& script, JobPlace place = {});

  void resize(unsigned short rows, unsigned short columns);

  void type(const std::string& keys);

  // True once the screen shows it.
  bool sees(const std::string& part);

  // The script's end; a failure of the test if there is none within kPatience.
  base::ExitStatus wait();

  const std::string& screen() const { return screen_; }

 private:
  void read_screen();

  base::FdPair terminal_;
  base::Process process_;
  std::string screen_;
};

}  // namespace lockstep::test
