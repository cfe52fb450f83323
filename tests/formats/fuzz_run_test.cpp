// Each reader under libFuzzer (fuzz/*.cpp), for seconds; for an hour with LOCKSTEP_LONG_TESTS=1.

#include <atomic>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <optional>
#include <regex>
#include <thread>

#include <gtest/gtest.h>

#include "base/env.h"
#include "base/process/process.h"
#include "formats/readers.h"
#include "formats/support.h"
#include "support/paths.h"
#include "support/service.h"

namespace lockstep::test {
namespace {

constexpr size_t kMaxSeedBytes = 64u << 10;
constexpr std::chrono::milliseconds kMaxSeedTime{20};  // a slow seed would be all that is run
constexpr size_t kNumWorkers = 2;

std::string program_of(const Reader& reader) {
  return testing_support::in_build("fuzz_") + std::string(reader.name);
}

std::optional<std::string> no_fuzzers() {
  if (std::filesystem::exists(program_of(readers().front()))) {
    return std::nullopt;
  }
  return "no fuzz targets were built: clang with libFuzzer was not found (packages clang, "
         "libclang-rt-dev)";
}

// Good and hostile files, those that are quickly read.
void write_corpus(const TempFolder& folder, const Reader& reader) {
  std::vector<std::string> files = seeds(reader);
  for (HostileFile& file : reader.hostile_files()) {
    files.push_back(std::move(file.bytes));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    const auto start = std::chrono::steady_clock::now();
    refusal([&] { reader.read(files[i]); });
    if (files[i].size() <= kMaxSeedBytes &&
        std::chrono::steady_clock::now() - start < kMaxSeedTime) {
      folder.file(std::to_string(i), files[i]);
    }
  }
}

// "12345", from a line that has it.
std::string found(const std::string& text, const char* pattern) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(pattern)) ? match[1].str() : "?";
}

struct Result {
  base::Output output;
  std::string line;
};

Result run(const Reader& reader, std::chrono::seconds duration) {
  const TempFolder corpus;
  const TempFolder artifacts;
  write_corpus(corpus, reader);
  Result result;
  result.output = base::run_process(
      {.argv = {program_of(reader), fmt::format("-max_total_time={}", duration.count()),
                fmt::format("-max_len={}", kMaxSeedBytes), "-timeout=10", "-rss_limit_mb=2048",
                "-print_final_stats=1", "-artifact_prefix=" + artifacts.path() + "/",
                corpus.path()}},
      base::Deadline::after(duration + std::chrono::seconds(60)));
  const std::string& text = result.output.err;
  result.line = fmt::format("{}: {} executions in {} s, {} edges, corpus {}", reader.name,
                            found(text, "stat::number_of_executed_units: *([0-9]+)"),
                            duration.count(), found(text, "DONE +cov: ([0-9]+)"),
                            found(text, "DONE .* corp: ([0-9]+/[0-9A-Za-z]+)"));
  return result;
}

TEST(FuzzRun, NoReaderBreaks) {
  LOCKSTEP_NEEDS("clang", no_fuzzers());
  const bool is_long = base::Env().flag("LOCKSTEP_LONG_TESTS").value_or(false);
  const auto seconds = base::Env().integer("LOCKSTEP_FUZZ_SECONDS", 1, 86'400);
  const std::chrono::seconds duration{seconds.value_or(is_long ? 600 : 10)};
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::vector<std::thread> workers;
  for (size_t i = 0; i < kNumWorkers; ++i) {
    workers.emplace_back([&] {
      for (size_t index = next++; index < readers().size(); index = next++) {
        const Reader& reader = readers()[index];
        const Result result = run(reader, duration);
        const std::lock_guard lock(mutex);
        std::cout << result.line << std::endl;
        EXPECT_TRUE(result.output.status.ok())
            << reader.name << ": " << result.output.status.text() << "\n"
            << result.output.err.substr(result.output.err.size() -
                                        std::min<size_t>(result.output.err.size(), 6000));
      }
    });
  }
  for (std::thread& worker : workers) {
    worker.join();
  }
}

}  // namespace
}  // namespace lockstep::test
