#pragma once

namespace lockstep {

// `lockstep train RECIPE [OPTIONS]`, on every rank; argv[0] is "train". Returns the exit code: 0,
// 1 if the ranks ended with different models, 2 for a mistake on the command line or in the recipe.
int train_command(int argc, char** argv);

}  // namespace lockstep
