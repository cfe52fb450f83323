#pragma once

// Messages between two ranks of a host. A thread, started with the first message and asleep while
// none can move, carries all of them at once, so that any order of sends and receives gets through.
// A send is done when the receiver has taken the message, so that one which nobody wants is
// noticed.

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "shm/arena.h"

namespace lockstep::shm {

struct Message {
  int peer = 0;
  int tag = 0;
  DataType type = DataType::UInt8;
  void* data = nullptr;  // a sender's is only read
  size_t bytes = 0;
  // Called once, on the messenger's thread, if the message was taken. `error` is empty, or says how
  // the sender's message differs from what the receiver wants, or is Messenger::kStopped.
  std::function<void(const std::string& error)> done;
};

// Threads: every method may be called concurrently.
class Messenger {
 public:
  static const std::string kStopped;  // before the message got through

  Messenger(int rank, std::vector<std::byte*> arenas);
  ~Messenger();
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  // False, and nothing else, once it is stopped.
  bool send(Message message);
  bool receive(Message message);

  // No message's memory is touched any more once this returns, and none is kept: what has not got
  // through ends with an error.
  void stop();

 private:
  struct Header {  // what precedes a message's bytes
    uint64_t bytes;
    int32_t tag;
    DataType type;
  };
  struct Outgoing {
    Message message;
    size_t sent = 0;   // header included
    uint64_t end = 0;  // all sent: where it ends, counted in bytes ever written to the mailbox
  };
  struct Arrival {  // a message that nobody wanted yet
    Header header{};
    std::vector<std::byte> bytes;
  };
  struct Incoming {  // from one rank
    std::list<Message> wanted;
    std::list<Arrival> unexpected;
    Header header{};           // of the message being read
    size_t received = 0;       // of it, header included
    bool has_begun = false;    // its header is complete, and its bytes go to
    Message* owner = nullptr;  // this one of `wanted`; null: to the last of `unexpected`
    std::string error;         // not empty: nothing more is read, every receive ends with it
  };

  Mailbox& mailbox(int from, int to) const;
  std::atomic<uint32_t>& bell(int rank) const;
  void ring(int rank) const;
  void start();
  void run();
  std::vector<Message> take_pending();  // of all ranks
  bool pump();                          // true if anything moved
  bool pump_out(int peer, std::deque<Outgoing>& queue);
  bool push(Mailbox& box, Outgoing& out) const;  // true once all of it is in the mailbox
  bool pump_in(int peer, Incoming& from);
  bool begin_message(Incoming& from);
  void end_message(Incoming& from);
  bool deliver_unexpected(Incoming& from);
  bool refuse_all(Incoming& from);
  static std::string difference(const Header& header, const Message& wanted);

  const int rank_;
  const std::vector<std::byte*> arenas_;
  const ArenaLayout layout_;
  const size_t capacity_;

  std::mutex mutex_;  // guards what follows; held while bytes are copied
  bool stopping_ = false;
  std::vector<std::deque<Outgoing>> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<std::function<void()>> finished_;  // to be called without the lock
  std::thread thread_;
  std::thread::id thread_id_;

  std::mutex join_mutex_;  // held by who waits for the thread's end, so that all do
};

}  // namespace lockstep::shm
