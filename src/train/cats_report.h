#pragma once

// What `lockstep train` says about the job, as text; the program prints it.

#include <string>

#include "train/cats_job.h"

namespace lockstep {

// One line each, without a newline.
std::string start_line(const RankStart& start);
std::string epoch_line(const EpochReport& report);

struct CatsCommand {
  std::string program = "lockstep";          // as the user can type it
  std::string recipe = "recipes/cats.toml";  // as the user typed it
};

// Without the last newline: the held-out accuracy, the table of hashes with its verdict, the time,
// and three commands to go on with.
std::string result_text(const CatsResult& result, const CatsCommand& command);

// The same as one JSON object on one line.
std::string result_json(const CatsResult& result);

}  // namespace lockstep
