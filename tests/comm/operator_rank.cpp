// A rank of the jobs in tests/launch/operator_walk_test.cpp: a program that trains, as far as a
// launcher can see. It meets the others, checks every result, and tells by its exit code what went
// wrong: 4 for a wrong result, 5 for a lost peer, 7 for a password that it could not ask for. Rank
// 0 leaves a process behind.
//
//   operator_rank until FILE    steps until FILE exists
//   operator_rank bars          steps with a bar that it redraws, as tqdm does
//   operator_rank ask           rank 1 asks for a password, the others learn it
//   operator_rank chat FOLDER   says much until it is told to end, then leaves a file in FOLDER
//   operator_rank once          one step, and says whose it is

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <termios.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/comm/requests.h>

#include "base/unique_fd.h"

namespace {

using lockstep::Group;

constexpr int kLeastSteps = 10;  // however early the file comes

struct WrongResult : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct NoPassword : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void expect(bool holds, const char* what, int step) {
  if (!holds) {
    throw WrongResult(fmt::format("step {}: {} is wrong", step, what));
  }
}

// Collectives whose results are whole numbers that everybody can tell beforehand.
void take_step(Group& group, int step) {
  const int64_t size = group.size();
  at::Tensor sum = at::full({1001}, static_cast<double>((group.rank() + 1) * (step % 100 + 1)));
  group.all_reduce(sum);
  const auto total = static_cast<double>(size * (size + 1) / 2 * (step % 100 + 1));
  expect(sum.equal(at::full_like(sum, total)), "the sum", step);
  const at::Tensor own = at::full({3}, group.rank() * 1000 + step, at::kLong);
  at::Tensor all = at::empty({size, 3}, at::kLong);
  group.all_gather(all, own);
  const at::Tensor ranks = at::arange(size, at::kLong) * 1000 + step;
  expect(all.equal(ranks.unsqueeze(1).expand({size, 3})), "what was gathered", step);
}

// Whether rank 0 says so.
bool all_agree(Group& group, bool of_rank_0) {
  at::Tensor word = at::full({1}, group.rank() == 0 && of_rank_0 ? 1 : 0, at::kLong);
  group.broadcast(word);
  return word.item<int64_t>() == 1;
}

void step_until(Group& group, const std::string& file) {
  std::chrono::duration<double> longest{0};
  int step = 0;
  for (bool is_over = false; !is_over; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    is_over = all_agree(group, step >= kLeastSteps && std::filesystem::exists(file));
    take_step(group, step);
    longest =
        std::max<std::chrono::duration<double>>(longest, std::chrono::steady_clock::now() - begin);
  }
  std::cout << fmt::format("{} steps were right, longest {:.1f} s", step, longest.count())
            << std::endl;
}

// tqdm: a return, then the bar, in one write; the line's end when all is done.
void draw(int rank, int percent) {
  const auto tens = static_cast<size_t>(percent / 10);
  std::cerr << fmt::format("\r{:3}%|{:<10}| {}/100 of rank {}", percent, std::string(tens, '#'),
                           percent, rank)
            << std::flush;
}

void step_with_bar(Group& group) {
  for (int percent = 1; percent <= 100; ++percent) {
    draw(group.rank(), percent);
    take_step(group, percent);
  }
  std::cerr << std::endl;
}

// As getpass does: at the terminal, whatever standard input is, and unseen.
std::string ask_for_password() {
  const lockstep::base::UniqueFd terminal(::open("/dev/tty", O_RDWR | O_CLOEXEC));
  if (!terminal) {
    throw NoPassword(fmt::format("cannot ask for the password: /dev/tty: {}",
                                 lockstep::base::errno_text(errno)));
  }
  termios found{};
  ::tcgetattr(terminal.get(), &found);
  termios unseen = found;
  unseen.c_lflag &= ~static_cast<tcflag_t>(ECHO);
  ::tcsetattr(terminal.get(), TCSAFLUSH, &unseen);
  const std::string prompt = "password: ";
  lockstep::base::write_all(terminal.get(), prompt.data(), prompt.size());
  std::string word;
  for (char letter = 0; ::read(terminal.get(), &letter, 1) == 1 && letter != '\n';) {
    word += letter;
  }
  ::tcsetattr(terminal.get(), TCSAFLUSH, &found);
  lockstep::base::write_all(terminal.get(), "\n", 1);
  return word;
}

void share_password(Group& group) {
  constexpr size_t kMaxLetters = 32;
  constexpr int kWhoAsks = 1;
  at::Tensor letters = at::zeros({kMaxLetters}, at::kByte);
  if (group.rank() == kWhoAsks) {
    const std::string word = ask_for_password();
    std::copy_n(word.begin(), std::min(word.size(), kMaxLetters), letters.data_ptr<uint8_t>());
  }
  group.broadcast(letters, {.root = kWhoAsks});
  std::string word(reinterpret_cast<const char*>(letters.data_ptr<uint8_t>()), kMaxLetters);
  word.resize(word.find('\0'));
  std::cout << fmt::format("the password has {} letters, the last is {}", word.size(), word.back())
            << std::endl;
}

void chat(Group& group, const std::string& folder) {
  lockstep::JobRequests requests(group);
  const std::string line(4000, 'x');
  for (int step = 0;; ++step) {
    take_step(group, step);
    std::cout << line << std::endl;
    std::cerr << line << std::endl;
    if (requests.at_step_boundary() == lockstep::JobRequest::CheckpointAndStop) {
      const std::string file = fmt::format("{}/saved-{}", folder, group.rank());
      lockstep::base::open_file(file, O_WRONLY | O_CREAT, 0644);
      return;
    }
  }
}

// As a data loader may: a child in a session of its own, which nobody ends.
void start_helper() {
  if (::fork() == 0) {
    ::setsid();
    for (;;) {
      ::pause();
    }
  }
}

void leave_error(const std::string& message) {
  const char* file = std::getenv("TORCHELASTIC_ERROR_FILE");
  std::ofstream(file == nullptr ? "/dev/null" : file)
      << fmt::format("{{\"message\": \"{}\"}}", message);
}

void work(Group& group, const std::string& what, const std::string& where) {
  if (what == "until") {
    step_until(group, where);
  } else if (what == "bars") {
    step_with_bar(group);
  } else if (what == "ask") {
    share_password(group);
  } else if (what == "chat") {
    chat(group, where);
  } else {
    take_step(group, 0);
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    std::cout << fmt::format("right for user {} with {} files", ::getuid(), files.rlim_max)
              << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string what = argc > 1 ? argv[1] : "once";
  if (what == "bars") {
    draw(std::stoi(std::getenv("RANK")), 0);  // before anything else is said
  }
  Group group = lockstep::init();
  std::cout << fmt::format("up {} of {} on {}", group.rank(), group.size(), group.backend_name())
            << std::endl;
  if (group.rank() == 0) {
    start_helper();
  }
  work(group, what, argc > 2 ? argv[2] : "");
  return 0;
} catch (const WrongResult& error) {
  std::cerr << error.what() << std::endl;
  return 4;
} catch (const lockstep::CommError& error) {
  std::cerr << error.what() << std::endl;
  return 5;
} catch (const NoPassword& error) {
  leave_error(error.what());
  return 7;
} catch (const std::exception& error) {
  std::cerr << error.what() << std::endl;
  return 1;
}
