#pragma once

// The process that a user starts: it starts this host's ranks when the head says so, passes on what
// becomes of them, and is the head itself where that is its place.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/console.h"
#include "base/deadline.h"
#include "base/store/store_server.h"
#include "base/unique_fd.h"
#include "launch/job/head.h"
#include "launch/job/head_link.h"
#include "launch/job/rendezvous.h"
#include "launch/job/starter.h"
#include "launch/launch.h"
#include "launch/node/local_ranks.h"
#include "launch/node/stage.h"
#include "launch/node/terminal.h"
#include "launch/plan.h"

namespace lockstep::launch {

// Lives in a process without threads.
class Leader {
 public:
  Leader(const LaunchOptions& options, Rendezvous rendezvous);

  // Runs until the job is over and no process of it is left on this host. Returns the exit code.
  int run();

 private:
  void open_head();
  void start_hosts();
  void block_signals();
  void poll_once();
  base::Deadline next_timeout() const;
  void read_signals();
  void stop_alone(int signal);
  void try_to_join();
  void read_head();
  void lose_head(const std::string& why);
  void lose_starter();
  void beat();
  void mend_link();
  void tell(const MemberMessage& message);  // tells the head, wherever it is
  void obey(const HeadMessage& message);
  void start_ranks(const Assignment& place);
  void start_staging();
  void serve_stager();
  MemberInfo describe() const;
  bool may_come_back() const;
  void give_up(const std::string& why);
  void say(const std::string& sentence);
  void say_lines(const std::string& lines);
  void speak_out();
  bool is_over() const;
  void bid_farewell();
  int finish();

  const LaunchOptions& options_;
  Rendezvous rendezvous_;
  const rlimit file_limit_;  // as this process found it: the ranks get it back
  const ReservedPort master_;
  base::UniqueFd signals_;
  base::ConsoleBoard board_;
  base::Console voice_;  // standard error: a reader that does not read must not hold up the job
  LentTerminal keyboard_;
  bool told_to_stop_ = false;  // by a signal, here or on another node

  // Either the head is here (the first two), or it is elsewhere (the third).
  std::unique_ptr<base::StoreServer> store_;
  std::unique_ptr<Head> head_;
  std::unique_ptr<HeadLink> link_;  // empty before this node joins and once the head is lost

  std::unique_ptr<Starter> starter_;   // if the nodes are on other hosts
  std::unique_ptr<LocalRanks> ranks_;  // empty before the first start
  std::unique_ptr<Stager> stager_;     // while this node's files are on the way
  std::optional<MemberMessage> stage_failure_;
  std::vector<MemberMessage> deferred_;  // messages to the head, sent in the next turn
  size_t next_endpoint_ = 0;
  base::Deadline join_by_ = base::Deadline::never();
  base::Deadline next_try_ = base::Deadline::never();  // of the next attempt to join
  base::Deadline next_beat_ = base::Deadline::never();
  base::Clock::time_point last_turn_;
  std::string last_refusal_;
  std::optional<HeadMessage> end_;  // the head's last message
};

}  // namespace lockstep::launch
