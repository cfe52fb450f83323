#pragma once

// What a user is told when a GPU has too little memory.

#include <string>

#include <c10/util/Exception.h>

#include <lockstep/train/trainer.h>

namespace lockstep::train {

// Throws OutOfMemoryError: what was done, how much was asked for, how much is free, the way out.
[[noreturn]] void throw_out_of_memory(const c10::OutOfMemoryError& error, const std::string& what,
                                      const std::string& way_out);

// What to change so that a piece of `piece_size` samples needs less.
std::string smaller_pieces(const TrainerOptions& options, int64_t piece_size);

// Returns what `body` returns. `describe` is asked where it ran out of memory, for what was done
// and the way out.
struct MemoryAdvice {
  std::string what;
  std::string way_out;
};
template <typename Body, typename Describe>
auto explain_out_of_memory(Body body, Describe describe) {
  try {
    return body();
  } catch (const c10::OutOfMemoryError& error) {
    const MemoryAdvice advice = describe();
    throw_out_of_memory(error, advice.what, advice.way_out);
  }
}

}  // namespace lockstep::train
