// A small program of someone else: each rank adds its number to the sum.

#include <iostream>

#include <ATen/ops/full.h>

#include <lockstep/base/version.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>

int main() {
  auto group = lockstep::init();
  auto sum = at::full({1}, group.rank() + 1.0);
  group.all_reduce(sum);
  std::cout << "lockstep " << lockstep::kVersion << ", rank " << group.rank() << ": the sum is "
            << sum.item<double>() << std::endl;
}
