#include "doctor/gpu_probe.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <optional>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

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

// A question that one library is asked.
struct Step {
  std::string whom;
  std::function<void(GpuFacts&)> ask;
  GpuLibrary GpuLibraries::*library = nullptr;  // null: the driver's, without which no other counts
};

std::vector<Step> steps_of(const GpuProbeOptions& options) {
  std::vector<Step> steps{
      {.whom = "NVML", .ask = [&](GpuFacts& facts) { ask_nvml(facts, options.root); }},
      {.whom = "libcuda.so.1", .ask = [](GpuFacts& facts) { ask_cuda(facts.driver); }}};
  for (LibraryQuestion& question : library_questions(options.plugin_entry)) {
    steps.push_back(
        {.whom = "it",
         .ask = [ask = std::move(question.ask)](GpuFacts& facts) { ask(facts.libraries); },
         .library = question.library});
  }
  return steps;
}

// Reads up to the end of the line, which it takes out of `text`; nothing at the end of file, or at
// the deadline.
std::optional<std::string> read_line(int fd, base::Deadline deadline, std::string& text) {
  for (char bytes[4096];;) {
    if (const size_t end = text.find('\n'); end != std::string::npos) {
      const std::string line = text.substr(0, end);
      text.erase(0, end + 1);
      return line;
    }
    pollfd event{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&event, 1, deadline.poll_ms());
    if (ready == 0) {
      return std::nullopt;
    }
    const ssize_t size = ready < 0 ? -1 : ::read(fd, bytes, sizeof bytes);
    if (size < 0 && errno == EINTR) {
      continue;
    }
    if (size <= 0) {
      return std::nullopt;
    }
    text.append(bytes, static_cast<size_t>(size));
  }
}

// The process that asks: after each step it writes what is known then, on a line.
pid_t start_asking(const std::vector<Step>& steps, size_t first, GpuFacts& facts, int pipe) {
  const pid_t parent = ::getpid();
  return base::fork_child([&, parent, first, pipe] {
    base::die_with_parent(parent);
    silence();
    for (size_t i = first; i < steps.size(); ++i) {
      steps[i].ask(facts);
      const std::string line = to_json(facts) + "\n";
      base::write_all(pipe, line.data(), line.size());
    }
    ::_exit(0);  // no destructor of a driver's library runs
    return 0;
  });
}

// In a process of its own, from the step `first` on. Returns how many steps are done, and if these
// are not all, why the next one is not.
size_t ask_apart(const std::vector<Step>& steps, size_t first, std::chrono::nanoseconds timeout,
                 GpuFacts& facts, std::string& problem) {
  base::FdPair pipe = base::make_pipe();
  const pid_t child = start_asking(steps, first, facts, pipe.write.get());
  pipe.write.reset();
  size_t done = first;
  bool is_late = false;
  for (std::string text; done < steps.size(); ++done) {
    const base::Deadline deadline = base::Deadline::after(timeout);
    const auto line = read_line(pipe.read.get(), deadline, text);
    if (!line) {
      is_late = deadline.expired();
      break;
    }
    facts = facts_from_json(*line);
  }
  ::kill(child, SIGKILL);
  int status = 0;
  // One that is stuck in the driver cannot be killed, and must not hold us up.
  const pid_t reaped = ::waitpid(child, &status, is_late ? WNOHANG : 0);
  problem = is_late ? "does not answer within " + base::to_text(timeout)
                    : "ended the process that asked: " +
                          (reaped == child ? base::ExitStatus::from_wait(status).text()
                                           : std::string("the system does not say how"));
  return done;
}

// After a library that crashes or hangs the next ones are still asked; after the driver none is,
// since it is what they would call.
void ask_all(const GpuProbeOptions& options, GpuFacts& facts) {
  const std::vector<Step> steps = steps_of(options);
  for (size_t next = 0; next < steps.size(); ++next) {
    std::string problem;
    next = ask_apart(steps, next, options.timeout, facts, problem);
    if (next == steps.size()) {
      return;
    }
    problem = steps[next].whom + " " + problem;
    if (!steps[next].library) {
      facts.probe_problem = problem;
      return;
    }
    (facts.libraries.*steps[next].library).problem = problem;
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
  ask_all(options, facts);
  return facts;
}

}  // namespace lockstep::doctor
