// The end of a new user's walk: what `lockstep eval --export` wrote, opened with transformers.
// LOCKSTEP_TEST_PYTHON names an interpreter that has them, if python3 has them not.
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/env.h"
#include "support/job.h"
#include "support/paths.h"
#include "support/service.h"
#include "train/own_data.h"
#include "train/program.h"
#include "train/tiny_bert.h"

namespace lockstep::test {
namespace {

using Json = nlohmann::json;

std::string python() {
  return base::Env().text("LOCKSTEP_TEST_PYTHON").value_or("python3");
}

std::optional<std::string> transformers_refusal() {
  const base::Output output = base::run_process(
      {.argv = {"sh", "-c", "exec \"$0\" -c 'import torch, transformers'", python()}},
      base::Deadline::after(std::chrono::seconds(120)));
  if (output.status.ok()) {
    return std::nullopt;
  }
  return fmt::format(
      "{} has no torch and transformers ({}); set LOCKSTEP_TEST_PYTHON to one that has", python(),
      output.err.empty() ? output.status.text() : lines(output.err).back());
}

class WalkInPython : public testing::Test {
 protected:
  void SetUp() override { LOCKSTEP_NEEDS("python-transformers", transformers_refusal()); }

  Json eval(const std::string& run, const Arguments& more) const {
    return answer_in(folder_.path(), with({"eval", run, "--json"}, more));
  }

  // Compares what lockstep said with what Python makes of the same folder.
  void compare(const Json& said) const {
    const base::Output output = base::run_process(
        {.argv = {python(), "-B", testing_support::in_tree("tests/train/user_walk.py"),
                  folder_.file("said.json", said.dump())},
         .env = {{"HF_HUB_OFFLINE", "1"}}},
        base::Deadline::after(std::chrono::seconds(300)));
    EXPECT_TRUE(output.status.ok()) << output.out << output.err;
  }

  const TempFolder folder_;
};

TEST_F(WalkInPython, AClassifierGivesTheSameLogitsLabelsAndVectors) {
  folder_.file("reviews.jsonl", sorted_reviews(40));
  folder_.file("reviews.toml", review_recipe());
  write_review_bert(folder_.at("bert"));
  answer_in(folder_.path(), {"train", "reviews.toml", "--json"});
  eval("runs/reviews", {"--export", "hub"});
  Json texts = Json::array();
  for (const char* text : {"The film is great!", "THIS BOOKS is... dull, caf\xc3\xa9 [SEP] x", "",
                           "the the the the the the the the the the the the the the the the"}) {
    Json one = {{"text", text}, {"log_probabilities", Json::array()}};
    for (int label = 0; label < 3; ++label) {
      folder_.file("one.jsonl", Json{{"text", text}, {"label", label}}.dump() + "\n");
      const Json judged = eval("runs/reviews", {"--set", "data.held_out=one.jsonl"});
      one["log_probabilities"].push_back(-judged["loss"].get<double>());
      if (judged["accuracy"] == 1) {
        one["label"] = kReviewLabels[label];
      }
    }
    one["embedding"] = eval("runs/reviews", {"--embed", text})["embedding"];
    texts.push_back(one);
  }
  EXPECT_EQ(texts[0]["label"], "good") << "it has learned";
  compare({{"kind", "classifier"}, {"folder", folder_.at("hub")}, {"texts", texts}});
}

TEST_F(WalkInPython, ALanguageModelGivesTheSameLossAndText) {
  folder_.file("rhyme.txt", rhyme());
  folder_.file("rhyme.toml", rhyme_recipe());
  folder_.file("numbers.txt", text_of_numbers());
  write_number_tokenizer(folder_, "words");
  for (const std::string name : {"rhyme", "numbers"}) {
    SCOPED_TRACE(name);
    const bool has_bytes = name == "rhyme";
    Arguments train = {"train", "rhyme.toml", "--json", "--set", "checkpoint.dir=runs/" + name};
    if (!has_bytes) {
      train = with(train, {"--set", "data.text=numbers.txt", "--set", "data.tokenizer=words",
                           "--set", "model.vocab_size=14"});
    }
    answer_in(folder_.path(), train);
    eval("runs/" + name, {"--export", "hub/" + name});
    const std::string text = has_bytes ? "A dog's caf\xc3\xa9 sat on the mat." : "11 1 110 7\n311";
    // One sequence and no token left over: the loss is that of this text.
    std::string held_out = text;
    while (held_out.size() < 64) {
      held_out += has_bytes ? "The cat " : "7 ";
    }
    held_out.resize(has_bytes ? 32 : 64);
    folder_.file("held_out.txt", held_out);
    const Json judged = eval("runs/" + name, {"--set", "data.held_out=held_out.txt"});
    const std::string prompt = has_bytes ? "The cat" : "11 1";
    compare({{"kind", "language"},
             {"folder", folder_.at("hub/" + name)},
             {"text", held_out},
             {"sequence_length", 32},
             {"loss", judged["loss"]},
             {"counted", judged["counted"]},
             {"prompt", prompt},
             {"num_tokens", 16},
             {"generated", eval("runs/" + name, {"--generate", prompt, "--tokens", "16"})["text"]},
             {"end", has_bytes ? Json() : Json(13)}});
  }
}

}  // namespace
}  // namespace lockstep::test
