#pragma once

// The process that stands for a node: it starts the guardian, carries the workers' output to the
// console and the log files, and reports to the leader.

#include <array>
#include <optional>
#include <sys/types.h>
#include <vector>

#include "base/console.h"
#include "base/line_splitter.h"
#include "base/unique_fd.h"
#include "launch/node/guardian.h"
#include "launch/node/log_file.h"
#include "launch/node/message.h"
#include "launch/node/poll_set.h"
#include "launch/node/terminal.h"
#include "launch/plan.h"

namespace lockstep::launch {

// Lives in a process of its own, without threads.
class Agent {
 public:
  // `leader_fd`: to the leader; end of file on it is the leader's death. `board`: shared with the
  // leader and the agents of other nodes.
  Agent(const NodePlan& plan, int leader_fd, base::ConsoleBoard& board);

  // Does everything; returns when the node's processes are gone and their output is written.
  int run();

 private:
  static constexpr size_t kNumStreams = 2;  // 0: standard output, 1: standard error

  struct Stream {
    base::UniqueFd pipe;  // or the rank's terminal
    base::LineSplitter splitter;
    base::LineSplitter whole_lines;  // for the filters, which look at whole lines
    LogFile log;
    std::string prefix;
    bool to_console = true;
    bool is_terminal = false;   // what is typed must be seen at once
    bool after_return = false;  // its last byte was a "\r"
    bool is_line_open = false;  // a part of a line has gone to the console
  };
  struct Rank {
    int rank = 0;
    const WorkerPlan* plan = nullptr;
    pid_t pid = 0;
    std::array<Stream, kNumStreams> streams;
    base::Tail tail;

    std::string take_error() const;
  };

  // How long a console's reader is waited for once the user has ended the job.
  struct Patience {
    uint64_t bytes_taken = 0;
    base::Deadline until = base::Deadline::never();
  };

  std::vector<WorkerStreams> open_streams();
  Stream open_stream(const WorkerPlan& worker, size_t stream);
  void open_input(Rank& rank, WorkerStreams& ends);
  void open_filtered();
  const std::vector<std::string>& filters(size_t stream) const;
  void start_guardian();
  void relay();
  base::Deadline next_timeout() const;
  bool has_room(const Rank& rank, size_t stream) const;
  void add_consoles(PollSet& polls) const;
  void write_consoles();
  void leave_frozen_readers();
  void give_out_unfinished();
  void read_leader();
  void read_guardian();
  void pass_on(Message message, pid_t sender);
  bool read_stream(Rank& rank, size_t stream);
  void drain(Rank& rank);
  void end_stream(Rank& rank, size_t stream);
  void take_piece(Rank& rank, size_t stream, std::string_view text, bool is_open);
  void take_whole_line(const Rank& rank, size_t stream, std::string_view line);
  void reap_guardian();
  void flush();

  const NodePlan& plan_;
  const int leader_fd_;
  std::array<base::Console, kNumStreams> consoles_;
  std::array<Patience, kNumStreams> patience_;
  std::array<LogFile, kNumStreams> filtered_;  // the lines that contain one of the filters
  std::vector<Rank> ranks_;
  LentTerminal keyboard_;
  std::optional<TerminalInput> typed_;  // if a rank of this node has the terminal
  base::UniqueFd control_;
  pid_t guardian_ = 0;
  bool guardian_gone_ = false;
  bool in_a_hurry_ = false;  // the user has ended the job: a reader that does not read is abandoned
};

}  // namespace lockstep::launch
