// A program that trains for ever: one all-reduce per step, until the launcher asks it to end. With
// "fail" the last rank of the first start ends with an error in the middle.

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <thread>

#include <ATen/ATen.h>

#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/comm/requests.h>

int main(int argc, char** argv) {
  const bool fails = argc > 1 && std::string_view(argv[1]) == "fail";
  const bool is_first_start = std::string_view(std::getenv("LOCKSTEP_GENERATION")) == "0";
  lockstep::Group group = lockstep::init();
  lockstep::JobRequests requests(group);
  std::cout << "up " << group.rank() << " of " << group.size() << std::endl;
  for (int step = 0;; ++step) {
    at::Tensor sum = at::ones({1});
    group.all_reduce(sum);
    if (fails && is_first_start && step == 20 && group.rank() == group.size() - 1) {
      return 9;
    }
    const lockstep::JobRequest request = requests.at_step_boundary();
    if (request == lockstep::JobRequest::Checkpoint) {
      std::cout << "saved at step " << step << std::endl;
    } else if (request == lockstep::JobRequest::CheckpointAndStop || (fails && step == 100)) {
      std::cout << "ended at step " << step << std::endl;
      return 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the work of a step
  }
}
