// A program that trains for ever: one all-reduce per step, until the launcher asks it to end. With
// "fail" the last rank of the first start ends with an error in the middle, with "throw" by an
// exception of rank 1, which main catches, and with "leave" rank 1 says what is wrong and returns.

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string_view>
#include <thread>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/comm/requests.h>

namespace {

int train(int argc, char** argv) {
  const bool throws = argc > 1 && std::string_view(argv[1]) == "throw";
  const bool leaves = argc > 1 && std::string_view(argv[1]) == "leave";
  const bool fails = argc > 1 && std::string_view(argv[1]) == "fail";
  const bool is_first_start = std::string_view(std::getenv("LOCKSTEP_GENERATION")) == "0";
  lockstep::Group group = lockstep::init();
  lockstep::JobRequests requests(group);
  std::cout << "up " << group.rank() << " of " << group.size() << std::endl;
  for (int step = 0;; ++step) {
    at::Tensor sum = at::ones({1});
    group.all_reduce(sum);
    if (throws && step == 20 && group.rank() == 1) {
      throw std::runtime_error("the model of rank 1 broke");
    }
    if (leaves && step == 20 && group.rank() == 1) {
      std::cerr << "the model of rank 1 broke" << std::endl;
      return 7;
    }
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

}  // namespace

int main(int argc, char** argv) {
  try {
    const int code = train(argc, argv);
    if (code == 7) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // what a program has to tidy up
    }
    return code;
  } catch (const std::exception& error) {
    const bool is_victim = dynamic_cast<const lockstep::CommError*>(&error) != nullptr;
    std::cerr << error.what() << std::endl;
    return is_victim ? 1 : 7;
  }
}
