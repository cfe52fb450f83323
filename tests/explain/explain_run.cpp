#include "explain/explain_run.h"

#include <chrono>
#include <map>

#include <gtest/gtest.h>

#include "support/paths.h"

namespace lockstep {

const base::Output& explain(const std::vector<std::string>& arguments) {
  static std::map<std::vector<std::string>, base::Output> outputs;
  const auto found = outputs.find(arguments);
  if (found != outputs.end()) {
    return found->second;
  }
  base::ProcessOptions options{.argv = {testing_support::in_build("lockstep"), "explain"},
                               .env = {{"LC_ALL", "C.UTF-8"}}};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  base::Output output = base::run_process(options, base::Deadline::after(std::chrono::seconds(60)));
  return outputs.emplace(arguments, std::move(output)).first->second;
}

nlohmann::json explain_json(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const base::Output& output = explain(arguments);
  EXPECT_TRUE(output.status.ok()) << output.status.text() << "\n" << output.err;
  return nlohmann::json::parse(output.out);
}

}  // namespace lockstep
