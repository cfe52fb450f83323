#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <lockstep/base/error.h>
#include <lockstep/ddp/distributed_data_parallel.h>
#include <lockstep/ddp/zero_redundancy_optimizer.h>

#include "support/fleet.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using testing_support::run_ranks;
using torch::optim::OptimizerParamGroup;

constexpr int kSteps = 4;

// Of many sizes and two types; one is not contiguous, one has a single value, one none.
std::vector<torch::Tensor> make_parameters() {
  torch::manual_seed(5);
  std::vector<torch::Tensor> parameters{
      torch::randn({40, 30}),     torch::randn({7}),
      torch::randn({4, 3, 5, 5}), torch::randn({25, 20}, torch::kDouble),
      torch::randn({}),           torch::randn({0, 3}),
      torch::randn({30, 11}),     torch::randn({9, 17}),
  };
  parameters[2] = parameters[2].contiguous(torch::MemoryFormat::ChannelsLast);
  for (auto& parameter : parameters) {
    parameter.set_requires_grad(true);
  }
  return parameters;
}

// The gradients of a step, the same on all ranks; `skipped` gets none.
void set_gradients(const std::vector<torch::Tensor>& parameters, int step, size_t skipped = 1000) {
  torch::manual_seed(static_cast<uint64_t>(step + 900));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const torch::Tensor gradient = torch::randn_like(parameters[i]);
    parameters[i].mutable_grad() = i == skipped ? torch::Tensor() : gradient;
  }
}

void expect_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(a[i].equal(b[i])) << what << ", parameter " << i;
    EXPECT_EQ(a[i].strides(), b[i].strides()) << what << ", parameter " << i;
  }
}

std::string saved(const torch::optim::Optimizer& optimizer) {
  std::ostringstream file;
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  archive.save_to(file);
  return file.str();
}

void load(torch::optim::Optimizer& optimizer, const std::string& bytes) {
  std::istringstream file(bytes);
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  optimizer.load(archive);
}

template <typename Base, typename Options>
void check_same_bits(Group& group, const Options& options, const std::string& what) {
  for (const bool as_views : {false, true}) {
    const auto parameters = make_parameters();
    const auto reference = make_parameters();
    ZeroRedundancyOptimizer<Base> optimizer(parameters, options, group,
                                            {.parameters_as_views = as_views});
    Base plain(reference, options);
    for (int step = 0; step < kSteps; ++step) {
      const size_t skipped = step == 1 ? 3 : 1000;
      set_gradients(parameters, step, skipped);
      set_gradients(reference, step, skipped);
      optimizer.step();
      plain.step();
      expect_equal(parameters, reference, fmt::format("{}, step {}", what, step));
    }
    EXPECT_EQ(optimizer.param_groups()[0].params().size(), parameters.size());
    optimizer.zero_grad();
    for (const auto& parameter : parameters) {
      EXPECT_FALSE(parameter.grad().defined()) << what;
    }
  }
}

TEST(ZeroRedundancyOptimizer, GivesTheBitsOfThePlainOptimizer) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [](Group& group) {
      using namespace torch::optim;
      check_same_bits<SGD>(group, SGDOptions(0.1).momentum(0.9).weight_decay(0.01), "SGD");
      check_same_bits<Adam>(group, AdamOptions(1e-2).amsgrad(true), "Adam");
      check_same_bits<AdamW>(group, AdamWOptions(1e-2), "AdamW");
      check_same_bits<Adagrad>(group, AdagradOptions(0.1), "Adagrad");
      check_same_bits<RMSprop>(group, RMSpropOptions(1e-2).momentum(0.5).centered(true), "RMSprop");
    });
  }
}

TEST(ZeroRedundancyOptimizer, WorksOnEveryBackend) {
  for (const auto& setting : testing_support::kEveryBackend) {
    run_ranks(2,
              [](Group& group) {
                check_same_bits<torch::optim::AdamW>(group, torch::optim::AdamWOptions(1e-2), "");
              },
              {.nodes = setting.nodes, .backend = setting.backend});
  }
}

TEST(ZeroRedundancyOptimizer, EachRankKeepsItsShareOfTheState) {
  for (const int world : {1, 2, 3, 4}) {
    run_ranks(world, [](Group& group) {
      std::vector<torch::Tensor> parameters;
      int64_t bytes_of_model = 0;
      for (int i = 0; i < 24; ++i) {
        parameters.push_back(torch::ones({100 + 7 * i, 10}).set_requires_grad(true));
        bytes_of_model += static_cast<int64_t>(parameters.back().nbytes());
      }
      ZeroRedundancyOptimizer<torch::optim::Adam> optimizer(parameters, torch::optim::AdamOptions(),
                                                            group);
      set_gradients(parameters, 0);
      optimizer.step();
      int64_t bytes_of_state = 0;
      for (const auto& [key, value] : optimizer.state()) {
        const auto& state = static_cast<const torch::optim::AdamParamState&>(*value);
        bytes_of_state += static_cast<int64_t>(state.exp_avg().nbytes());
        bytes_of_state += static_cast<int64_t>(state.exp_avg_sq().nbytes());
      }
      const double share = static_cast<double>(bytes_of_state) / (2.0 * bytes_of_model);
      EXPECT_NEAR(share, 1.0 / group.size(), 0.03);

      ZeroRedundancyOptimizer<torch::optim::Adagrad> adagrad(parameters,
                                                             torch::optim::AdagradOptions(), group);
      EXPECT_LE(adagrad.state().size(), parameters.size() / static_cast<size_t>(group.size()) + 2);
    });
  }
}

TEST(ZeroRedundancyOptimizer, OneHugeParameterIsBroadcastInsteadOfPadded) {
  run_ranks(3, [](Group& group) {
    const auto make = [] {
      torch::manual_seed(2);
      return std::vector<torch::Tensor>{torch::randn({300, 300}).set_requires_grad(true),
                                        torch::randn({9}).set_requires_grad(true)};
    };
    const auto parameters = make();  // fewer than ranks: rank 2 has nothing
    const auto reference = make();
    ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(parameters,
                                                           torch::optim::AdamWOptions(0.1), group);
    torch::optim::AdamW plain(reference, torch::optim::AdamWOptions(0.1));
    for (int step = 0; step < 2; ++step) {
      set_gradients(parameters, step);
      set_gradients(reference, step);
      optimizer.step();
      plain.step();
    }
    expect_equal(parameters, reference, "huge");
  });
}

std::vector<OptimizerParamGroup> two_groups(const std::vector<torch::Tensor>& parameters) {
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>(parameters.begin(), parameters.begin() + 3),
                      std::make_unique<torch::optim::AdamWOptions>(
                          torch::optim::AdamWOptions(0.3).weight_decay(0.5)));
  groups.emplace_back(std::vector<torch::Tensor>(parameters.begin() + 3, parameters.begin() + 6));
  return groups;
}

OptimizerParamGroup third_group(const std::vector<torch::Tensor>& parameters) {
  return {std::vector<torch::Tensor>(parameters.begin() + 6, parameters.end()),
          std::make_unique<torch::optim::AdamWOptions>(0.02)};
}

// Groups with options of their own, one added later, a learning rate schedule and a closure.
TEST(ZeroRedundancyOptimizer, GroupsAndSchedulesWorkAsEver) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      const auto parameters = make_parameters();
      const auto reference = make_parameters();
      const torch::optim::AdamWOptions options(0.1);
      ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(two_groups(parameters), options,
                                                             group);
      torch::optim::AdamW plain(two_groups(reference), options);
      torch::optim::StepLR schedule(optimizer, 1, 0.5);
      torch::optim::StepLR plain_schedule(plain, 1, 0.5);
      for (int step = 0; step < kSteps; ++step) {
        if (step == 2) {
          optimizer.add_param_group(third_group(parameters));
          plain.add_param_group(third_group(reference));
        }
        const torch::Tensor loss = optimizer.step([&] {
          optimizer.zero_grad();
          set_gradients(parameters, step);
          return torch::full({}, step);
        });
        EXPECT_EQ(loss.item<int>(), step);
        set_gradients(reference, step);
        plain.step();
        if (step < 2) {  // libtorch's schedules do not know of groups that come later
          schedule.step();
          plain_schedule.step();
        }
        expect_equal(parameters, reference, fmt::format("step {}", step));
      }
      EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(),
                plain.param_groups()[0].options().get_lr());
    });
  }
}

TEST(ZeroRedundancyOptimizer, AGroupAddedThroughTheBaseClassIsSeenByTheNextStep) {
  run_ranks(2, [](Group& group) {
    const auto parameters = make_parameters();
    const auto reference = make_parameters();
    const torch::optim::AdamWOptions options(0.1);
    ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(two_groups(parameters), options, group);
    torch::optim::AdamW plain(two_groups(reference), options);
    static_cast<torch::optim::Optimizer&>(optimizer).add_param_group(third_group(parameters));
    plain.add_param_group(third_group(reference));
    set_gradients(parameters, 0);
    set_gradients(reference, 0);
    optimizer.step();
    plain.step();
    expect_equal(parameters, reference, "added");
  });
}

// Saves after two steps on one kind of optimizer, goes on with another: the bits are those of a
// plain optimizer that ran through.
template <typename Base, typename Options>
void check_exchange(Group& group, const Options& options, const std::string& what) {
  const auto reference = make_parameters();
  Base plain(reference, options);
  const auto run = [](torch::optim::Optimizer& optimizer, int begin, int end) {
    std::vector<torch::Tensor> parameters;
    for (const auto& param_group : optimizer.param_groups()) {
      parameters.insert(parameters.end(), param_group.params().begin(), param_group.params().end());
    }
    for (int step = begin; step < end; ++step) {
      set_gradients(parameters, step, step == 0 ? 1 : 1000);
      optimizer.step();
    }
  };
  const auto copy_values = [](const std::vector<torch::Tensor>& from) {
    auto to = make_parameters();
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < to.size(); ++i) {
      to[i].copy_(from[i]);
    }
    return to;
  };
  run(plain, 0, 2);
  const std::string plain_file = saved(plain);
  const auto at_two = copy_values(reference);
  run(plain, 2, 4);

  const int to = group.size() - 1;
  std::string sharded_file;
  {
    const auto parameters = make_parameters();
    ZeroRedundancyOptimizer<Base> first(parameters, options, group);
    run(first, 0, 2);
    const size_t num_states = first.state().size();
    first.consolidate(to);
    if (group.rank() == to) {
      sharded_file = saved(first);
    } else {
      EXPECT_THROW(saved(first), UsageError) << what;
    }
    EXPECT_EQ(first.state().size(), num_states) << what;
    run(first, 2, 4);  // saving changed nothing
    expect_equal(parameters, reference, what + ", saved and went on");
    if (group.size() > 1) {
      EXPECT_THROW(saved(first), UsageError) << what << ": the state is of before the step";
    }
  }
  // The file of rank `to` on all ranks.
  torch::Tensor size = torch::full({1}, static_cast<int64_t>(sharded_file.size()), torch::kLong);
  group.broadcast(size, {.root = to});
  sharded_file.resize(static_cast<size_t>(size.item<int64_t>()));
  group.broadcast(torch::from_blob(sharded_file.data(), {static_cast<int64_t>(sharded_file.size())},
                                   torch::kByte),
                  {.root = to});

  {  // sharded -> plain
    const auto parameters = copy_values(at_two);
    Base second(parameters, options);
    load(second, sharded_file);
    run(second, 2, 4);
    expect_equal(parameters, reference, what + ", sharded to plain");
  }
  const Group alone = make_single_group();
  for (const Group& target : {group, alone}) {  // to as many ranks and to one
    for (const std::string& file : {plain_file, sharded_file}) {
      const auto parameters = copy_values(at_two);
      ZeroRedundancyOptimizer<Base> second(parameters, options, target);
      load(second, file);
      run(second, 2, 4);
      expect_equal(parameters, reference, what + ", to sharded");
    }
  }
}

TEST(ZeroRedundancyOptimizer, FilesAreThoseOfThePlainOptimizer) {
  for (const int world : {1, 2, 3}) {
    run_ranks(world, [](Group& group) {
      using namespace torch::optim;
      check_exchange<SGD>(group, SGDOptions(0.1).momentum(0.9), "SGD");
      check_exchange<Adam>(group, AdamOptions(1e-2).amsgrad(true), "Adam");
      check_exchange<AdamW>(group, AdamWOptions(1e-2), "AdamW");
      check_exchange<Adagrad>(group, AdagradOptions(0.1), "Adagrad");
      check_exchange<RMSprop>(group, RMSpropOptions(1e-2).momentum(0.5), "RMSprop");
    });
  }
}

// Four ranks save, three of them (a group of their own) load.
TEST(ZeroRedundancyOptimizer, AnotherNumberOfRanksGoesOn) {
  run_ranks(4, [](Group& group) {
    const auto parameters = make_parameters();
    ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(parameters,
                                                           torch::optim::AdamWOptions(0.1), group);
    for (int step = 0; step < 2; ++step) {
      set_gradients(parameters, step);
      optimizer.step();
    }
    std::string file;
    for (int to = 0; to < group.size(); ++to) {  // so that each has it
      optimizer.consolidate(to);
      if (group.rank() == to) {
        file = saved(optimizer);
      }
    }
    Group fewer = group.split(group.rank() < 3 ? 0 : 1);
    ZeroRedundancyOptimizer<torch::optim::AdamW> next(parameters, torch::optim::AdamWOptions(9.0),
                                                      fewer);
    load(next, file);
    EXPECT_EQ(next.param_groups()[0].options().get_lr(), 0.1);
    const auto reference = make_parameters();
    torch::optim::AdamW plain(reference, torch::optim::AdamWOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      set_gradients(reference, step);
      plain.step();
    }
    for (int step = 2; step < 4; ++step) {
      set_gradients(parameters, step);
      next.step();
    }
    expect_equal(parameters, reference, "three ranks after four");
  });
}

TEST(ZeroRedundancyOptimizer, TrainsUnderDdpWithParametersAsViews) {
  run_ranks(3, [](Group& group) {
    const auto make = [] {
      torch::manual_seed(3);
      return torch::nn::Sequential(torch::nn::Linear(6, 8), torch::nn::Tanh(),
                                   torch::nn::Linear(8, 2));
    };
    auto model = make();
    auto reference = make();
    DistributedDataParallel ddp(model, group);
    DistributedDataParallel reference_ddp(reference, group);
    ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(model->parameters(),
                                                           torch::optim::AdamWOptions(0.05), group,
                                                           {.parameters_as_views = true});
    torch::optim::AdamW plain(reference->parameters(), torch::optim::AdamWOptions(0.05));
    for (int step = 0; step < kSteps; ++step) {
      torch::manual_seed(static_cast<uint64_t>(step * 10 + group.rank()));
      const torch::Tensor x = torch::randn({5, 6});
      optimizer.zero_grad();
      ddp(x).pow(2).mean().backward();
      optimizer.step();
      plain.zero_grad();
      reference_ddp(x).pow(2).mean().backward();
      plain.step();
      expect_equal(model->parameters(), reference->parameters(), fmt::format("step {}", step));
    }
  });
}

template <typename Make>
void expect_refused(const Make& make, const std::string& text) {
  try {
    make();
    ADD_FAILURE() << "accepted; expected: " << text;
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(ZeroRedundancyOptimizer, MisuseIsNamedOnAllRanks) {
  run_ranks(3, [](Group& group) {
    using Zero = ZeroRedundancyOptimizer<torch::optim::SGD>;
    const torch::optim::SGDOptions options(0.1);
    const torch::Tensor a = torch::ones({2, 3}).set_requires_grad(true);
    const torch::Tensor b = torch::ones({group.rank() == 2 ? 4 : 5}).set_requires_grad(true);
    const auto make = [&](const std::vector<torch::Tensor>& parameters) {
      return [&, parameters] { const Zero optimizer(parameters, options, group); };
    };
    expect_refused(make({}), "there is no parameter to optimize");
    expect_refused(make({a, b}),
                   "rank 0 has parameter 1 of group 0: Float [5], rank 2 has parameter 1 of group "
                   "0: Float [4]");
    expect_refused(make(group.rank() == 1 ? std::vector{a, a} : std::vector{a}),
                   "rank 1: parameter 1 of group 0 is parameter 0 of group 0 again");
    expect_refused(make(group.rank() == 0 ? std::vector{a} : std::vector{a, a.clone().detach()}),
                   "rank 0 has nothing more, rank 1 has parameter 1 of group 0: Float [2, 3]");
    expect_refused(make({a * 2}), "is no leaf of the graph");
    expect_refused(make({torch::Tensor()}), "is undefined");
    Zero optimizer({a}, options, group);
    expect_refused([&] { optimizer.add_param_group(OptimizerParamGroup({a})); }, "again");
    EXPECT_EQ(optimizer.param_groups().size(), 1U);
    expect_refused([&] { optimizer.consolidate(3); }, "rank 3, which is not in [0, 3)");
    expect_refused([&] { saved(optimizer); }, "call consolidate(");
    torch::optim::SGD other({a, torch::ones({1}).set_requires_grad(true)}, options);
    expect_refused([&] { load(optimizer, saved(other)); }, "does not fit this optimizer");
    group.barrier();  // and the group still works
  });
}

}  // namespace
}  // namespace lockstep
