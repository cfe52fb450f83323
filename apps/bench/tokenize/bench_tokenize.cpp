#include "bench/tokenize/bench_tokenize.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/process/process.h"
#include "bench/figures.h"
#include "bench/flags.h"
#include "command_line.h"
#include "commands.h"
#include "memory_file.h"

namespace lockstep::app {

namespace {

using nlohmann::json;
using Times = std::vector<double>;

constexpr int kMaxRepeats = 1000;
constexpr int64_t kMaxMegabytes = 1024;
constexpr size_t kTextBytes = 4096;  // of one call, about: a document, not a word

const Names kPeers = {"tokenizers", "none"};
const Names kKinds = {"wordpiece", "byte-bpe"};
const Names kScripts = {"english", "chinese", "mixed"};

constexpr const char* kDescription =
    "Measures how fast text becomes ids on one core, beside Hugging Face tokenizers on the same "
    "text, and compares the ids.";

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep bench tokenize --tokenizer byte-bpe --script chinese --json\n"
    "  lockstep bench tokenize --vocab bert-base-uncased --text wiki.txt\n"
    "  lockstep bench tokenize --peer tokenizers --peer-python .venv/bin/python\n"
    "\n"
    "Medians of --repeats rounds. A Python without tokenizers is left out, its figures are null.\n"
    "How it is measured: docs/concepts/tokenizers.md. Exit code: 0; 1 for ids that differ; 2 for\n"
    "a mistake on this line.\n";

struct Request {
  std::string vocabulary, text, kind = "wordpiece", script = "english";
  std::string peer = "tokenizers", python;
  int64_t megabytes = 4;
  int repeats = 5;
  bool json = false;
};

void add_flags(CLI::App& app, Request& request) {
  show_defaults(app);
  app.add_option("--vocab", request.vocabulary,
                 "A folder with tokenizer.json, vocab.txt, or vocab.json and merges.txt; without "
                 "it a vocabulary is generated")
      ->type_name("PATH");
  app.add_option("--tokenizer", request.kind, "The kind of the generated one")
      ->check(CLI::IsMember(kKinds));
  app.add_option("--text", request.text, "A file of text; without it text is generated")
      ->type_name("FILE");
  app.add_option("--script", request.script, "What the generated text is written in")
      ->check(CLI::IsMember(kScripts));
  app.add_option("--megabytes", request.megabytes, "How much text is generated, in 10^6 bytes")
      ->check(CLI::Range(int64_t{1}, kMaxMegabytes));
  app.add_option("--repeats", request.repeats, "How often to measure; the median counts")
      ->check(CLI::Range(1, kMaxRepeats));
  app.add_option("--peer", request.peer, "Whom to measure beside us")->check(CLI::IsMember(kPeers));
  app.add_option("--peer-python", request.python, "A Python that has it, if python3 does not")
      ->type_name("PATH");
  add_json_flag(app, request.json);
  app.footer(kExamples);
}

// Returns nothing if the line was --help, which is then printed.
std::optional<Request> parse_request(const Arguments& arguments) {
  Request request;
  CLI::App app(kDescription, "lockstep bench tokenize");
  add_flags(app, request);
  if (!parse_only_flags(app, arguments)) {
    return std::nullopt;
  }
  return request;
}

// Returns the Python that has the peer; nothing if none is wanted, or there, which is then said.
std::string find_peer(const Request& request) {
  if (request.peer == "none") {
    return "";
  }
  const std::string python = request.python.empty() ? "python3" : request.python;
  std::string why;
  try {
    const base::Output output = base::run_process({.argv = {python, "-c", "import tokenizers"}},
                                                  base::Deadline::after(std::chrono::minutes(1)));
    if (output.status.ok()) {
      return python;
    }
    why = "cannot import tokenizers";
  } catch (const IoError& /*error*/) {
    why = "cannot be started";
  }
  if (!request.python.empty()) {
    throw UsageError("--peer-python {} {}; give a Python that has it, or --peer none", python, why);
  }
  fmt::print(stderr,
             "lockstep bench: python3 {}, its figures are left out; pip install "
             "tokenizers==0.23.3 and --peer-python give it\n",
             why);
  return "";
}

// Cuts the text at the ends of lines, into pieces of about kTextBytes each. It holds no zero byte
// then: that is what ends a text for the peer.
std::vector<std::string_view> texts_of(std::string& all) {
  std::replace(all.begin(), all.end(), '\0', ' ');
  std::vector<std::string_view> texts;
  std::string_view rest = all;
  while (!rest.empty()) {
    const size_t line = rest.find('\n', std::min(kTextBytes, rest.size()) - 1);
    texts.push_back(rest.substr(0, line == std::string_view::npos ? line : line + 1));
    rest.remove_prefix(texts.back().size());
  }
  return texts;
}

std::string to_json(const TokenizeFigures& figures, const Request& request, size_t bytes) {
  const bool has_peer = !figures.peer_cpu_s.empty();
  const auto megabytes_per_s = [&](const Times& times) {
    return static_cast<double>(bytes) / 1e6 / median(times);
  };
  json answer{{"tokenizer", figures.kind},
              {"vocab", request.vocabulary.empty() ? "generated" : request.vocabulary},
              {"text", request.text.empty() ? request.script : request.text},
              {"text_bytes", bytes},
              {"tokens", figures.num_tokens},
              {"repeats", figures.lockstep_cpu_s.size()},
              {"peer", nullptr},
              {"mb_per_s", megabytes_per_s(figures.lockstep_cpu_s)},
              {"peer_mb_per_s", nullptr},
              {"speedup", nullptr},
              {"raw_cpu_s", {{"lockstep", figures.lockstep_cpu_s}, {"peer", figures.peer_cpu_s}}}};
  if (has_peer) {
    answer["peer"] = "tokenizers";
    answer["peer_mb_per_s"] = megabytes_per_s(figures.peer_cpu_s);
    answer["speedup"] = median(figures.peer_cpu_s) / median(figures.lockstep_cpu_s);
  }
  return answer.dump() + "\n";
}

std::string to_table(const TokenizeFigures& figures, size_t bytes) {
  const double megabytes = static_cast<double>(bytes) / 1e6;
  std::string text =
      fmt::format("{}, {:.1f} MB of text, {} tokens, one core, medians of {}\n\n", figures.kind,
                  megabytes, figures.num_tokens, figures.lockstep_cpu_s.size());
  text += fmt::format("  {:<14} {:>8.1f} MB/s\n", "lockstep",
                      megabytes / median(figures.lockstep_cpu_s));
  if (!figures.peer_cpu_s.empty()) {
    text += fmt::format("  {:<14} {:>8.1f} MB/s  the same ids; lockstep is {:.1f} times as fast\n",
                        "tokenizers", megabytes / median(figures.peer_cpu_s),
                        median(figures.peer_cpu_s) / median(figures.lockstep_cpu_s));
  }
  return text;
}

}  // namespace

int bench_tokenize(const Arguments& arguments) {
  const auto request = parse_request(arguments);
  if (!request) {
    return 0;
  }
  TokenizeBench bench{.vocabulary = request->vocabulary, .repeats = request->repeats};
  std::string text =
      request->text.empty()
          ? generated_text(request->script, static_cast<size_t>(request->megabytes) * 1'000'000)
          : base::read_file(request->text, static_cast<size_t>(kMaxMegabytes) * 1'000'000);
  if (text.empty()) {
    throw UsageError("--text {} is empty; there is nothing to measure", request->text);
  }
  bench.texts = texts_of(text);
  std::optional<MemoryFile> generated;
  if (bench.vocabulary.empty()) {
    generated.emplace("tokenizer.json", generated_vocabulary(request->kind));
    bench.vocabulary = generated->path();
  }
  bench.python = find_peer(*request);
  const TokenizeFigures figures = measure_tokenize(bench);
  fmt::print("{}", request->json ? to_json(figures, *request, text.size())
                                 : to_table(figures, text.size()));
  return 0;
}

}  // namespace lockstep::app
