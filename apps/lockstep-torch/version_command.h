#pragma once

namespace lockstep {

// `lockstep-torch --version`: what this program runs on, one line each; `lockstep doctor` reads it.
int version_command(int argc, char** argv);

}  // namespace lockstep
