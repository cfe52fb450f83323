// Every example of the public headers, as tools/header_examples.py extracts it: this file compiles
// and links only if all of them are right.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/comm/c10d.h>
#include <lockstep/lockstep.h>

#include "docs/prelude.h"

// An example may declare a name of the prelude anew, or one that it does not use.
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"

namespace lockstep_examples {

using lockstep::docs::Assumed;
using lockstep::docs::MyModel;

#include "header_examples.inc"

}  // namespace lockstep_examples

TEST(HeaderExamples, AreFound) {
  EXPECT_GE(lockstep_examples::kNumExamples, 40);
}
