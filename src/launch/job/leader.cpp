#include "launch/job/leader.h"

#include <algorithm>
#include <filesystem>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/base/version.h>

#include "base/network.h"
#include "base/process/fork.h"
#include "base/secret.h"
#include "launch/node/log_folder.h"
#include "launch/node/poll_set.h"

namespace lockstep::launch {

Leader::Leader(const LaunchOptions& options, Rendezvous rendezvous)
    : options_(options),
      rendezvous_(std::move(rendezvous)),
      file_limit_(base::raise_file_limit()),
      master_(reserve_port(options.master_port)),
      voice_({.fd = STDERR_FILENO, .board = &board_}),
      keyboard_(STDIN_FILENO),
      last_turn_(base::Clock::now()) {
  if (rendezvous_.is_head) {
    open_head();
  }
  if (!rendezvous_.is_head) {
    join_by_ = base::Deadline::after(options_.rendezvous.join_timeout);
    next_try_ = base::Deadline::after(std::chrono::nanoseconds(0));
  }
}

void Leader::open_head() {
  std::string why;
  for (const base::Endpoint& endpoint : rendezvous_.endpoints) {
    try {
      store_ = std::make_unique<base::StoreServer>(
          base::StoreServerOptions{.listen = endpoint,
                                   .job_id = rendezvous_.job_id,
                                   .secret = rendezvous_.secret,
                                   .lost_after = options_.rendezvous.lost_after});
      break;
    } catch (const IoError& error) {
      why = error.what();
    }
  }
  if (!store_) {
    if (!rendezvous_.may_join) {
      throw UsageError("{}; is another job there? choose another port", why);
    }
    log::info("run", "{}: joining whoever listens there", why);
    rendezvous_.is_head = false;
    return;
  }
  head_ = std::make_unique<Head>(
      CoordinatorOptions{.name = options_.name,
                         .program = options_.command.front(),
                         .min_nodes = options_.min_nodes,
                         .max_nodes = options_.max_nodes,
                         .max_restarts = options_.max_restarts,
                         .usr1_stops = std::count(options_.stop_signals.begin(),
                                                  options_.stop_signals.end(), SIGUSR1) > 0,
                         .store = store_->endpoint().text(),
                         .run = base::make_job_id().substr(0, 8),
                         .join_timeout = options_.rendezvous.join_timeout,
                         .last_call = options_.rendezvous.last_call,
                         .lost_after = options_.rendezvous.lost_after,
                         .stop_grace = options_.stop_grace},
      *store_, [this](const HeadMessage& message) { obey(message); },
      [this](const std::string& lines) { say_lines(lines); });
}

MemberInfo Leader::describe() const {
  std::string what = fmt::format("lockstep {} run", kVersion);
  for (const std::string& argument : options_.command) {
    what += " " + argument;
  }
  std::string address = rendezvous_.local_addr;
  if (address.empty()) {
    address = head_ ? store_->endpoint().host : link_->local_host();
  }
  return {.host = base::host_name(),
          .address = address,
          .pid = ::getpid(),
          .node_rank = options_.rendezvous.node_rank,
          .num_nodes = options_.local_nodes,
          .procs_per_node = options_.procs_per_node,
          .master_port = master_.port,
          .what = what,
          .is_head = head_ != nullptr,
          .is_staging = stager_ || stage_failure_};
}

int Leader::run() {
  const base::LogOnConsole log_lines(voice_);
  base::adopt_orphans();
  block_signals();
  if (!options_.hosts.empty()) {
    start_hosts();
  } else {
    start_staging();
    if (head_) {
      tell({.kind = MemberSays::Join, .info = describe()});
    }
  }
  while (!is_over() || (ranks_ && !ranks_->is_gone()) || stager_) {
    poll_once();
  }
  return finish();
}

bool Leader::is_over() const {
  return end_.has_value() || (head_ && head_->is_over());
}

void Leader::start_hosts() {
  RemoteJob job{
      .arguments = options_.arguments,
      .endpoint = store_->endpoint().text(),
      .job_id = rendezvous_.job_id,
      .secret = rendezvous_.secret,
      .num_nodes = static_cast<int>(options_.hosts.size()),
      .folder = std::filesystem::current_path().string(),
      .environment = remote::travelling_environment(base::own_environment(), options_.host_env)};
  // The nodes make what describes their place themselves.
  std::erase_if(job.environment, [](const auto& entry) {
    return entry.first.starts_with("LOCKSTEP_JOB_") || entry.first == "LOCKSTEP_SSH";
  });
  starter_ = std::make_unique<Starter>(options_, job, board_);
}

void Leader::block_signals() {
  ::signal(SIGCHLD,
           SIG_DFL);  // ignored, as some parents leave it, children would not be ours to wait for
  ::signal(SIGPIPE, SIG_IGN);
  // nohup, or a shell's background job: what was ignored stays so, unless it is asked for.
  const auto is_ignored = [](int signal) {
    struct sigaction action {};
    ::sigaction(signal, nullptr, &action);
    return action.sa_handler == SIG_IGN;
  };
  sigset_t mask;
  ::sigemptyset(&mask);
  if (!is_ignored(SIGUSR1)) {
    ::sigaddset(&mask, SIGUSR1);
  }
  for (const int signal : options_.stop_signals) {
    if (options_.signals_are_given || !is_ignored(signal)) {
      ::sigaddset(&mask, signal);
    }
  }
  ::sigprocmask(SIG_BLOCK, &mask, nullptr);
  for (const int signal : options_.stop_signals) {
    if (::sigismember(&mask, signal) == 1) {
      ::signal(signal, SIG_DFL);  // the kernel drops an ignored one, blocked or not
    }
  }
  signals_.reset(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) {
    throw IoError("cannot make a signalfd: {}", base::errno_text(errno));
  }
}

base::Deadline Leader::next_timeout() const {
  base::Deadline next = next_try_.earlier(next_beat_);
  if (head_) {
    next = next.earlier(head_->next_timeout());
  }
  if (ranks_) {
    next = next.earlier(ranks_->next_timeout());
  }
  if (starter_) {
    next = next.earlier(starter_->next_timeout());
  }
  if (stager_) {
    next = next.earlier(stager_->next_timeout());
  }
  if (voice_.is_busy()) {
    next =
        next.earlier(base::Deadline::after(std::chrono::milliseconds(base::Console::kBusyPauseMs)));
  }
  return next;
}

void Leader::poll_once() {
  while (!deferred_.empty()) {  // an answer may be the next start, which may fail as well
    for (const MemberMessage& message : std::exchange(deferred_, {})) {
      tell(message);
    }
  }
  if (is_over() && !ranks_ && !stager_) {
    return;
  }
  if (is_over() && stager_) {
    stager_->stop();
  }
  PollSet polls;
  const auto signals = polls.add(signals_.get());
  const auto link = polls.add(link_ ? link_->fd() : -1, link_ ? link_->events() : short{POLLIN});
  const auto life = polls.add(options_.life_fd);
  // These are served after every wait, whatever it was that ended it.
  polls.add(head_ ? head_->fd() : -1);
  polls.add(stager_ ? stager_->fd() : -1);
  polls.add(voice_.backlog() > 0 && !voice_.is_busy() ? voice_.fd() : -1, POLLOUT);
  if (ranks_) {
    ranks_->add_polls(polls.fds());
  }
  if (starter_) {
    starter_->add_polls(polls.fds());
  }
  polls.wait(next_timeout());
  voice_.write_some();
  // The ranks first: an end that came before a signal is the cause of what follows.
  if (ranks_ && !ranks_->is_gone()) {
    ranks_->serve();
  }
  if (polls.is_ready(signals)) {
    read_signals();
  }
  if (stager_) {
    serve_stager();
  }
  if (starter_) {
    if (const auto failure = starter_->serve(polls.fds())) {
      head_->abandon(*failure);
    }
  }
  if (head_) {
    head_->serve();
  }
  if (polls.is_ready(life) && !end_) {
    lose_starter();
  }
  if (polls.is_ready(link) && link_) {
    read_head();
  }
  if (next_beat_.expired()) {
    beat();
  }
  if (next_try_.expired()) {
    try_to_join();
  }
  last_turn_ = base::Clock::now();
}

void Leader::read_signals() {
  signalfd_siginfo info;
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int signal = static_cast<int>(info.ssi_signo);
    const auto& stops = options_.stop_signals;
    const bool is_stop = std::find(stops.begin(), stops.end(), signal) != stops.end();
    told_to_stop_ = told_to_stop_ || is_stop;
    if (told_to_stop_ && ranks_ && !ranks_->is_gone()) {
      ranks_->hurry();
    }
    if (head_) {
      head_->signal(signal);
    } else if (link_ && !link_->is_broken()) {
      tell({.kind = MemberSays::Signal, .signal = signal});
    } else if (is_stop) {
      stop_alone(signal);
    }
  }
}

// The head cannot be asked: this node's ranks hear what it would have had them hear.
void Leader::stop_alone(int signal) {
  const bool has_ranks = ranks_ && !ranks_->is_gone();
  if (has_ranks && !end_) {
    ranks_->stop(signal);
  } else if (has_ranks && signal == SIGINT) {
    ranks_->kill_now();
  }
  if (!end_) {
    end_ = HeadMessage{
        .kind = HeadSays::End,
        .code = 128 + signal,
        .text = fmt::format("{}: stopped by {}", options_.name, base::signal_name(signal))};
  }
}

void Leader::tell(const MemberMessage& message) {
  if (head_) {
    head_->hear_local(message);
  } else if (link_) {
    link_->send(message);
  }
}

void Leader::obey(const HeadMessage& message) {
  switch (message.kind) {
    case HeadSays::Start:
      start_ranks(message.assignment);
      break;
    case HeadSays::Stop:
      if (ranks_) {
        ranks_->stop(message.signal);
      }
      break;
    case HeadSays::Kill:
      if (ranks_) {
        ranks_->kill_now();
      }
      break;
    case HeadSays::Checkpoint:
      if (ranks_) {
        ranks_->checkpoint();
      }
      break;
    case HeadSays::Hurry:
      told_to_stop_ = true;
      if (ranks_) {
        ranks_->hurry();
      }
      break;
    case HeadSays::Refused:
      give_up("the head of the job refused this node: " + message.text);
      break;
    case HeadSays::End:
      end_ = message;
      if (ranks_ && !ranks_->is_gone()) {
        ranks_->stop();  // the job goes on without this node
      }
      if (options_.head_is_heard) {
        end_->text.clear();
      }
      break;
    case HeadSays::Beat:
      break;
  }
}

void Leader::start_ranks(const Assignment& place) {
  const JobIdentity job{.id = rendezvous_.job_id,
                        .secret = rendezvous_.secret,
                        .role = options_.role,
                        .max_restarts = options_.max_restarts,
                        .stop_signals = options_.stop_signals,
                        .place = place};
  try {
    std::vector<NodePlan> nodes = plan_nodes(options_, job, base::own_environment());
    for (NodePlan& node : nodes) {
      node.file_limit = file_limit_;
    }
    make_log_folders(options_.output, nodes);
    ranks_ = std::make_unique<LocalRanks>(
        LocalRanksOptions{.generation = place.generation,
                          .board = &board_,
                          .stop_grace = options_.stop_grace,
                          .tell = [this](const MemberMessage& message) { tell(message); },
                          .say = [this](const std::string& sentence) { say(sentence); }},
        std::move(nodes));
  } catch (const Error& error) {
    // The head may be in the middle of telling others to start: it hears of this in the next turn.
    ranks_.reset();
    const bool is_usage = dynamic_cast<const UsageError*>(&error) != nullptr;
    deferred_.push_back({.kind = MemberSays::Failed,
                         .generation = place.generation,
                         .status = {.code = is_usage ? 2 : 1},
                         .text = error.what()});
    deferred_.push_back({.kind = MemberSays::Idle, .generation = place.generation});
  }
}

}  // namespace lockstep::launch
