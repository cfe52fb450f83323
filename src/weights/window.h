#pragma once

// The bounded memory through which chunks of the stream go from the ranks that read them to all.
//
// Chunk j of the stream is read by reader j % num_readers; one chunk of each reader is a round.
// Each reader has a ring of slots, one round in each: while a round is handed out, later ones are
// read.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <lockstep/comm/group.h>
#include <lockstep/weights/weights.h>

namespace lockstep::weights {

inline constexpr uint64_t kNumSlots = 4;

// Tells which ranks can share memory.
struct Neighbours {
  int num_nodes = 1;
  int num_local = 1;    // on this rank's node
  int node = 0;         // the lowest rank on it
  bool is_even = true;  // as many ranks on every node
};

// Collective.
Neighbours find_neighbours(Group& group);

struct WindowOptions {
  LoadMode mode = LoadMode::Each;  // not Auto
  uint64_t chunk_bytes = 0;        // a multiple of kPageBytes
};

// Threads: slot() of a round may be filled by another thread until share() is called for it.
class Window {
 public:
  virtual ~Window() = default;

  // How many ranks read, and which of these readers this rank is, if it reads.
  uint64_t num_readers() const { return num_readers_; }
  std::optional<uint64_t> reader() const { return reader_; }

  // Where this rank's chunk of the round goes. It means nothing on a rank that does not read.
  virtual std::span<std::byte> slot(uint64_t round) = 0;

  // Collective: hands out the round's chunks. True if all readers said `is_good`; the same on every
  // rank. When it returns, slot(round + kNumSlots - 1) may be filled: what was in there has been
  // taken by all.
  virtual bool share(uint64_t round, bool is_good) = 0;

  // What a reader has read; valid until the next share().
  virtual std::span<const std::byte> chunk(uint64_t round, uint64_t reader) const = 0;

  // What this rank sent to other nodes and the group that was given does not count.
  uint64_t network_bytes() const { return network_bytes_; }

 protected:
  void count_sent(uint64_t bytes) { network_bytes_ += bytes; }

  Window(uint64_t num_readers, std::optional<uint64_t> reader)
      : num_readers_(num_readers), reader_(reader) {}

 private:
  const uint64_t num_readers_;
  const std::optional<uint64_t> reader_;
  uint64_t network_bytes_ = 0;
};

// Collective, but for Each.
std::unique_ptr<Window> make_window(Group& group, const Neighbours& neighbours,
                                    WindowOptions options);

}  // namespace lockstep::weights
