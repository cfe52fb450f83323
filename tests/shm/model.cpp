#include "shm/model.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace lockstep::shm::test {
namespace {

Scheduler* running = nullptr;

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 29);
}

}  // namespace

void VectorClock::join(const VectorClock& other) {
  for (int fiber = 0; fiber < kMaxFibers; ++fiber) {
    ticks[fiber] = std::max(ticks[fiber], other.ticks[fiber]);
  }
}

bool VectorClock::includes(const VectorClock& other) const {
  return std::equal(std::begin(ticks), std::end(ticks), std::begin(other.ticks),
                    std::greater_equal<>());
}

// ---- a run ----

Scheduler& Scheduler::now() {
  return *running;
}

void Scheduler::start(const std::vector<std::function<void()>>& bodies) {
  num_fibers_ = bodies.size();
  while (fibers_.size() < num_fibers_) {
    fibers_.push_back(std::make_unique<Fiber>());
  }
  for (size_t fiber = 0; fiber < num_fibers_; ++fiber) {
    fibers_[fiber]->start(&bodies[fiber]);
    clocks_[fiber].ticks[fiber] = 1;
    resume(static_cast<int>(fiber));  // up to its first step
  }
}

Scheduler::State Scheduler::state(int fiber) const {
  const auto place = static_cast<size_t>(fiber);
  if (place >= num_fibers_ || fibers_[place]->has_ended()) {
    return State::Ended;
  }
  return sleeps_on_[fiber] != nullptr ? State::Asleep : State::Ready;
}

bool Scheduler::all_ended() const {
  for (int fiber = 0; fiber < kMaxFibers; ++fiber) {
    if (state(fiber) != State::Ended) {
      return false;
    }
  }
  return true;
}

void Scheduler::run(const std::vector<std::function<void()>>& bodies, const Choose& choose) {
  start(bodies);
  choose_ = &choose;
  next_ = choose(-1);
  while (next_ >= 0) {
    const int fiber = next_;
    resume(fiber);
    if (fibers_[static_cast<size_t>(fiber)]->has_ended()) {
      next_ = choose(fiber);
    }
  }
}

void Scheduler::resume(int fiber) {
  current_ = fiber;
  fibers_[static_cast<size_t>(fiber)]->resume();
  current_ = -1;
}

uint64_t Scheduler::state_hash() const {
  uint64_t hash = 1;
  for (const Cell* cell : cells_) {
    hash = mixed(hash, cell->value);
  }
  for (int fiber = 0; fiber < static_cast<int>(num_fibers_); ++fiber) {
    hash = mixed(mixed(hash, histories_[fiber]), static_cast<uint64_t>(state(fiber)));
  }
  for (const Plain* plain : plains_) {
    uint64_t known = static_cast<uint64_t>(plain->value());
    for (int fiber = 0; fiber < static_cast<int>(num_fibers_); ++fiber) {
      known = known * 4 + plain->known_to(clocks_[fiber]);
    }
    hash = mixed(hash, known);
    for (const Cell* cell : cells_) {
      hash = mixed(hash, plain->known_to(cell->clock));
    }
  }
  return hash;
}

std::string Scheduler::describe() const {
  std::string text;
  for (int fiber = 0; fiber < static_cast<int>(num_fibers_); ++fiber) {
    constexpr const char* kNames[] = {"ready", "asleep", "ended"};
    text += fmt::format(" {}:{}", fiber, kNames[static_cast<int>(state(fiber))]);
  }
  return text;
}

// Changing stacks is what costs time: a fiber that goes on does not.
void Scheduler::leave_to_next() {
  const int self = current_;
  next_ = choose_ != nullptr ? (*choose_)(self) : -1;
  if (next_ != self) {
    fibers_[static_cast<size_t>(self)]->yield();
  }
}

void Scheduler::step() {
  leave_to_next();
  histories_[current_] = mixed(histories_[current_], 1);
}

void Scheduler::observe(uint64_t value) {
  histories_[current_] = mixed(histories_[current_], value + 2);
}

void Scheduler::sleep_on(const void* word) {
  sleeps_on_[current_] = word;
  leave_to_next();
}

void Scheduler::wake(const void* word) {
  for (const void*& sleeps_on : sleeps_on_) {
    if (sleeps_on == word) {
      sleeps_on = nullptr;
    }
  }
}

void Scheduler::fail(const std::string& what) {
  if (failure_.empty()) {
    failure_ = what;
  }
}

// ---- plain memory ----

Plain::Plain(std::string name) : name_(std::move(name)) {
  Scheduler::now().add_plain(this);
}

void Plain::expect_ordered(const VectorClock& before, const char* what) const {
  const VectorClock& now = Scheduler::now().clock();
  for (int fiber = 0; fiber < kMaxFibers; ++fiber) {
    if (before.ticks[fiber] > now.ticks[fiber]) {
      Scheduler::now().fail(fmt::format("data race on {}: fiber {} {} what fiber {} did", name_,
                                        Scheduler::now().current(), what, fiber));
    }
  }
}

int Plain::read() const {
  expect_ordered(written_, "reads without order after");
  const int self = Scheduler::now().current();
  read_.ticks[self] = Scheduler::now().clock().ticks[self];
  Scheduler::now().observe(static_cast<uint64_t>(value_));
  return value_;
}

void Plain::write(int value) {
  expect_ordered(written_, "writes without order after");
  expect_ordered(read_, "writes without order after");
  const int self = Scheduler::now().current();
  written_ = VectorClock{};
  written_.ticks[self] = Scheduler::now().clock().ticks[self];
  value_ = value;
}

// ---- the search ----

namespace {

// At one point of the current order: whom to try there.
struct Choice {
  std::vector<int> fibers;
  size_t next = 0;
  int chosen() const { return fibers[next]; }
};

class Search {
 public:
  explicit Search(const SearchOptions& options) : options_(options) {}

  SearchResult run() {
    do {
      run_once();
      ++result_.num_runs;
    } while (result_.failure.empty() && advance());
    result_.num_states = seen_.size();
    return result_;
  }

 private:
  // Follows path_ and from its end the first choice everywhere, until all have ended, nothing can
  // run, or the state is known.
  void run_once() {
    Scheduler scheduler(fibers_);
    running = &scheduler;
    const auto program = options_.make();
    const auto bodies = program->bodies();
    int num_preemptions = 0;
    size_t depth = 0;
    scheduler.run(bodies, [&](int last) {
      if (!scheduler.failure().empty() ||
          (depth == path_.size() && !extend(scheduler, last, num_preemptions))) {
        return -1;
      }
      const int chosen = path_[depth++].chosen();
      if (last >= 0 && chosen != last && scheduler.can_run(last)) {
        ++num_preemptions;
      }
      ++result_.num_steps;
      return chosen;
    });
    judge(scheduler, *program);
    running = nullptr;
  }

  // A new point on the path. False if the run ends here.
  bool extend(const Scheduler& scheduler, int last, int num_preemptions) {
    const bool is_bounded = options_.max_preemptions >= 0;
    const int left = is_bounded ? options_.max_preemptions - num_preemptions : 0;
    uint64_t key = scheduler.state_hash();
    if (is_bounded) {  // from here on it also matters who runs
      key = mixed(key, static_cast<uint64_t>(last + 1));
    }
    const auto [known, is_new] = seen_.try_emplace(key, left);
    if (!is_new && known->second >= left) {
      return false;
    }
    known->second = left;
    Choice choice;
    const bool last_can = last >= 0 && scheduler.can_run(last);
    if (last_can) {
      choice.fibers.push_back(last);
    }
    for (int fiber = 0; fiber < kMaxFibers; ++fiber) {
      const bool is_allowed = !is_bounded || !last_can || left > 0;
      if (fiber != last && scheduler.can_run(fiber) && is_allowed) {
        choice.fibers.push_back(fiber);
      }
    }
    if (choice.fibers.empty()) {
      return false;
    }
    path_.push_back(std::move(choice));
    return true;
  }

  void judge(const Scheduler& scheduler, const Program& program) {
    bool can_run = false;
    for (int fiber = 0; fiber < kMaxFibers; ++fiber) {
      can_run = can_run || scheduler.can_run(fiber);
    }
    std::string failure = scheduler.failure();
    if (failure.empty() && scheduler.all_ended()) {
      failure = program.verdict();
    } else if (failure.empty() && !can_run) {
      failure = "deadlock:" + scheduler.describe();
    }
    if (!failure.empty()) {
      result_.failure = failure + "; order:";
      for (const Choice& choice : path_) {
        result_.failure += fmt::format(" {}", choice.chosen());
      }
    }
  }

  // To the next order that has not been tried.
  bool advance() {
    while (!path_.empty()) {
      if (++path_.back().next < path_.back().fibers.size()) {
        return true;
      }
      path_.pop_back();
    }
    return false;
  }

  const SearchOptions& options_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Choice> path_;
  std::unordered_map<uint64_t, int> seen_;  // state -> most preemptions left when it was reached
  SearchResult result_;
};

}  // namespace

SearchResult search(const SearchOptions& options) {
#if defined(__SANITIZE_ADDRESS__)
  __lsan_disable();  // an order that is given up leaves the exceptions of its fibers behind
#endif
  SearchResult result = Search(options).run();
#if defined(__SANITIZE_ADDRESS__)
  __lsan_enable();
#endif
  return result;
}

std::string SearchResult::text() const {
  return fmt::format("{} runs, {} states, {} steps{}{}", num_runs, num_states, num_steps,
                     failure.empty() ? "" : ": ", failure);
}

}  // namespace lockstep::shm::test
