#include "base/strict_json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/quoted.h"

namespace lockstep {
namespace {

std::string refusal_of(const std::string& text) {
  try {
    base::parse_strict_json("x", text);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

TEST(StrictJson, ReadsWhatIsJson) {
  EXPECT_EQ(base::parse_strict_json("x", R"({"a": [1, {"a": 2}]})")["a"][1]["a"], 2);
}

TEST(StrictJson, RefusesTheRestWithFileAndPlace) {
  EXPECT_EQ(refusal_of("{\n\"a\": }"), "x: it is not JSON in UTF-8 at offset 8 (line 2)");
  EXPECT_EQ(refusal_of("{\"\xff\": 1}"), "x: it is not JSON in UTF-8 at offset 3 (line 1)");
  EXPECT_EQ(refusal_of(R"({"a": {"b": 1, "b": 2}})"),
            "x: it names \"b\" twice; which of them is meant?");
  EXPECT_EQ(refusal_of("[1e999]"), "x: it has a number beyond all limits");
  EXPECT_EQ(refusal_of(std::string(32, '[') + std::string(32, ']')), "");
  EXPECT_EQ(refusal_of(std::string(40, '[') + std::string(40, ']')),
            "x: it is nested deeper than 32");
}

TEST(Quoted, ShowsNothingThatATerminalObeys) {
  EXPECT_EQ(base::escaped("a\x1b[2J\xff\xe2\x80\xae가"), "a\\x1b[2J\\xff\\xe2\\x80\\xae가");
  EXPECT_EQ(base::shown("name"), "\"name\"");
  EXPECT_EQ(base::shown(std::string(200, 'n')), "\"" + std::string(120, 'n') + "\"...");
}

}  // namespace
}  // namespace lockstep
