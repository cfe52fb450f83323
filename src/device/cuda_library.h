#pragma once

// libtorch's CUDA library, loaded while the program runs.

#include <string>

namespace lockstep::device {

// Loads it where a driver is and LOCKSTEP_DEVICE does not forbid it; only the first call does
// anything. Returns why CUDA cannot be used; empty if it can.
//
// libtorch asks once whether it has CUDA, and keeps the answer for good. So whoever asks first must
// find the library loaded: linking this file makes libtorch's own first question load it.
const std::string& load_cuda();

// The same, for the log: a warning where there is a driver and yet no CUDA, since the program goes
// on without a word, and slowly.
void log_cuda();

// Where libtorch's libraries are: the folder of the libtorch_cpu.so in this process.
std::string libtorch_folder();

}  // namespace lockstep::device
