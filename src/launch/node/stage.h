#pragma once

// Files that a node needs before its ranks start (--stage SRC:DST, --image s3://...), brought to it
// by a process of their own: a transfer has threads, and a process that forks ranks must have none.

#include <optional>
#include <string>
#include <sys/types.h>
#include <vector>

#include "base/deadline.h"
#include "base/env.h"
#include "base/unique_fd.h"
#include "image/container.h"

namespace lockstep::launch {

struct StageItem {
  std::string source;       // a file or folder: a path, file:///path, s3://bucket/key
  std::string destination;  // a path of the node, absolute; a slash at its end: a folder
};

// "SRC:DST"; SRC may have colons in it. Throws UsageError that says which side is wrong.
StageItem parse_stage(const std::string& text);

// Where the image s3://bucket/key is kept: LOCKSTEP_CACHE_DIR, or lockstep in XDG_CACHE_HOME or
// ~/.cache, then images/bucket/key.
StageItem stage_image(const std::string& location, const base::Env& env);

struct StageOptions {
  std::vector<StageItem> items;                      // REQUIRED, not empty
  std::optional<image::ContainerOptions> container;  // checked once the files are there
  std::string program;  // the program that the image must have; empty: none
};

// How the staging ended.
struct StageResult {
  int code = 0;      // 0: all is there; else an exit code
  std::string text;  // what was done, or one sentence that says what could not be
};

// Lives in a process without threads.
class Stager {
 public:
  explicit Stager(const StageOptions& options);  // forks
  ~Stager();                                     // kills and reaps what still runs
  Stager(const Stager&) = delete;

  int fd() const { return report_.get(); }  // for poll(2): readable when there is something to do
  std::optional<StageResult> serve();       // the result, once it is over
  void stop() noexcept;                     // it ends at once and leaves no unfinished file
  base::Deadline next_timeout() const { return kill_at_; }

 private:
  pid_t pid_ = -1;
  base::UniqueFd report_;
  std::string text_;
  base::Deadline kill_at_ = base::Deadline::never();  // unless it has ended as it was told to
};

}  // namespace lockstep::launch
