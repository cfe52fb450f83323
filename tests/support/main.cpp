#include "support/fleet.h"

int main(int argc, char** argv) {
  return lockstep::testing_support::test_main(argc, argv);
}
