#include "doctor/gpu_probe.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/env.h"
#include "base/process/fork.h"
#include "base/process/process.h"
#include "base/unique_fd.h"
#include "doctor/gpu_json.h"

namespace lockstep::doctor {

namespace {

// What drivers and their libraries print is not ours to show.
void silence() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(null, STDOUT_FILENO);
  ::dup2(null, STDERR_FILENO);
}

// Up to the end of file, or to the deadline.
std::string read_until(int fd, base::Deadline deadline) {
  std::string text;
  for (char bytes[4096];;) {
    pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&event, 1, deadline.poll_ms());
    if (ready == 0) {
      return "";
    }
    const ssize_t size = ready < 0 ? -1 : ::read(fd, bytes, sizeof bytes);
    if (size < 0 && errno == EINTR) {
      continue;
    }
    if (size <= 0) {
      return text;
    }
    text.append(bytes, static_cast<size_t>(size));
  }
}

// In a process of its own.
void ask_apart(const GpuProbeOptions& options, GpuFacts& facts) {
  base::FdPair pipe = base::make_pipe();
  const pid_t parent = ::getpid();
  const pid_t child = base::fork_child([&] {
    base::die_with_parent(parent);
    silence();
    ask_nvml(facts, options.root);
    ask_cuda(facts.driver);
    ask_libraries(facts.libraries, options.plugin_entry);
    const std::string text = to_json(facts);
    base::write_all(pipe.write.get(), text.data(), text.size());
    ::_exit(0);  // no destructor of a driver's library runs
    return 0;
  });
  pipe.write.reset();
  const base::Deadline deadline = base::Deadline::after(options.timeout);
  const std::string text = read_until(pipe.read.get(), deadline);
  const bool is_late = text.empty() && deadline.expired();
  ::kill(child, SIGKILL);
  int status = 0;
  // One that is stuck in the driver cannot be killed, and must not hold us up.
  const pid_t reaped = ::waitpid(child, &status, is_late ? WNOHANG : 0);
  try {
    facts = facts_from_json(text);
  } catch (const FormatError&) {
    facts.probe_problem = is_late
                              ? "they do not answer within " + base::to_text(options.timeout)
                              : "the process that asked them ended: " +
                                    (reaped == child ? base::ExitStatus::from_wait(status).text()
                                                     : std::string("the system does not say how"));
  }
}

}  // namespace

GpuFacts probe_gpus(const GpuProbeOptions& options) {
  GpuFacts facts;
  facts.driver = read_driver(options.root);
  if (!facts.has_gpu()) {
    return facts;
  }
  const base::Env env;
  facts.wanted = env.text("LOCKSTEP_DEVICE").value_or("");
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  facts.has_visible = visible != nullptr;  // set and empty hides all GPUs
  facts.visible = visible ? visible : "";
  facts.libraries = find_libraries(options);
  ask_apart(options, facts);
  return facts;
}

}  // namespace lockstep::doctor
