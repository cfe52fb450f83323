// Optimizers of one's own and parameter groups in the loop, on real ranks.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/train/trainer.h>

#include "support/fleet.h"
#include "support/temp_folder.h"
#include "train/points.h"
#include "train/small_net.h"
#include "train/train_state.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing_support::rank_argument;
using testing_support::run_ranks;

constexpr const char* kKinds[] = {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "groups"};

// Two groups of libtorch's, of which the second, the biases and norms, is slower.
template <typename Optimizer, typename Options>
OptimizerFactory own(Options options) {
  return [options](torch::nn::Module& module) {
    std::vector<at::Tensor> matrices, vectors;
    for (const at::Tensor& parameter : module.parameters()) {
      (parameter.dim() >= 2 ? matrices : vectors).push_back(parameter);
    }
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(matrices, std::make_unique<Options>(options));
    groups.emplace_back(vectors, std::make_unique<Options>(Options(options).lr(options.lr() / 4)));
    return std::make_unique<Optimizer>(groups, options);
  };
}

TrainerOptions options_of(const std::string& kind) {
  TrainerOptions options{.epochs = 2,
                         .batch_size = 32,
                         .accumulate = 2,
                         .shards = 4,
                         .threads = 1,
                         .seed = 5,
                         .schedule = Schedule::Constant,
                         .warmup_steps = 3,
                         .ema_decay = 0.9,
                         .log_every = 1,
                         .workers = 1};
  using namespace torch::optim;
  if (kind == "SGD") {
    options.make_optimizer = own<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.2));
  } else if (kind == "Adam") {
    options.make_optimizer = own<Adam>(AdamOptions(0.02).amsgrad(true));
  } else if (kind == "AdamW") {
    options.make_optimizer = own<AdamW>(AdamWOptions(0.02));
  } else if (kind == "RMSprop") {
    options.make_optimizer = own<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true));
  } else if (kind == "Adagrad") {
    options.make_optimizer = own<Adagrad>(AdagradOptions(0.1).lr_decay(0.01));
  } else {
    options.groups = {{.name = "norm", .pattern = "^norm", .lr_scale = 0.25, .weight_decay = 0.5},
                      {.name = "frozen", .pattern = "first.bias", .is_frozen = true}};
  }
  return options;
}

TrainResult run_with(const TrainerOptions& options, Group group = make_single_group()) {
  test::NetTask task;
  return Trainer(task, test::points_to_learn(), std::move(group), options).run();
}

std::string end_of(const TrainResult& result) {
  return fmt::format("{:016x} {} {:a}", result.parameter_hashes.front(), result.steps,
                     result.evaluation->loss);
}

// "KIND|STOP|FOLDER|EXPECTED" on the ranks.
std::string part(size_t number) {
  std::string rest = rank_argument();
  for (; number > 0; --number) {
    rest = rest.substr(rest.find('|') + 1);
  }
  return rest.substr(0, rest.find('|'));
}

// A run that ended after each of some steps on two ranks goes on on one or on four.
TEST(TrainerOptimizer, AStopAndAResumeOnOtherRanksChangeNoBit) {
  std::string others;
  for (const char* kind : kKinds) {
    const std::string expected = end_of(run_with(options_of(kind)));
    EXPECT_NE(expected, others) << "each kind goes its own way";
    others = expected;
    for (const int stop : {1, 6}) {
      const test::TempFolder folder;
      const std::string argument = fmt::format("{}|{}|{}|{}", kind, stop, folder.path(), expected);
      run_ranks(2,
                [](Group& group) {
                  TrainerOptions options = options_of(part(0));
                  options.max_steps = std::stol(part(1));
                  options.checkpoint_dir = part(2);
                  EXPECT_TRUE(run_with(options, group).same_bits());
                },
                {.argument = argument});
      if (stop == 6) {
        TrainerOptions options = options_of(kind);
        options.checkpoint_dir = folder.path();
        const TrainResult result = run_with(options);
        EXPECT_EQ(result.resumed_at, stop);
        EXPECT_EQ(end_of(result), expected) << kind << ", ended after step " << stop;
        continue;
      }
      run_ranks(4,
                [](Group& group) {
                  TrainerOptions options = options_of(part(0));
                  options.checkpoint_dir = part(2);
                  const TrainResult result = run_with(options, group);
                  EXPECT_EQ(result.resumed_at, std::stol(part(1)));
                  EXPECT_EQ(end_of(result), part(3)) << part(0);
                },
                {.argument = argument});
    }
  }
}

TEST(TrainerOptimizer, TheScheduleScalesTheRatesOfItsGroups) {
  std::vector<double> first, second;  // of both groups, in each step
  struct Watched : torch::optim::SGD {
    Watched(const std::vector<torch::optim::OptimizerParamGroup>& groups,
            std::vector<double>& first_lrs, std::vector<double>& second_lrs)
        : SGD(groups, torch::optim::SGDOptions(1)), first(first_lrs), second(second_lrs) {}
    at::Tensor step(LossClosure closure) override {
      first.push_back(param_groups_[0].options().get_lr());
      second.push_back(param_groups_[1].options().get_lr());
      return SGD::step(std::move(closure));
    }
    std::vector<double>&first, &second;
  };
  TrainerOptions options = options_of("SGD");
  options.schedule = Schedule::Linear;
  options.warmup_steps = 2;
  options.max_steps = 6;
  options.min_lr_share = 0;
  options.make_optimizer = [&](torch::nn::Module& module) {
    const auto parameters = module.parameters();
    using Options = torch::optim::SGDOptions;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{parameters[0]}, std::make_unique<Options>(0.5));
    groups.emplace_back(std::vector<at::Tensor>{parameters[1]}, std::make_unique<Options>(0.125));
    return std::make_unique<Watched>(groups, first, second);
  };
  std::vector<double> told;
  test::NetTask task;
  Trainer(task, test::points_to_learn(), make_single_group(), options,
          {.on_step = [&](const StepReport& report) { told.push_back(report.lr); }})
      .run();
  const std::vector<double> shares = {0.5, 1, 1, 2 / 3.0, 1 / 3.0, 0};
  ASSERT_EQ(first.size(), shares.size());
  EXPECT_EQ(told, first);
  for (size_t i = 0; i < shares.size(); ++i) {
    EXPECT_NEAR(first[i], 0.5 * shares[i], 1e-12) << "step " << i;
    EXPECT_NEAR(second[i], 0.125 * shares[i], 1e-12) << "step " << i;
  }
}

TEST(TrainerOptimizer, FrozenParametersStayAsTheyAreOnAllRanks) {
  run_ranks(2, [](Group& group) {
    test::NetTask task, untouched;
    TrainerOptions options = options_of("none");
    options.groups = {{.name = "body", .pattern = "^(first|norm)\\.", .is_frozen = true}};
    const TrainResult result = Trainer(task, test::points_to_learn(), group, options).run();
    EXPECT_TRUE(result.same_bits());
    const auto before = untouched.module()->named_parameters();
    for (const auto& item : task.module()->named_parameters()) {
      const bool is_frozen = item.key().starts_with("first") || item.key().starts_with("norm");
      EXPECT_EQ(item.value().equal(before[item.key()]), is_frozen) << item.key();
      EXPECT_EQ(item.value().requires_grad(), !is_frozen) << item.key();
    }
  });
}

// A rule may look at what freezing changes, or count: each parameter is asked about once, and what
// was answered then holds.
TEST(TrainerOptimizer, GroupsAreAskedOnceBeforeAnythingIsFrozen) {
  test::NetTask task;
  std::vector<std::string> asked;
  TrainerOptions options = options_of("none");
  options.max_steps = 2;
  options.groups = {
      {.name = "matrices",
       .takes =
           [&](const std::string& name, const at::Tensor& parameter) {
             asked.push_back(name);
             return parameter.requires_grad() && parameter.dim() == 2;
           },
       .is_frozen = true},
      {.name = "one more",
       .takes = [num = 0](const std::string&, const at::Tensor&) mutable { return ++num == 1; },
       .lr_scale = 0},
      {.name = "rest", .pattern = "."}};
  const auto before = test::NetTask().module()->named_parameters();
  Trainer(task, test::points_to_learn(), make_single_group(), options).run();
  EXPECT_THAT(asked, testing::ElementsAreArray(before.keys()));
  for (const auto& item : task.module()->named_parameters()) {
    const bool is_frozen = item.value().dim() == 2;
    EXPECT_EQ(item.value().requires_grad(), !is_frozen) << item.key();
    const bool stays = is_frozen || item.key() == "first.bias";
    EXPECT_EQ(item.value().equal(before[item.key()]), stays) << item.key();
  }
}

TEST(TrainerOptimizer, AResumeWithAnotherOptimizerOrOtherGroupsIsRefused) {
  const auto refuses = [](TrainerOptions then, TrainerOptions now, const char* had,
                          const char* has) {
    const test::TempFolder folder;
    then.checkpoint_dir = now.checkpoint_dir = folder.path();
    then.max_steps = 1;
    run_with(then);
    EXPECT_THAT([&] { run_with(now); },
                ThrowsMessage<UsageError>(AllOf(
                    HasSubstr("another optimizer or other parameter groups"),
                    HasSubstr(fmt::format("it has `{}", had)),
                    HasSubstr(fmt::format("this run has `{}", has)), HasSubstr("of its own"))));
  };
  refuses(options_of("Adam"), options_of("RMSprop"), "optimizer = torch::optim::Adam`",
          "optimizer = torch::optim::RMSprop`");
  refuses(options_of("none"), options_of("AdamW"), "optimizer = adamw`",
          "optimizer = torch::optim::AdamW`");
  TrainerOptions faster = options_of("Adagrad");
  faster.make_optimizer =
      own<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.2).lr_decay(0.01));
  refuses(options_of("Adagrad"), faster, "group 0 has lr = 0.1,", "group 0 has lr = 0.2,");

  TrainerOptions plain = options_of("none");
  plain.groups.clear();
  TrainerOptions lion = plain;
  lion.optimizer = OptimizerKind::Lion;
  refuses(plain, lion, "optimizer = adamw`", "optimizer = lion`");
  TrainerOptions slower = options_of("none"), fewer = options_of("none");
  slower.groups[0].lr_scale = 0.5;
  refuses(options_of("none"), slower, "group \"norm\" has lr_scale = 0.25",
          "group \"norm\" has lr_scale = 0.5");
  fewer.groups[0].pattern = "^norm.weight";
  refuses(options_of("none"), fewer, "norm.bias is in group \"norm\"`",
          "norm.bias is in no group`");
  refuses(plain, options_of("none"), "`", "group \"norm\"");
}

TEST(TrainerOptimizer, RanksWithOtherOnesAreToldBeforeTheFirstStep) {
  run_ranks(3, [](Group& group) {
    const bool is_odd = group.rank() == 1;
    const auto refuses = [&](const TrainerOptions& options, const char* reason) {
      test::NetTask task;
      EXPECT_THAT([&] { Trainer(task, test::points_to_learn(), group, options); },
                  ThrowsMessage<UsageError>(HasSubstr(reason)));
    };
    const auto base = [](const char* kind) {
      TrainerOptions options = options_of(kind);
      options.batch_size = 12;
      options.shards = 0;
      return options;
    };
    TrainerOptions groups = base("none");
    groups.groups[0].lr_scale = is_odd ? 0.5 : 0.25;
    refuses(groups, "rank 1 has group \"norm\" has lr_scale = 0.5");
    groups.groups.resize(is_odd ? 1 : 2);
    refuses(groups, "rank 1 has 1 parameter groups");
    groups = base("none");
    groups.groups[1].pattern = is_odd ? "nothing" : "first.bias";
    refuses(groups, "(pattern \"nothing\") takes no parameter");
    TrainerOptions own_one = base("SGD");
    own_one.make_optimizer =
        own<torch::optim::SGD>(torch::optim::SGDOptions(is_odd ? 0.5 : 0.25).momentum(0.5));
    refuses(own_one, "the optimizer differs between ranks");
    if (is_odd) {
      own_one.make_optimizer = [](torch::nn::Module&) { return nullptr; };
    }
    refuses(own_one, "returned no optimizer");
    group.barrier();  // and the group still works
  });
}

// One weight under two names, used twice.
struct TiedNetImpl : torch::nn::Module {
  TiedNetImpl() {
    weight = register_parameter("weight", at::arange(36, at::kFloat).sin().reshape({6, 6}));
    register_parameter("again", weight);
    last = register_module("last", torch::nn::Linear(6, 3));
  }
  at::Tensor weight;
  torch::nn::Linear last{nullptr};
};

class TiedTask : public TrainingTask {
 public:
  std::shared_ptr<torch::nn::Module> module() const override { return net; }
  TaskOutput forward(const Batch& batch) override {
    const at::Tensor hidden = batch.input.matmul(net->weight).tanh().matmul(net->weight.t());
    return classify(net->last(hidden), batch.target);
  }
  std::shared_ptr<TiedNetImpl> net = std::make_shared<TiedNetImpl>();
};

// What a run kept the average of is what `lockstep eval` judges, under all names of a weight.
TEST(TrainerOptimizer, TheAverageOfATiedWeightIsWhatIsLoaded) {
  const test::TempFolder folder;
  TrainerOptions options{.max_steps = 5, .batch_size = 16, .lr = 0.05, .ema_decay = 0.8};
  options.checkpoint_dir = folder.path();
  TiedTask task;
  Group group = make_single_group();
  Trainer(task, test::points_to_learn(), group, options).run();
  const auto checkpoint = find_checkpoint(folder.path(), group);
  const at::Tensor average = at::empty({6, 6});
  const std::vector<WeightTarget> targets = {{"average.weight", average}};
  checkpoint->load(targets, group);
  ASSERT_FALSE(average.equal(task.net->weight));
  const TiedTask judged, raw;
  train::load_model(*checkpoint, *judged.net, group, {});
  train::load_model(*checkpoint, *raw.net, group, {.raw = true});
  EXPECT_TRUE(judged.net->weight.equal(average));
  EXPECT_TRUE(raw.net->weight.equal(task.net->weight));
  EXPECT_TRUE(raw.net->last->bias.equal(task.net->last->bias));
  EXPECT_FALSE(judged.net->last->bias.equal(task.net->last->bias));
}

TEST(TrainerOptimizer, OneRankSaysThatParametersAreLeftOut) {
  run_ranks(3, [](Group& group) {
    int num_told = 0;
    log::set_level(log::Level::Info);
    log::set_sink([&](log::Level, std::string_view line) {
      num_told += line.find("1 parameters are in no group of the optimizer") != line.npos ? 1 : 0;
    });
    TrainerOptions options = options_of("none");
    options.groups.clear();
    options.batch_size = 12;
    options.shards = 0;
    options.make_optimizer = [](torch::nn::Module& module) {
      std::vector<at::Tensor> parameters = module.parameters();
      parameters.pop_back();
      return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1));
    };
    test::NetTask task;
    const Trainer trainer(task, test::points_to_learn(), group, options);
    log::set_sink({});
    log::set_level(log::Level::Warn);
    EXPECT_EQ(num_told, group.rank() == 0 ? 1 : 0);
  });
}

}  // namespace
}  // namespace lockstep
