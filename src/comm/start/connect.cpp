#include "comm/start/connect.h"

#include <algorithm>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/env.h"
#include "comm/backends/gloo_backend.h"
#include "comm/backends/hierarchical_backend.h"
#include "comm/backends/shm_backend.h"
#include "comm/backends/staged_backend.h"
#include "comm/start/hosts.h"

namespace lockstep::comm {
namespace {

BackendChoice read_choice(BackendChoice wanted) {
  const std::string text = base::Env().text("LOCKSTEP_BACKEND").value_or("auto");
  if (text != "auto" && text != "gloo" && text != "shm" && text != "hierarchical") {
    throw UsageError("LOCKSTEP_BACKEND={} is not known; it is auto, gloo, shm or hierarchical",
                     text);
  }
  if (wanted != BackendChoice::Auto || text == "auto") {
    return wanted;
  }
  return text == "gloo"  ? BackendChoice::Gloo
         : text == "shm" ? BackendChoice::Shm
                         : BackendChoice::Hierarchical;
}

WireType read_wire(WireType wanted) {
  const std::string text = base::Env().text("LOCKSTEP_WIRE").value_or("full");
  if (text != "full" && text != "bfloat16" && text != "float16") {
    throw UsageError("LOCKSTEP_WIRE={} is not known; it is full, bfloat16 or float16", text);
  }
  if (wanted != WireType::Full || text == "full") {
    return wanted;
  }
  return text == "bfloat16" ? WireType::BFloat16 : WireType::Float16;
}

// Everything that the backends are made of.
struct GroupSetup {
  std::shared_ptr<Membership> membership;
  GroupOptions group;
  std::chrono::milliseconds timeout;
  Call call;  // the making of the group
  std::vector<Host> hosts;
  NodeMap nodes;

  const std::vector<int>& own_node() const {
    const int node = nodes.node_of[static_cast<size_t>(membership->rank())];
    return nodes.ranks[static_cast<size_t>(node)];
  }
};

// Tries to share memory on every node; null, with the reason, if any rank could not: all ranks come
// to the same answer.
std::unique_ptr<LocalTeam> try_team(const GroupSetup& setup, std::string& problem) {
  std::unique_ptr<LocalTeam> team;
  std::string own_problem;
  try {
    team = std::make_unique<LocalTeam>(setup.membership, setup.own_node(), setup.call);
  } catch (const Error& error) {
    own_problem = error.what();
  }
  const auto problems = setup.membership->gather("shm/problems", own_problem, setup.call);
  for (const std::string& text : problems) {
    if (!text.empty()) {
      problem = text;
      return nullptr;
    }
  }
  return team;
}

// A rank that drops its group at once closes its connections. A rank that is still making its own
// would take that for a failure, so no rank has a group before all of them have one.
Connected once_all_are(const GroupSetup& setup, Connected connected) {
  setup.membership->gather("connected", "", setup.call);
  return connected;
}

Connected connect_gloo(const GroupSetup& setup, std::string reason) {
  const int rank = setup.membership->rank();
  GlooOptions options{.membership = setup.membership,
                      .group = setup.group,
                      .place = {.rank = rank, .size = setup.membership->size()},
                      .address = reachable_address(setup.hosts, rank),
                      .timeout = setup.timeout,
                      .connect = setup.call};
  return once_all_are(setup, {make_gloo_backend(std::move(options)), std::move(reason)});
}

std::string describe_nodes(const NodeMap& nodes) {
  std::string text;
  for (const auto& ranks : nodes.ranks) {
    text += fmt::format("{}{}", text.empty() ? "" : " + ", ranks.size());
  }
  return text;
}

Connected connect_shm(const GroupSetup& setup, std::unique_ptr<LocalTeam> team) {
  return {make_shm_backend({.membership = setup.membership,
                            .group = setup.group,
                            .team = std::move(team),
                            .timeout = setup.timeout}),
          fmt::format("all {} ranks share this host's memory", setup.membership->size())};
}

Connected connect_hierarchical(const GroupSetup& setup, std::unique_ptr<LocalTeam> team) {
  HierarchicalOptions options{.team = {.membership = setup.membership,
                                       .group = setup.group,
                                       .team = std::move(team),
                                       .timeout = setup.timeout},
                              .nodes = setup.nodes,
                              .address = reachable_address(setup.hosts, setup.membership->rank()),
                              .connect = setup.call};
  return once_all_are(setup,
                      {make_hierarchical_backend(std::move(options)),
                       fmt::format("{} nodes of {} ranks: shared memory inside, Gloo between",
                                   setup.nodes.num_nodes(), describe_nodes(setup.nodes))});
}

Connected choose(const GroupSetup& setup, BackendChoice choice) {
  const NodeMap& nodes = setup.nodes;
  if (choice == BackendChoice::Gloo) {
    return connect_gloo(setup, "asked for");
  }
  if (choice == BackendChoice::Shm && nodes.num_nodes() > 1) {
    const int stranger = nodes.ranks[1].front();
    throw UsageError(
        "backend shm: ranks 0 and {} do not share a host or node ({} and {}); use auto or "
        "hierarchical",
        stranger, setup.hosts[0].name, setup.hosts[static_cast<size_t>(stranger)].name);
  }
  const bool is_spread = nodes.num_nodes() == setup.membership->size();
  if (choice == BackendChoice::Auto && is_spread) {
    return connect_gloo(setup, "no two ranks share a node, so there is no memory to share");
  }
  std::string problem;
  std::unique_ptr<LocalTeam> team = try_team(setup, problem);
  if (!team && choice == BackendChoice::Auto) {
    return connect_gloo(setup, "ranks of one node cannot share memory: " + problem);
  }
  if (!team) {
    throw UsageError("backend {}: ranks of one node cannot share memory: {}",
                     choice == BackendChoice::Shm ? "shm" : "hierarchical", problem);
  }
  const bool is_flat =
      choice == BackendChoice::Shm || (choice == BackendChoice::Auto && nodes.num_nodes() == 1);
  return is_flat ? connect_shm(setup, std::move(team))
                 : connect_hierarchical(setup, std::move(team));
}

}  // namespace

void check_backend_variables() {
  read_choice(BackendChoice::Auto);
  read_wire(WireType::Full);
}

Connected connect_group(ConnectOptions options) {
  const BackendChoice choice = read_choice(options.group.backend);
  options.group.wire = read_wire(options.group.wire);
  GroupSetup setup;
  setup.group = options.group;
  setup.timeout = options.operation_timeout == kGroupTimeout ? options.group.timeout
                                                             : options.operation_timeout;
  setup.group.timeout = setup.timeout;  // what a split() inherits
  setup.call.operation = Operation::Connect;
  setup.call.timeout = options.group.timeout;
  setup.call.deadline = base::Deadline::after(options.group.timeout);
  setup.membership = std::make_shared<Membership>(
      MembershipOptions{options.store, options.group.name, options.group.rank, options.group.size,
                        options.hosts_store},
      setup.call.deadline);
  const auto texts =
      setup.membership->gather("hosts", describe_host(options.store).to_json(), setup.call);
  std::transform(texts.begin(), texts.end(), std::back_inserter(setup.hosts), Host::from_json);
  setup.nodes = map_nodes(setup.hosts);
  Connected connected = choose(setup, choice);
  connected.backend = make_staged_backend({.carrier = std::move(connected.backend)});
  return connected;
}

}  // namespace lockstep::comm
