#pragma once

// The half of `lockstep doctor --hosts` that runs on each host: `lockstep doctor --serve`.
//
// It reads requests from standard input and answers on standard output, one JSON object per line,
// in order, until the input ends. A request that fails is answered {"error": "..."}.
//
//   {"do": "hello"}                             version, build, libtorch, host name, addresses
//   {"do": "time"}                              {"time_ns"}: its wall clock
//   {"do": "listen", "interface", "address"}    {"address", "port", "token", "interface"}
//   {"do": "reach", "to": [{"address", "port", "token"}, ...]}
//                                               {"problems": ["", "no answer ...", ...]}
//   {"do": "measure", "to": {...}}              {"rtt_us", "gb_per_s"}
//   {"do": "write", "folder"}                   {"file"}: a new file, removed when this process
//   ends
//   {"do": "see", "file", "timeout_ms"}         {"problem"}: "" if it holds its own name
//
// Versions may differ in all but "hello": a host of another version is asked nothing else.

#include <string>

namespace lockstep::doctor {

struct DoctorServeOptions {
  std::string torch_program;  // REQUIRED: path of lockstep-torch
};

// Returns the exit code.
int serve_doctor(const DoctorServeOptions& options);

}  // namespace lockstep::doctor
