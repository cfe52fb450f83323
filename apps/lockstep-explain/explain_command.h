#pragma once

namespace lockstep {

// `lockstep explain [LESSON] [OPTIONS]`, on every rank; argv[0] is "explain". Returns the exit
// code: 0, or 2 for a mistake on the command line. Rank 0 alone prints.
int explain_command(int argc, char** argv);

}  // namespace lockstep
