#pragma once

// The folders of the ranks' log files: DIR/<job>_<run>/attempt_<K>/rank_<R>.

#include <vector>

#include "launch/plan.h"

namespace lockstep::launch {

// Makes what is missing, with `output.folder_mode`; DIR may be one that other users can write to,
// so below it no link is followed, and a rank's folder must be new. Does nothing without a
// log_dir. Throws UsageError.
void make_log_folders(const OutputOptions& output, const std::vector<NodePlan>& nodes);

}  // namespace lockstep::launch
