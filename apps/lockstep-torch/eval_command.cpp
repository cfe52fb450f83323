// Shapes: B batch, T time, E width of a model.
#include "eval_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/empty.h>
#include <CLI/CLI.hpp>
#include <c10/core/DeviceGuard.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/comm/init.h>
#include <lockstep/models/auto_model.h>

#include "base/config.h"
#include "base/env.h"
#include "comm/start/launch_env.h"
#include "leave_gpu_alone.h"
#include "told_once.h"
#include "train/device_settings.h"
#include "train/evaluate.h"
#include "train/generate.h"
#include "train/model_files.h"
#include "train/recipes/recipe.h"
#include "train/run_device.h"
#include "train/train_state.h"

namespace lockstep {
namespace {

constexpr const char* kEvalDescription =
    "Judges the model of a checkpoint by its recipe's held-out data, lets it write, or exports it.";

constexpr const char* kEvalExamples =
    "Examples:\n"
    "  lockstep eval runs/cats\n"
    "  lockstep eval runs/gpt2/step-00000400 --generate 'Every rank' --temperature 0.8 --top-k 40\n"
    "  lockstep eval runs/bert --embed 'a fine film' --json\n"
    "  lockstep eval runs/gpt2 --export my-gpt2            # a folder that transformers loads\n"
    "  lockstep eval runs/cats --export cats.pth           # torch.load(..., weights_only=True)\n"
    "\n"
    "CHECKPOINT is one checkpoint or a folder of them: the newest that verifies. It holds all "
    "that\n"
    "the model needs, tokenizer and configuration too; only judging needs the data. Paths in "
    "--set\n"
    "are relative to the working folder.\n"
    "Exit code: 0; 1 for a checkpoint or data that cannot be read; 2 for a mistake on this line.\n";

struct EvalRequest {
  std::string location;
  std::vector<std::string> settings;
  std::optional<std::string> prompt;
  std::optional<std::string> text;  // to embed
  std::optional<std::string> export_to;
  train::GenerateOptions generate;
  int64_t batch_size = 16;
  std::string device = "auto";
  bool raw = false;
  bool json = false;
  std::string help;

  // An export moves bytes and computes nothing.
  bool computes() const { return prompt || text || judges(); }
  bool judges() const { return !prompt && !text && !export_to; }
};

bool is_weights_name(const std::string& end) {
  return end == ".pth" || end == ".pt" || end == ".bin" || end == ".safetensors";
}

// A dot in the name of a folder looks like a file of a form that is not known.
void check_export_path(const std::string& path) {
  const std::string end = std::filesystem::path(path).extension();
  if (!end.empty() && !is_weights_name(end)) {
    throw UsageError(
        "--export {}: \"{}\" is not the end of a file that can be written, which is .safetensors, "
        ".pth, .pt or .bin; if it is to be a folder for transformers, write it with a slash: "
        "--export {}/",
        path, end, path);
  }
}

EvalRequest parse_eval_request(int argc, char** argv) {
  EvalRequest request;
  CLI::App app(kEvalDescription, "lockstep eval");
  app.add_option("CHECKPOINT", request.location, "A checkpoint, or the folder of a run's")
      ->required();
  app.add_option("--generate", request.prompt, "Go on from this text (GPT-2, MyTransformer)")
      ->type_name("TEXT");
  app.add_option("--tokens", request.generate.num_tokens, "So many tokens (100)")->type_name("N");
  app.add_option("--temperature", request.generate.temperature,
                 "0: the likeliest token each time; 1: as the model says (0)");
  app.add_option("--top-k", request.generate.top_k, "Only of the K likeliest (0: all)");
  app.add_option("--top-p", request.generate.top_p, "Only of those that make up P (1)");
  app.add_option("--seed", request.generate.seed, "Of the dice (1)");
  app.add_option("--embed", request.text, "The vector of this text (BERT)")->type_name("TEXT");
  app.add_option("--export", request.export_to,
                 "Write the model: a folder for transformers, or FILE.pth, FILE.safetensors")
      ->type_name("PATH");
  app.add_option("--set", request.settings, "Override a setting of the run's recipe: other data")
      ->type_name("SECTION.KEY=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--batch-size", request.batch_size, "Samples at a time (16)")
      ->check(CLI::PositiveNumber);
  app.add_option("--device", request.device,
                 "auto (a GPU if every rank can have one), cpu or cuda (auto)")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_flag("--raw", request.raw,
               "The parameters of the last step, not their average (train.ema_decay)");
  app.add_flag("--json", request.json, "Print one JSON object and nothing else");
  app.footer(kEvalExamples);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    request.help = app.help();
  } catch (const CLI::ParseError& error) {
    throw UsageError("{} (see `lockstep eval --help`)", error.what());
  }
  if (request.export_to) {
    check_export_path(*request.export_to);
  }
  return request;
}

std::unique_ptr<train::Recipe> recipe_of(const Checkpoint& checkpoint, const EvalRequest& request) {
  const auto& values = checkpoint.info().values;
  const auto text = values.find("config");
  if (text == values.end()) {
    throw UsageError(
        "{} holds no recipe: it was not made by `lockstep train`; load it with the program that "
        "made it",
        checkpoint.path());
  }
  base::Config config = base::Config::from_text(text->second, checkpoint.path());
  for (const std::string& setting : request.settings) {
    config.set(setting);
  }
  return train::read_recipe(config);
}

// What the checkpoint keeps beside its tensors; nothing in one of format version 1.
train::ModelFiles kept_files(const Checkpoint& checkpoint, const EvalRequest& request,
                             Group& group) {
  const bool has_tokenizer =
      std::any_of(request.settings.begin(), request.settings.end(),
                  [](const std::string& one) { return one.starts_with("data.tokenizer="); });
  train::ModelFiles files;
  for (const std::string& name : checkpoint.attachments()) {
    if (!has_tokenizer || !train::is_tokenizer_file(name)) {
      files[name] = checkpoint.read_attachment(name, group);
    }
  }
  for (const std::string& setting : request.settings) {
    if (files.contains(train::kModelConfigFile) && setting.starts_with("model.")) {
      throw UsageError(
          "--set {}: the model is the checkpoint's own and cannot be another; --set is for what it "
          "is judged by, such as data.held_out_share",
          setting);
    }
  }
  return files;
}

void export_model(const train::Ingredients& made, const std::string& path) {
  const std::string end = std::filesystem::path(path).extension();
  if (!end.empty()) {
    save_state(*made.task->module(), path);
    return;
  }
  if (!made.exports) {
    throw UsageError(
        "transformers does not know this recipe's model; export it to FILE.pth or "
        "FILE.safetensors instead of {}",
        path);
  }
  train::export_pretrained(*made.exports, made.files, path);
}

std::string generated(const train::Ingredients& made, const EvalRequest& request,
                      at::Device device) {
  if (!made.next_token_logits || !made.encode) {
    throw UsageError(
        "this recipe's model writes no text: --generate is for mytransformer and gpt2, "
        "with data.tokenizer set");
  }
  train::GenerateOptions options = request.generate;
  options.max_positions = made.max_positions;
  const auto logits = [&](const at::Tensor& ids_BT) {
    return made.next_token_logits(ids_BT.to(device));
  };
  return made.decode(generate(made.encode(*request.prompt), logits, options));
}

std::vector<float> embedding(const train::Ingredients& made, const std::string& text,
                             at::Device device) {
  if (!made.embed) {
    throw UsageError(
        "this recipe's model has no embeddings of texts: --embed is for bert-classify");
  }
  const std::vector<int64_t> ids = made.encode(text);
  const at::Tensor ids_BT = at::empty({1, static_cast<int64_t>(ids.size())}, at::kLong);
  std::copy(ids.begin(), ids.end(), ids_BT.mutable_data_ptr<int64_t>());
  const at::Tensor vector_BE = made.embed(ids_BT.to(device)).cpu().contiguous();
  const auto* data = vector_BE.const_data_ptr<float>();
  return {data, data + vector_BE.numel()};
}

struct Place {
  Group& group;
  at::Device device;
};

void judge(const EvalRequest& request, train::Ingredients& made, Place place,
           nlohmann::ordered_json& json) {
  if (!made.data.held_out) {
    throw UsageError(
        "there is nothing to judge by: the recipe holds no data out; set data.held_out_share or "
        "held-out data of its own with --set");
  }
  const Evaluation evaluation =
      train::evaluate(*made.task, made.data.held_out, place.group,
                      {.batch_size = request.batch_size, .device = place.device});
  json["loss"] = evaluation.loss;
  json["counted"] = evaluation.num_counted;
  if (evaluation.num_correct >= 0) {
    json["accuracy"] = evaluation.accuracy();
  } else {
    json["perplexity"] = std::exp(evaluation.loss);
  }
}

at::Device device_of(const EvalRequest& request, Group& group) {
  if (!request.computes()) {
    return at::kCPU;
  }
  return train::choose_device(
      group, {.wanted = train::parse_train_device(request.device), .setting = "--device"});
}

nlohmann::ordered_json answer(const EvalRequest& request, Group& group) {
  const auto checkpoint = find_checkpoint(request.location, group);
  if (!checkpoint) {
    throw UsageError("there is no checkpoint in {}", request.location);
  }
  const auto recipe = recipe_of(*checkpoint, request);
  const train::ModelFiles kept = kept_files(*checkpoint, request, group);
  train::Ingredients made =
      recipe->make(group, {.kept = &kept, .with_data = request.judges(), .judges_only = true});
  const at::Device device = device_of(request, group);
  const c10::OptionalDeviceGuard current(train::gpu_of(device));
  const train::DeviceSettings settings(device, {});
  train::load_model(*checkpoint, *made.task->module(), group, {.raw = request.raw});
  made.task->module()->eval();
  made.task->move_to(device);
  nlohmann::ordered_json json;
  json["checkpoint"] = checkpoint->path();
  json["recipe"] = recipe->name();
  json["step"] = checkpoint->info().step;
  if (request.judges()) {
    judge(request, made, {group, device}, json);
  }
  if (request.prompt) {
    json["text"] = generated(made, request, device);
  }
  if (request.text) {
    json["embedding"] = embedding(made, *request.text, device);
  }
  if (request.export_to) {
    if (group.rank() == 0) {
      export_model(made, *request.export_to);
    }
    json["exported"] = *request.export_to;
  }
  return json;
}

std::string answer_text(const nlohmann::ordered_json& json) {
  if (json.contains("text")) {
    return json["text"].get<std::string>();
  }
  if (json.contains("embedding")) {
    return json["embedding"].dump();
  }
  const std::string where =
      fmt::format("{} ({}, step {})", json["checkpoint"].get<std::string>(),
                  json["recipe"].get<std::string>(), json["step"].get<int64_t>());
  if (json.contains("exported")) {
    return fmt::format("{} -> {}", where, json["exported"].get<std::string>());
  }
  const double loss = json["loss"];
  return json.contains("accuracy")
             ? fmt::format("{}: {:.1f} % of {} right, loss {:.4f}", where,
                           100 * json["accuracy"].get<double>(), json["counted"].get<int64_t>(),
                           loss)
             : fmt::format("{}: perplexity {:.2f}, loss {:.4f} over {} tokens", where,
                           json["perplexity"].get<double>(), loss, json["counted"].get<int64_t>());
}

}  // namespace

int eval_command(int argc, char** argv) {
  const base::Env env;
  if (!env.has("LOCKSTEP_LOG_LEVEL")) {
    log::set_level(log::Level::Warn);
  }
  EvalRequest request;
  std::optional<UsageError> mistake;
  try {
    request = parse_eval_request(argc, argv);
  } catch (const UsageError& error) {
    mistake = error;
  }
  if (!mistake && !request.help.empty()) {
    if (comm::read_launch_env(env).rank == 0) {
      fmt::print("{}", request.help);
    }
    return 0;
  }
  if (mistake || request.device == "cpu" || !request.computes()) {
    leave_gpu_alone();
  }
  Group group = init();
  nlohmann::ordered_json json;
  const int code = told_once("eval", group, [&] {
    if (mistake) {
      throw *mistake;
    }
    json = answer(request, group);
  });
  if (code == 0 && group.rank() == 0) {
    // A model of bytes may end in the middle of a character.
    const auto replace = nlohmann::ordered_json::error_handler_t::replace;
    fmt::print("{}\n", request.json ? json.dump(-1, ' ', false, replace) : answer_text(json));
  }
  return code;
}

}  // namespace lockstep
