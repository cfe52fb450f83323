#pragma once

// What the head of a job and its members (one `lockstep run` per host) tell each other, as JSON in
// the store's Agent frames (docs/formats/store.md). Every message names the generation it belongs
// to: one from an earlier start of the ranks is ignored.

#include <chrono>
#include <cstdint>
#include <string>
#include <sys/types.h>

#include "base/process/process.h"
#include "launch/node/rank_end.h"

namespace lockstep::launch {

// A host that wants to take part.
struct MemberInfo {
  std::string host;          // its name
  std::string address;       // by which other hosts reach it; empty: as the head sees it
  pid_t pid = 0;             // of its `lockstep run`
  int node_rank = -1;        // -1: any
  int num_nodes = 1;         // emulated there
  int procs_per_node = 1;    // on each of them
  uint16_t master_port = 0;  // kept free there for a store of rank 0's own
  std::string what;          // version and command: all members must agree
  bool is_head = false;      // it hosts the head
  bool is_staging = false;   // its files are on the way: it cannot start ranks yet
};

// From a member to the head.
enum class MemberSays {
  Join,         // info
  Started,      // rank, pid
  CannotStart,  // rank, status.code: errno of exec
  Ended,        // rank, pid, age, end
  Failed,       // text: why the member cannot go on; status; rank: one of the node that is gone
  Idle,         // no process of that generation is left
  Signal,       // signal: the one that the member received
  Beat,         // the member is alive
  Staged,       // its files are there
  CannotStage,  // text: why; status
};

struct MemberMessage {
  MemberSays kind = MemberSays::Beat;
  int64_t generation = -1;
  MemberInfo info;
  int rank = -1;
  pid_t pid = 0;
  base::ExitStatus status;  // of what is not the end of a rank
  std::string text;
  std::chrono::nanoseconds age{};  // since the end was noticed: clocks of hosts differ
  RankEnd end;
  int signal = 0;

  std::string to_json() const;
  static MemberMessage from_json(const std::string& text);  // throws FormatError
};

// A member's place in one start of the ranks.
struct Assignment {
  int64_t generation = 0;
  int restart_count = 0;  // starts after a failure
  int first_node = 0;     // of the member's; they are consecutive
  int num_nodes = 1;      // of the job
  int first_rank = 0;     // of the member's; they are consecutive
  int world_size = 1;
  std::string store;        // endpoint of the job's store
  std::string master_addr;  // of rank 0's host
  uint16_t master_port = 0;
  std::string run;  // unique to this run of the job, whose id may be another's too
};

// From the head to a member.
enum class HeadSays {
  Refused,     // text: why; the connection ends
  Start,       // assignment
  Stop,        // signal to all ranks, SIGKILL after the grace; 0: SIGTERM, for one has failed
  Kill,        // SIGKILL to all ranks
  Checkpoint,  // SIGUSR1 to the ranks that handle it
  Hurry,       // the user has ended the job: readers that do not read are not waited for
  End,         // code, text: in a sentence; the job is over
  Beat,
};

struct HeadMessage {
  HeadSays kind = HeadSays::Beat;
  int64_t generation = -1;
  Assignment assignment;
  int signal = 0;
  int code = 0;
  std::string text;

  std::string to_json() const;
  static HeadMessage from_json(const std::string& text);  // throws FormatError
};

}  // namespace lockstep::launch
