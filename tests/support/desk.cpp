#include "support/desk.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "launch/node/terminal.h"

namespace lockstep::test {

Desk::Desk(const std::string& script, JobPlace place) : terminal_(launch::make_terminal(-1)) {
  ::fcntl(terminal_.read.get(), F_SETFL, O_RDWR | O_NONBLOCK);
  resize(33, 77);
  const int fd = terminal_.write.get();
  base::ProcessOptions options{.argv = {"setsid", "--ctty", "--wait", "sh", "-c", script},
                               .env = std::move(place.env),
                               .stdin_fd = fd,
                               .stdout_fd = fd,
                               .stderr_fd = fd,
                               .new_group = true};
  options.env["NO_COLOR"] = "1";
  process_ = base::Process(place.inside ? place.inside(options) : options);
}

void Desk::resize(unsigned short rows, unsigned short columns) {
  const winsize size{.ws_row = rows, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  ::ioctl(terminal_.read.get(), TIOCSWINSZ, &size);
}

void Desk::type(const std::string& keys) {
  base::write_all(terminal_.read.get(), keys.data(), keys.size());
}

bool Desk::sees(const std::string& part) {
  return wait_until([&] {
    read_screen();
    return screen_.find(part) != std::string::npos;
  });
}

base::ExitStatus Desk::wait() {
  std::optional<base::ExitStatus> status;
  EXPECT_TRUE(wait_until([&] { return read_screen(), (status = process_.poll()).has_value(); }))
      << screen_;
  read_screen();
  return status.value_or(base::ExitStatus{.code = -1});
}

void Desk::read_screen() {
  char buffer[4096];
  for (ssize_t n; (n = ::read(terminal_.read.get(), buffer, sizeof buffer)) > 0;) {
    screen_.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace lockstep::test
