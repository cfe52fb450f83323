#include "train/program.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "support/paths.h"

namespace lockstep::test {

namespace fs = std::filesystem;

base::Output run_in(const std::string& folder, Arguments argv) {
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  argv.insert(argv.begin(), testing_support::in_build("lockstep"));
  base::Output output =
      base::run_process({.argv = argv}, base::Deadline::after(std::chrono::seconds(300)));
  fs::current_path(before);
  return output;
}

nlohmann::json answer_in(const std::string& folder, const Arguments& argv) {
  const base::Output output = run_in(folder, argv);
  EXPECT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  return nlohmann::json::parse(output.out, nullptr, false);
}

Arguments with(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

std::optional<std::string> no_minilm() {
  if (fs::exists(testing_support::in_tree(".deps/minilm-0.1.0/model.safetensors"))) {
    return std::nullopt;
  }
  return "all-MiniLM-L6-v2 is not in .deps; run tools/setup.sh --tests";
}

}  // namespace lockstep::test
