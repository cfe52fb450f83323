#pragma once

// What can be known to be wrong with a run before it begins.

#include <lockstep/comm/group.h>
#include <lockstep/train/trainer.h>

namespace lockstep::train {

// Throws UsageError for what cannot be trained with.
void check_run(const TrainerOptions& options, const TrainerData& data);

// Collective: throws UsageError on every rank if they do not have the same options and as many
// samples. Otherwise one rank's epoch would end before the others', in the middle of a collective.
void check_same_run(Group& group, const TrainerOptions& options, const TrainerData& data);

}  // namespace lockstep::train
