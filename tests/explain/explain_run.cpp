#include "explain/explain_run.h"

#include <chrono>
#include <map>

#include <gtest/gtest.h>

namespace lockstep {

const Output& explain(const std::vector<std::string>& arguments) {
  static std::map<std::vector<std::string>, Output> outputs;
  const auto found = outputs.find(arguments);
  if (found != outputs.end()) {
    return found->second;
  }
  ProcessOptions options{.argv = {LOCKSTEP_BIN_DIR "/lockstep", "explain"},
                         .env = {{"LC_ALL", "C.UTF-8"}}};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  Output output = run_process(options, Deadline::after(std::chrono::seconds(60)));
  return outputs.emplace(arguments, std::move(output)).first->second;
}

nlohmann::json explain_json(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const Output& output = explain(arguments);
  EXPECT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  return nlohmann::json::parse(output.out);
}

}  // namespace lockstep
