#include "train_command.h"

#include <cstdio>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <unistd.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/comm/init.h>
#include <lockstep/comm/requests.h>

#include "base/config.h"
#include "base/env.h"
#include "base/process/process.h"
#include "comm/agree.h"
#include "comm/start/launch_env.h"
#include "data/cat_pictures.h"
#include "data/picture_text.h"
#include "leave_gpu_alone.h"
#include "models/parameter_hash.h"
#include "told_once.h"
#include "train/recipes/recipe.h"
#include "train/report.h"

namespace lockstep {
namespace {

constexpr const char* kTrainDescription =
    "Trains the model that RECIPE describes, on one process or on all ranks of `lockstep run`.";

constexpr const char* kTrainExamples =
    "Examples:\n"
    "  lockstep train recipes/cats.toml\n"
    "  lockstep train recipes/cats.toml --show\n"
    "  lockstep train recipes/mytransformer.toml --dry-run\n"
    "  lockstep train recipes/gpt2.toml --set checkpoint.dir=runs/gpt2 --set checkpoint.every=100\n"
    "  lockstep run --nproc-per-node 4 -- lockstep train recipes/cats.toml --set train.epochs=8\n"
    "  lockstep run --local-nodes 2 --nproc-per-node 4 -- lockstep train recipes/cats.toml --json\n"
    "\n"
    "Paths in RECIPE are relative to its folder, those of --set to the working folder.\n"
    "With checkpoint.dir set, the same line goes on where a run ended or was killed.\n"
    "The first SIGINT (Ctrl-C) or SIGTERM saves a checkpoint and ends, the second ends at once.\n"
    "Exit code: 0; 130 or 143 after such a signal; 1 if a rank was lost, a file could not be "
    "read,\n"
    "the end could not be saved or the ranks ended with different models; 2 for a mistake on this\n"
    "line or in the recipe, or if another run writes to checkpoint.dir.\n";

struct TrainRequest {
  std::string recipe_path;
  std::unique_ptr<train::Recipe> recipe;
  bool json = false;
  bool show = false;
  bool dry_run = false;
  std::string probed_dir;  // of a dry run: only whether checkpoints could be written
  std::string help;        // not empty: print this, there is nothing to train
};

struct Flags {
  std::vector<std::string> settings;
  int64_t max_time_s = -1;
  int shards = -1;
  std::string device;
  bool allow_other_bits = false;
  bool allow_other_data = false;
};

void add_flags(CLI::App& app, TrainRequest& request, Flags& flags) {
  app.add_option("RECIPE", request.recipe_path,
                 "A TOML file; recipes/ has those that come with lockstep")
      ->required();
  app.add_option("--set", flags.settings, "Override a setting of the recipe; may be repeated")
      ->type_name("SECTION.KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--device", flags.device,
                 "The same as --set train.device=auto|cpu|cuda: cuda is this rank's GPU, auto is "
                 "it where every rank can have one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--shards", flags.shards,
                 "The same as --set train.shards=S: equal bits on any number of ranks up to S")
      ->type_name("S");
  app.add_flag("--allow-other-bits", flags.allow_other_bits,
               "The same as --set checkpoint.allow_other_bits=true: go on, on another number of "
               "ranks than the run's shards can be dealt to, with a result of other bits");
  app.add_option("--max-time", flags.max_time_s,
                 "The same as --set train.max_time_s=SECONDS: end with a checkpoint after it")
      ->type_name("SECONDS");
  app.add_flag("--allow-other-data", flags.allow_other_data,
               "Go on from a checkpoint of a run on other data (checkpoint.allow_other_data)");
  app.add_flag("--dry-run", request.dry_run,
               "Build everything, make one step, save nothing; finds out whether it could save");
  app.add_flag("--json", request.json, "Print one JSON object at the end and nothing else");
  app.add_flag("--show", request.show, "Print two cats and two not-cats and train nothing");
  app.footer(kTrainExamples);
}

TrainRequest parse_train_request(int argc, char** argv) {
  TrainRequest request;
  Flags flags;
  CLI::App app(kTrainDescription, "lockstep train");
  add_flags(app, request, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    request.help = app.help();
    return request;
  } catch (const CLI::ParseError& error) {
    throw UsageError("{} (see `lockstep train --help`)", error.what());
  }
  base::Config config = base::Config::from_file(request.recipe_path);
  for (const std::string& setting : flags.settings) {
    config.set(setting);
  }
  if (!flags.device.empty()) {
    config.set("train.device=" + flags.device);
  }
  if (app.count("--shards") > 0) {
    config.set(fmt::format("train.shards={}", flags.shards));
  }
  if (app.count("--max-time") > 0) {
    config.set(fmt::format("train.max_time_s={}", flags.max_time_s));
  }
  if (flags.allow_other_bits) {
    config.set("checkpoint.allow_other_bits=true");
  }
  if (flags.allow_other_data) {
    config.set("checkpoint.allow_other_data=true");
  }
  request.recipe = train::read_recipe(config);
  if (request.dry_run) {
    TrainerOptions& options = request.recipe->options();
    request.probed_dir = options.checkpoint_dir;
    options.max_steps = 1;
    options.checkpoint_dir.clear();
    options.checkpoint_every = 0;
  }
  return request;
}

std::string show_text() {
  const TensorDataset pictures = data::draw_cat_pictures({.num_pictures = 4});
  const std::vector<at::Tensor> row = {pictures.input[0], pictures.input[2], pictures.input[1],
                                       pictures.input[3]};
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  return fmt::format("{:<34}{:<34}{:<34}{}\n", "a cat", "a cat", "not a cat", "not a cat") +
         data::picture_text(row, terminal ? data::PictureStyle::Colour : data::PictureStyle::Ascii);
}

// The `lockstep` beside this program, as short as it can be typed from here.
std::string program_path() {
  std::error_code error;
  std::string absolute;
  try {
    absolute = std::filesystem::path(base::own_program()).parent_path() / "lockstep";
  } catch (const IoError&) {
    return "lockstep";
  }
  const std::string relative = std::filesystem::proximate(absolute, error);
  return error || relative.starts_with("..") ? absolute : relative;
}

void print_line(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);  // a pipe would keep it back until the end
}

int64_t node_number() {
  return base::Env().integer("GROUP_RANK", 0, std::numeric_limits<int32_t>::max()).value_or(0);
}

TrainWatcher make_watcher(const TrainRequest& request, const std::string& samples) {
  if (request.json) {
    return {};
  }
  return {
      .on_resume =
          [](int64_t step, const std::string& path) {
            print_line(fmt::format("goes on from step {}: {}", step, path));
          },
      .on_step =
          [samples](const StepReport& report) { print_line(train::step_line(report, samples)); },
      .on_checkpoint =
          [](const SaveResult& save) {
            if (save.committed) {  // else the log has told it
              print_line(train::save_line(save));
            }
          }};
}

void tell_start(const TrainRequest& request, const train::Ingredients& made, const Trainer& trainer,
                Group& group) {
  if (group.rank() == 0) {
    print_line(request.recipe->effective(made));
    if (!made.held_out.empty()) {
      print_line(made.held_out);
    }
  }
  const int64_t num_samples = made.data.train->size();
  print_line(train::start_line({.rank = group.rank(),
                                .num_ranks = group.size(),
                                .node = node_number(),
                                .pid = base::host_pid(),
                                .rank_samples = num_samples / group.size(),
                                .num_samples = num_samples,
                                .samples = made.samples,
                                .threads = trainer.threads(),
                                .device = trainer.device()}));
}

// What the first save of the run would find wrong with the place for checkpoints.
void check_place(const TrainRequest& request, Group& group) {
  if (!request.probed_dir.empty()) {
    const TrainerOptions& options = request.recipe->options();
    CheckpointOptions keep = options.keep;
    keep.allow_existing = options.resume;
    const CheckpointWriter writer(request.probed_dir, group, keep);
  }
}

// For the user at the terminal; a launcher says its own.
const char* stop_notice(const TrainRequest& request, const Group& group) {
  if (group.rank() != 0 || base::Env().has("LOCKSTEP_STORE")) {
    return "";
  }
  return request.recipe->options().checkpoint_dir.empty()
             ? "lockstep train: stopping after this step; nothing is saved, as checkpoint.dir is "
               "not set. Another signal stops it now.\n"
             : "lockstep train: stopping after this step, with a checkpoint. Another signal stops "
               "it now.\n";
}

// The exit code of a run that a signal has ended; the launcher knows its own.
int asked_code(const TrainResult& result, int signal) {
  const bool is_own = result.end == TrainEnd::Asked && !base::Env().has("LOCKSTEP_STORE");
  return is_own && signal != 0 ? 128 + signal : 0;
}

// With what only the files could tell. Collective.
TrainerOptions complete_options(const train::Recipe& recipe, const train::Ingredients& made,
                                Group& group) {
  TrainerOptions options = recipe.options();
  if (!options.checkpoint_dir.empty()) {
    options.files = made.files;
    options.values["config"] = recipe.remembered(made);
    options.data_fingerprint = train::fingerprint_sources(recipe.sources(), group);
  }
  return options;
}

int run_training(const TrainRequest& request, Group& group) {
  const train::Recipe& recipe = *request.recipe;
  train::Ingredients made;
  std::unique_ptr<Trainer> trainer;
  const int code = told_once("train", group, [&] {
    made = recipe.make(group);
    check_place(request, group);
    TrainWatcher watcher = make_watcher(request, made.samples);
    if (group.rank() != 0) {
      watcher.on_resume = {};
    }
    trainer = std::make_unique<Trainer>(*made.task, made.data, group,
                                        complete_options(recipe, made, group), watcher);
  });
  if (code != 0) {
    return code;
  }
  const StopSignals signals(stop_notice(request, group));
  if (!request.json) {
    tell_start(request, made, *trainer, group);
  }
  TrainResult result;
  if (const int failed = told_once("train", group, [&] { result = trainer->run(); })) {
    return failed;
  }
  const train::RunReport report{.recipe = recipe.name(),
                                .recipe_path = request.recipe_path,
                                .program = program_path(),
                                .samples = made.samples,
                                .num_parameters = models::num_parameters(*made.task->module()),
                                .nodes = comm::gather_numbers(group, node_number()),
                                .result = result};
  if (group.rank() == 0) {
    print_line(request.json ? train::result_json(report) : train::result_text(report));
  }
  if (result.last_save && !result.last_save->committed) {
    if (group.rank() == 0) {
      fmt::print(stderr,
                 "lockstep train: the end of this run is not saved: the warning of step {} above "
                 "says why\n",
                 result.last_save->step);
    }
    return 1;
  }
  return result.same_bits() ? asked_code(result, signals.received()) : 1;
}

}  // namespace

int train_command(int argc, char** argv) {
  const base::Env env;
  if (!env.has("LOCKSTEP_LOG_LEVEL")) {
    log::set_level(log::Level::Warn);  // the user reads about the training, not how the ranks met
  }
  TrainRequest request;
  std::optional<UsageError> mistake;
  try {
    request = parse_train_request(argc, argv);
  } catch (const UsageError& error) {
    mistake = error;
  }
  if (!mistake && (request.show || !request.help.empty())) {
    if (comm::read_launch_env(env).rank == 0) {
      fmt::print("{}", request.show ? show_text() : request.help);
    }
    return 0;
  }
  if (mistake || request.recipe->options().device == TrainDevice::Cpu) {
    leave_gpu_alone();
  }
  Group group = init();
  const int code = told_once("train", group, [&] {
    if (mistake) {
      throw *mistake;
    }
  });
  return code != 0 ? code : run_training(request, group);
}

}  // namespace lockstep
