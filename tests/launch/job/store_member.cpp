// A rank as the library makes one, without tensors: a member of the job's store. It says "up",
// waits for the file that its argument names, meets the others in the store, and ends with 0; with
// 3 if it hears that somebody is lost.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <unistd.h>

#include "base/env.h"
#include "base/store/store_client.h"

namespace {

using namespace lockstep;
using namespace std::chrono_literals;

int take_part(const std::string& file) {
  const base::Env env;
  const auto number = [&](const char* name) { return *env.integer(name, 0, 1 << 20); };
  const int rank = static_cast<int>(number("LOCKSTEP_RANK"));
  const base::Deadline deadline = base::Deadline::after(60s);
  base::StoreClient store(
      {.server = base::Endpoint::parse(*env.text("LOCKSTEP_STORE"), "LOCKSTEP_STORE"),
       .job_id =
           base::store::rank_scope(*env.text("LOCKSTEP_JOB_ID"), number("LOCKSTEP_GENERATION")),
       .secret = *env.text("LOCKSTEP_JOB_SECRET")},
      deadline);
  std::atomic<bool> is_lost = false;
  store.join("all", rank, "rank",
             {.lost = [&](int, const std::string&) { is_lost = true; },
              .noted = [](int, const std::string&) {},
              .disconnected = [&](const std::string&) { is_lost = true; }},
             deadline);
  std::puts("up");
  std::fflush(stdout);
  while (::access(file.c_str(), F_OK) != 0 && !is_lost && !deadline.expired()) {
    std::this_thread::sleep_for(5ms);
  }
  if (is_lost) {
    return 3;
  }
  if (store.add("arrived", 1, deadline) == number("LOCKSTEP_WORLD_SIZE")) {
    store.set("all arrived", "", deadline);
  }
  store.get("all arrived", deadline);
  store.leave("all", rank, deadline);
  return 0;
}

}  // namespace

int main(int, char** argv) try { return take_part(argv[1]); } catch (const std::exception& error) {
  std::fprintf(stderr, "store_member: %s\n", error.what());
  return 3;
}
