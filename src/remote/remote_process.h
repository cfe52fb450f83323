#pragma once

// lockstep on one host, started there over ssh, or here directly; its standard streams are the
// connection.
//
// What ssh itself, a login banner or a shell's start-up file writes comes before lockstep's own
// output on the same streams. So lockstep begins both with a line of its own (announce_ready());
// what stands before it is kept back, and is the reason if it never comes.

#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <optional>
#include <poll.h>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/line_splitter.h"
#include "base/process/process.h"
#include "remote/hosts.h"
#include "remote/ssh.h"

namespace lockstep::remote {

struct RemoteStart {
  HostEntry host;                      // REQUIRED
  std::string program;                 // REQUIRED: absolute path of lockstep on this host
  std::vector<std::string> arguments;  // REQUIRED: of lockstep there
  SshOptions ssh;
  bool is_local = false;  // start `program` here, without ssh
  std::chrono::nanoseconds start_timeout = std::chrono::seconds(30);  // until lockstep is ready
  int64_t number = 0;        // by which the caller tells its processes apart
  bool gives_parts = false;  // it passes on lines that are unfinished for long (prompts)
};

// How the process ended.
struct RemoteEnd {
  HostEntry host;
  base::ExitStatus status;  // of ssh, which passes on the code of lockstep there
  bool was_ready = false;   // lockstep ran there
  std::string text;         // what happened, without a full stop
  std::string fix;          // the way out, if there is one

  std::string sentence() const { return fix.empty() ? text : text + "; " + fix; }
};

// Never blocks and has no threads: the caller polls. Its end of the input closes with this process,
// however that ends, which ends lockstep there. Ctrl-C on this terminal does not reach ssh.
class RemoteProcess {
 public:
  // One line of lockstep's output there, with its terminator if it has one; stream 1 or 2.
  using TakeLine = std::function<void(int stream, std::string_view line)>;
  static constexpr size_t kNumPolls = 4;

  // Throws IoError if ssh itself cannot be started.
  explicit RemoteProcess(RemoteStart start);

  const HostEntry& host() const { return start_.host; }
  int64_t number() const { return start_.number; }
  bool is_ready() const { return ready_; }
  const std::optional<RemoteEnd>& end() const { return end_; }  // set once all was read

  // Writes to its standard input, as fast as it reads.
  void send(std::string_view bytes);
  void close_input();
  void kill() noexcept { process_.kill(SIGKILL); }

  // Stops reading its output, which ends the process when it writes.
  void close_output(int stream) { streams_[static_cast<size_t>(stream - 1)].pipe.reset(); }

  // Appends kNumPolls entries, some of them with descriptor -1. `read_out`, `read_err`: whether
  // the caller has room for more lines.
  void add_polls(std::vector<pollfd>& polls, bool read_out = true, bool read_err = true);
  // Takes the same entries after poll(2).
  void handle(std::span<const pollfd> polls, const TakeLine& take);
  // poll(2) must not sleep longer than this.
  base::Deadline deadline() const;

 private:
  struct Stream {
    base::UniqueFd pipe;
    base::LineSplitter splitter;
    bool ready = false;
    bool is_paused = false;  // its reader has no room: more of a line may be waiting
  };

  bool read_stream(size_t stream, const TakeLine& take);
  void take_line(size_t stream, std::string_view line, const TakeLine& take);
  void write_input();
  void finish(const TakeLine& take);
  RemoteEnd describe(base::ExitStatus status) const;

  RemoteStart start_;
  base::Process process_;
  base::UniqueFd input_;
  std::string to_send_;
  std::array<Stream, 2> streams_;
  std::string last_error_;  // the last line on stderr that says something
  base::Deadline start_deadline_ = base::Deadline::never();
  bool ready_ = false;
  bool late_ = false;
  bool closing_ = false;
  std::optional<RemoteEnd> end_;
};

// lockstep calls this first when a RemoteProcess has started it.
void announce_ready();

}  // namespace lockstep::remote
