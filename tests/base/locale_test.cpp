// Where the user's program has called setlocale() and numbers have a decimal comma: recipes, JSON
// and states read and write the same as ever.

#include <clocale>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <locale>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/config.h"
#include "base/env.h"
#include "base/parse_real.h"
#include "base/process/process.h"
#include "base/strict_json.h"
#include "support/temp_folder.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

struct DecimalComma : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

// While it lives C and C++ have a decimal comma: a German locale of the system's, or one that is
// compiled for it.
class CommaLocale {
 public:
  CommaLocale() : before_(std::locale()) {
    is_set_ = std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr || set_own();
    std::locale::global(std::locale(std::locale::classic(), new DecimalComma));
    is_set_ = is_set_ && std::strtod("1,5", nullptr) == 1.5;
  }
  ~CommaLocale() {
    std::locale::global(before_);
    std::setlocale(LC_ALL, "C");
    ::unsetenv("LOCPATH");
  }
  bool is_set() const { return is_set_; }

 private:
  bool set_own() {
    try {  // it warns, and ends with 1
      base::run_process(
          {.argv = {"localedef", "-i", "de_DE", "-f", "UTF-8", folder_.at("de_DE.UTF-8")}},
          base::Deadline::after(60s));
    } catch (const Error&) {
      return false;
    }
    ::setenv("LOCPATH", folder_.path().c_str(), 1);
    return std::setlocale(LC_ALL, "de_DE.UTF-8") != nullptr;
  }

  const test::TempFolder folder_;
  const std::locale before_;
  bool is_set_ = false;
};

TEST(DecimalCommas, ChangeNoNumberThatIsReadOrWritten) {
  const CommaLocale locale;
  if (!locale.is_set()) {
    GTEST_SKIP() << "there is no German locale and no localedef to make one";
  }
  for (const double value : {1.5, -0.25, 1234567.875, 1e-30, 0.0, -0.0, 3.0}) {
    const std::string text = fmt::format("{}", value);
    const auto read = base::parse_real(text);
    ASSERT_TRUE(read.has_value()) << text;
    EXPECT_EQ(*read, value) << text;
    EXPECT_EQ(std::signbit(*read), std::signbit(value)) << text;
  }
  EXPECT_EQ(base::parse_integer("1234567", 0, 10'000'000), 1234567);

  const nlohmann::json json = base::parse_strict_json("x", R"({"loss": 0.125, "n": 1234567})");
  EXPECT_EQ(json.at("loss").get<double>(), 0.125);
  EXPECT_EQ(json.dump(), R"({"loss":0.125,"n":1234567})");

  const test::TempFolder folder;
  base::Config config = base::Config::from_file(
      folder.file("recipe.toml", "[train]\nlr = 0.0625\nsteps = 1234567\n"));
  config.set("train.wd=1.5");
  double rate = 0, decay = 0;
  int64_t steps = 0;
  config.read("train.lr", rate, {.min = 0});
  config.read("train.wd", decay, {.min = 0});
  config.read("train.steps", steps);
  EXPECT_EQ(rate, 0.0625);
  EXPECT_EQ(decay, 1.5);
  EXPECT_EQ(steps, 1234567);
  const std::string resolved = config.effective();
  EXPECT_NE(resolved.find("0.0625"), std::string::npos) << resolved;
  EXPECT_NE(resolved.find("1234567"), std::string::npos) << resolved;
}

TEST(ParseReal, TakesANumberAndNothingElse) {
  EXPECT_EQ(base::parse_real("inf"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(base::parse_real("-inf"), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(base::parse_real("nan").value()));
  EXPECT_EQ(base::parse_real("0x1.8p+3"), 12.0);
  EXPECT_EQ(base::parse_real("-0x1p-1074"), -0x1p-1074);
  for (const char* text :
       {"", "-", "--1", "0x", "0x-1", "1,5", "1.5 ", " 1.5", "1.5x", "1e", "1e999"}) {
    EXPECT_EQ(base::parse_real(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lockstep
