#include "launch/node/guardian.h"

#include <array>
#include <cerrno>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/process/fork.h"
#include "base/process/process.h"
#include "launch/node/message.h"
#include "launch/node/sweep.h"
#include "launch/node/worker.h"

namespace lockstep::launch {

namespace {

constexpr int kKillTickMs = 5;    // between two rounds of SIGKILL: a fork may have slipped through
constexpr int kGroupTickMs = 20;  // the last process of a group may end without a signal to us
constexpr uint64_t kControlEvent = UINT64_MAX;
constexpr uint64_t kChildEvent = UINT64_MAX - 1;

}  // namespace

int Guardian::run(std::vector<WorkerStreams> streams) {
  try {
    isolate();
    enter_container();
    open_events();
    start_workers(std::move(streams));
  } catch (const Error& error) {
    send_message(control_fd_, {.kind = MessageKind::Failed, .text = error.what()});
    killing_ = true;
  }
  while (!finished()) {
    wait_for_events();
  }
  return 0;
}

void Guardian::isolate() {
  if (base::has_pid_namespace(plan_.isolation)) {
    // Our parent is outside and getppid() is 0, dead or not: the control socket tells.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    host_proc_ = base::open_file("/proc", O_PATH | O_DIRECTORY);
    base::mount_own_proc();
  } else {
    // No death signal here: it would kill the one process that can find the others.
    base::adopt_orphans();
  }
}

// Once for all workers of the node, which are then forked inside.
void Guardian::enter_container() {
  if (!plan_.container || plan_.container->runtime != image::ContainerRuntime::Builtin) {
    return;
  }
  image::enter_image(*plan_.container);
  for (WorkerPlan& worker : plan_.workers) {
    worker.env = image::image_environment(worker.env);
  }
}

void Guardian::open_events() {
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  ::sigprocmask(SIG_BLOCK, &child, nullptr);
  child_signals_.reset(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event control{.events = EPOLLIN, .data = {.u64 = kControlEvent}};
  epoll_event children{.events = EPOLLIN, .data = {.u64 = kChildEvent}};
  if (!child_signals_ || !epoll_ ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, control_fd_, &control) != 0 ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, child_signals_.get(), &children) != 0) {
    throw IoError("cannot watch the workers: {}", base::errno_text(errno));
  }
}

void Guardian::start_workers(std::vector<WorkerStreams> streams) {
  for (size_t i = 0; i < plan_.workers.size(); ++i) {
    Worker worker{.rank = plan_.workers[i].rank};
    worker.pid = start_worker({.node = &plan_,
                               .worker = &plan_.workers[i],
                               .stdin_fd = streams[i].in.get(),
                               .stdout_fd = streams[i].out.get(),
                               .stderr_fd = streams[i].err.get(),
                               .control_fd = control_fd_,
                               .host_proc_fd = host_proc_.get()});
    worker.pidfd = base::open_pidfd(worker.pid);
    // epoll lists what is ready in the order in which it became so: two deaths that we see at once
    // are still told in their order, which waitpid() would not do.
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, worker.pidfd.get(), &event) != 0) {
      throw IoError("cannot watch rank {}: {}", worker.rank, base::errno_text(errno));
    }
    workers_.push_back(std::move(worker));
    ++num_running_;
  }
}

int Guardian::poll_ms() const {
  if (killing_) {
    return kKillTickMs;
  }
  if (stopping_ && num_running_ == 0) {
    return kGroupTickMs;
  }
  return kill_at_.poll_ms();
}

void Guardian::wait_for_events() {
  std::array<epoll_event, 64> events;
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), poll_ms());
  bool control = false;
  for (int i = 0; i < count; ++i) {
    const uint64_t id = events[static_cast<size_t>(i)].data.u64;
    if (id == kControlEvent) {
      control = true;  // after the ends that came with it: they happened before we obeyed
    } else if (id == kChildEvent) {
      signalfd_siginfo info;
      while (::read(child_signals_.get(), &info, sizeof info) > 0) {
      }
    } else {
      worker_ended(workers_[id]);
    }
  }
  if (control) {
    read_control();
  }
  reap_orphans();
}

void Guardian::read_control() {
  for (;;) {
    const Received received = receive_message(control_fd_);
    if (received.closed) {
      if (base::has_pid_namespace(plan_.isolation)) {
        ::_exit(1);  // and the kernel kills all that is in our namespace
      }
      killing_ = true;
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, control_fd_, nullptr);
      return;
    }
    if (!received.message) {
      return;
    }
    if (received.message->kind == MessageKind::Stop && !stopping_) {
      const int signal = received.message->status.signal;
      stop(signal == 0 ? SIGTERM : signal);
    } else if (received.message->kind == MessageKind::Kill) {
      stopping_ = killing_ = true;
    } else if (received.message->kind == MessageKind::Checkpoint) {
      ask_for_checkpoint();
    }
  }
}

void Guardian::worker_ended(Worker& worker) {
  int status = 0;
  if (!worker.running || ::waitpid(worker.pid, &status, WNOHANG) != worker.pid) {
    return;
  }
  worker.running = false;
  worker.pidfd.reset();
  --num_running_;
  send_message(control_fd_, {.kind = MessageKind::Ended,
                             .rank = worker.rank,
                             .stamp_ns = base::Clock::now().time_since_epoch().count(),
                             .end = {.status = base::ExitStatus::from_wait(status),
                                     .stopped = (stopping_ || killing_) && !worker.was_exiting}});
}

void Guardian::reap_orphans() {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
      return;
    }
    for (const Worker& worker : workers_) {
      if (worker.running && worker.pid == info.si_pid) {
        return;  // its pidfd is ready: epoll knows its turn
      }
    }
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

void Guardian::stop(int signal) {
  stopping_ = true;
  kill_at_ = base::Deadline::after(plan_.stop_grace);
  for (Worker& worker : workers_) {
    worker.was_exiting = worker.running && is_exiting(worker.pid);
  }
  signal_groups(signal);
  if (signal != SIGTERM) {
    signal_who_ignores(signal);
  }
  signal_groups(SIGCONT);  // a stopped process acts on a signal only once it goes on
}

// What a shell starts in the background ignores Ctrl-C, and would have the job wait for the grace's
// end: it gets the signal that means it.
void Guardian::signal_who_ignores(int signal) {
  for (const Descendant& process : find_descendants()) {
    if (ignores(process.pid, signal)) {
      for (const Worker& worker : workers_) {
        if (process.group == worker.pid) {
          signal_descendant(process, SIGTERM);
        }
      }
    }
  }
}

// SIGUSR1 ends a process that does not expect it.
void Guardian::ask_for_checkpoint() {
  for (const Worker& worker : workers_) {
    if (worker.running && catches(worker.pid, SIGUSR1)) {
      ::kill(worker.pid, SIGUSR1);
    }
  }
}

// While the worker is not reaped its number is its own. Afterwards the group keeps the number for
// as long as somebody is in it, and then anyone may get it: only who descends from us is signalled.
void Guardian::signal_group(Worker& worker, int signal) {
  const bool is_empty = ::kill(-worker.pid, worker.running ? signal : 0) != 0 && errno == ESRCH;
  if (worker.running) {
    if (is_empty) {
      ::kill(worker.pid, signal);  // it has not made its group yet
    }
    return;
  }
  bool anyone = false;
  for (const Descendant& process : is_empty ? std::vector<Descendant>() : find_descendants()) {
    if (process.group == worker.pid) {
      anyone = true;
      signal_descendant(process, signal);
    }
  }
  worker.group_gone = !anyone;
}

void Guardian::signal_groups(int signal) {
  for (Worker& worker : workers_) {
    if (!worker.group_gone) {
      signal_group(worker, signal);
    }
  }
}

bool Guardian::groups_are_empty() {
  signal_groups(0);
  for (const Worker& worker : workers_) {
    if (!worker.group_gone) {
      return false;
    }
  }
  return true;
}

void Guardian::kill_everyone() {
  if (base::has_pid_namespace(plan_.isolation)) {
    // As pid 1 "everyone" is our namespace; as any other it would be the whole host.
    LOCKSTEP_CHECK(::getpid() == 1, "the guardian has pid {}", ::getpid());
    ::kill(-1, SIGKILL);
    return;
  }
  for (const Descendant& process : find_descendants()) {
    signal_descendant(process, SIGKILL);
  }
}

bool Guardian::finished() {
  if (kill_at_.expired()) {
    killing_ = true;
  }
  if (num_running_ == 0 && (!stopping_ || groups_are_empty())) {
    killing_ = true;  // what the workers left behind
  }
  if (!killing_) {
    return false;
  }
  siginfo_t info{};
  if (num_running_ == 0 && ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 &&
      errno == ECHILD) {
    return true;  // no child, hence no descendant: orphans become our children
  }
  kill_everyone();
  return false;
}

}  // namespace lockstep::launch
