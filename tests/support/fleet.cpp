#include "support/fleet.h"

#include <map>
#include <memory>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "base/secret.h"
#include "base/store/store_server.h"
#include "comm/backends/staged_backend.h"
#include "comm/start/connect.h"
#include "support/json_channel.h"
#include "support/late_copies.h"
#include "support/nursery.h"

namespace lockstep::testing_support {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

std::string& argument_slot() {
  static std::string argument;
  return argument;
}

std::string& case_slot() {
  static std::string name;
  return name;
}

// A function's place in this binary, the same in every process that runs it.
std::ptrdiff_t place_of(RankBody body) {
  return reinterpret_cast<const char*>(body) - reinterpret_cast<const char*>(&place_of);
}
RankBody body_at(std::ptrdiff_t place) {
  return reinterpret_cast<RankBody>(reinterpret_cast<const char*>(&place_of) + place);
}

// ---- in a rank

Json run_body(RankBody body, Group& group) {
  ::testing::TestPartResultArray results;
  std::string thrown;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &results);
    try {
      body(group);
    } catch (const std::exception& error) {
      thrown = error.what();
    }
  }
  Json failures = Json::array();
  for (int i = 0; i < results.size() && i < 20; ++i) {
    const auto& result = results.GetTestPartResult(i);
    if (result.failed()) {
      failures.push_back(fmt::format("{}:{}: {}", result.file_name() ? result.file_name() : "?",
                                     result.line_number(),
                                     std::string(result.message()).substr(0, 2000)));
    }
  }
  if (!thrown.empty()) {
    failures.push_back("the body threw: " + thrown.substr(0, 2000));
  }
  return failures;
}

// Of the kind that RunOptions ask for.
Group make_group_of(const Json& kind, const Store& store, GroupOptions options) {
  options.timeout = 30s;
  options.backend = static_cast<BackendChoice>(kind.at("backend").get<int>());
  if (!kind.at("staged") || options.size == 1) {
    return make_group(store, options);
  }
  // Pieces are small, so that many are under way at once and the last is shorter.
  return Group(comm::make_staged_backend(
      {.carrier = comm::connect_group({.store = store, .group = options}).backend,
       .make_copies = make_late_copies,
       .is_staged = [](const at::Tensor& /*tensor*/) { return true; },
       .piece_bytes = 100'000}));
}

int rank_main(int channel) {
  const base::Env env;
  const int rank = static_cast<int>(*env.integer("LOCKSTEP_RANK", 0, 1000));
  const int size = static_cast<int>(*env.integer("LOCKSTEP_WORLD_SIZE", 1, 1000));
  log::set_rank(rank);
  log::set_level(log::Level::Warn);
  const Store store = Store::connect({.endpoint = *env.text("LOCKSTEP_STORE"),
                                      .job_id = *env.text("LOCKSTEP_JOB_ID"),
                                      .secret = *env.text("LOCKSTEP_JOB_SECRET")});
  std::unique_ptr<Group> group;
  Json kind;  // of that group
  for (;;) {
    const Json command = receive_json(channel).json;
    if (!command.is_object()) {
      return 0;  // the test is over
    }
    argument_slot() = command.at("argument");
    case_slot() = command.at("group");
    Json failures;
    try {
      if (!group || kind != command.at("kind")) {
        kind = command.at("kind");
        group.reset();
        group = std::make_unique<Group>(
            make_group_of(kind, store, {.name = command.at("group"), .rank = rank, .size = size}));
      }
      failures = run_body(body_at(command.at("place").get<std::ptrdiff_t>()), *group);
    } catch (const Error& error) {
      failures = Json::array({std::string("no group: ") + error.what()});
    }
    try {
      if (!group) {
        throw UsageError("there is no group");
      }
      group->barrier({.timeout = 20s});  // broken by the body? then the next one gets a new group
    } catch (const Error&) {
      group.reset();
    }
    send_json(channel, {{"failures", failures}});
  }
}

// ---- in the test

class Fleet {
 public:
  Fleet(int world, int nodes, std::shared_ptr<Nursery> nursery)
      : world_(world), nodes_(nodes), nursery_(std::move(nursery)) {
    server_ = std::make_unique<base::StoreServer>(
        base::StoreServerOptions{.job_id = job_, .secret = secret_});
    server_->start();
    for (int rank = 0; rank < world; ++rank) {
      members_.push_back(start_rank(rank));
    }
  }

  // True if the ranks may be used again; those that were to die are started anew.
  bool run(RankBody body, const RunOptions& options) {
    const Json command = {
        {"place", place_of(body)},
        {"argument", options.argument},
        {"kind", {{"backend", static_cast<int>(options.backend)}, {"staged", options.staged}}},
        {"group", fmt::format("case-{}", num_cases_++)}};
    for (const auto& member : members_) {
      send_json(member->channel(), command);
    }
    const base::Deadline deadline = base::Deadline::after(options.limit);
    bool is_whole = true;
    for (int rank = 0; rank < world_; ++rank) {
      is_whole &= collect(rank, options, deadline);
    }
    for (const int rank : options.dies) {
      members_[static_cast<size_t>(rank)] = start_rank(rank);
    }
    return is_whole;
  }

 private:
  // A rank's process; killed, if need be, and reaped with this.
  class Member {
   public:
    Member(std::shared_ptr<Nursery> nursery, const std::map<std::string, std::string>& env)
        : nursery_(std::move(nursery)) {
      base::FdPair pair = base::make_socket_pair(SOCK_SEQPACKET);
      pid_ = nursery_->start(env, pair.write.get());
      channel_ = std::move(pair.read);
    }
    ~Member() {
      if (is_reaped_) {
        return;
      }
      ::kill(pid_, SIGKILL);
      try {
        reap();
      } catch (const IoError&) {
        // The nursery has died, and this one with it.
      }
    }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    int channel() const { return channel_.get(); }
    base::ExitStatus reap() {
      is_reaped_ = true;
      return nursery_->wait(pid_);
    }

   private:
    std::shared_ptr<Nursery> nursery_;
    base::UniqueFd channel_;
    pid_t pid_ = -1;
    bool is_reaped_ = false;
  };

  std::unique_ptr<Member> start_rank(int rank) const {
    return std::make_unique<Member>(
        nursery_, std::map<std::string, std::string>{
                      {"LOCKSTEP_RANK", std::to_string(rank)},
                      {"LOCKSTEP_WORLD_SIZE", std::to_string(world_)},
                      {"LOCKSTEP_STORE", server_->endpoint().text()},
                      {"LOCKSTEP_JOB_ID", job_},
                      {"LOCKSTEP_JOB_SECRET", secret_},
                      {"LOCKSTEP_NODE_ID", fmt::format("{}-n{}", job_, rank * nodes_ / world_)}});
  }

  bool collect(int rank, const RunOptions& options, base::Deadline deadline) {
    Member& member = *members_[static_cast<size_t>(rank)];
    const bool must_die = std::count(options.dies.begin(), options.dies.end(), rank) != 0;
    pollfd entry{member.channel(), POLLIN, 0};
    while (::poll(&entry, 1, deadline.poll_ms()) <= 0) {
      if (deadline.expired()) {
        ADD_FAILURE() << "rank " << rank << " of " << world_ << " hangs: not done after "
                      << options.limit.count() << " s";
        return false;
      }
    }
    const Json reply = receive_json(member.channel()).json;
    if (!reply.is_object()) {
      const base::ExitStatus status = member.reap();
      EXPECT_TRUE(must_die) << "rank " << rank << " of " << world_ << " died: " << status.text();
      return must_die;  // it is started anew
    }
    EXPECT_FALSE(must_die) << "rank " << rank << " was to die and lives";
    bool ok = true;
    for (const auto& failure : reply.at("failures")) {
      ADD_FAILURE() << "rank " << rank << " of " << world_ << ": " << failure.get<std::string>();
      ok = false;
    }
    return ok;
  }

  const int world_;
  const int nodes_;
  const std::shared_ptr<Nursery> nursery_;
  const std::string job_ = base::make_job_id();
  const std::string secret_ = base::make_secret();
  int num_cases_ = 0;
  std::unique_ptr<base::StoreServer> server_;
  std::vector<std::unique_ptr<Member>> members_;  // destroyed before the server
};

std::shared_ptr<Nursery> make_nursery(const std::vector<std::string>& extra_env) {
  std::map<std::string, std::string> env{{"OMP_NUM_THREADS", "1"}};
  for (const auto& entry : extra_env) {
    env[entry.substr(0, entry.find('='))] = entry.substr(entry.find('=') + 1);
  }
  return std::make_shared<Nursery>(env);
}

// By world size and nodes.
std::map<std::pair<int, int>, std::unique_ptr<Fleet>>& kept_fleets() {
  static std::map<std::pair<int, int>, std::unique_ptr<Fleet>> fleets;
  return fleets;
}

}  // namespace

const std::string& case_name() {
  return case_slot();
}

const std::string& rank_argument() {
  return argument_slot();
}

void die_now() {
  ::kill(::getpid(), SIGKILL);
  for (;;) {
    ::pause();
  }
}

void run_ranks_body(int world, RankBody body, const RunOptions& options) {
  if (!options.env.empty()) {
    Fleet(world, options.nodes, make_nursery(options.env)).run(body, options);
    return;
  }
  static std::weak_ptr<Nursery> kept_nursery;  // as long as there is a fleet of it
  auto& fleet = kept_fleets()[{world, options.nodes}];
  if (!fleet) {
    auto nursery = kept_nursery.lock();
    if (!nursery) {
      kept_nursery = nursery = make_nursery({});
    }
    fleet = std::make_unique<Fleet>(world, options.nodes, std::move(nursery));
  }
  if (!fleet->run(body, options)) {
    fleet.reset();
  }
}

int test_main(int argc, char** argv) {
  if (is_nursery()) {
    const auto channel = forked_rank();
    return channel ? rank_main(*channel) : 0;
  }
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  kept_fleets().clear();
  return result;
}

}  // namespace lockstep::testing_support
