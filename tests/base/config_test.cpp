#include "base/config.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const char* const kRecipe = R"(
recipe = "cats"
[train]
lr = 0.05
epochs = 12
shuffle = true
)";

struct Settings {
  std::string recipe = "none";
  double lr = 1.0;
  int64_t epochs = 1;
  int64_t batch_size = 32;
  bool shuffle = false;
};

void read(base::Config& config, Settings& settings) {
  config.read("recipe", settings.recipe, {"cats", "none"});
  config.read("train.lr", settings.lr, {.min = 0});
  config.read("train.epochs", settings.epochs, {.min = 1, .max = 100});
  config.read("train.batch_size", settings.batch_size);
  config.read("train.shuffle", settings.shuffle);
  config.finish();
}

void expect_usage_error(const std::function<void()>& body, const std::string& part) {
  try {
    body();
    FAIL() << "nothing was thrown, expected: " << part;
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(Config, FileOverridesDefaultsAndSetOverridesTheFile) {
  base::Config config = base::Config::from_text(kRecipe);
  config.set("train.lr=0.5");
  Settings settings;
  read(config, settings);
  EXPECT_EQ(settings.recipe, "cats");
  EXPECT_EQ(settings.lr, 0.5);
  EXPECT_EQ(settings.epochs, 12);
  EXPECT_EQ(settings.batch_size, 32) << "the default stays";
  EXPECT_TRUE(settings.shuffle);
}

TEST(Config, WhatWasUsedReadsBackToTheSame) {
  base::Config config = base::Config::from_text(kRecipe);
  config.set("train.lr=2");  // a whole number for a real
  Settings settings;
  read(config, settings);
  const std::string text = config.effective();
  base::Config again = base::Config::from_text(text);
  Settings same;
  read(again, same);
  EXPECT_EQ(again.effective(), text);
  EXPECT_EQ(same.lr, 2.0);
  EXPECT_THAT(text,
              AllOf(HasSubstr("[train]"), HasSubstr("batch_size = 32"), HasSubstr("lr = 2.0")));
}

// Their order counts, and there may be more than ten.
TEST(Config, AListOfTablesIsSectionsWithNumbers) {
  std::string toml = "[train]\nlr = 1.0\nzeta = 3\n";
  for (int i = 0; i < 12; ++i) {
    toml += "[[train.parts]]\nname = \"part " + std::to_string(i) + "\"\n" +
            (i == 7 ? "share = 0.5\n" : "");
  }
  const auto parts_of = [](base::Config config) {
    std::vector<std::string> names;
    double lr = 0;
    int64_t zeta = 0;
    config.read("train.lr", lr);
    config.read("train.zeta", zeta);
    EXPECT_EQ(lr + static_cast<double>(zeta), 4);
    for (int i = 0; config.has_section("train.parts." + std::to_string(i)); ++i) {
      const std::string place = "train.parts." + std::to_string(i);
      std::optional<double> share;
      config.read(place + ".name", names.emplace_back());
      config.read(place + ".share", share, {.max = 1});
      names.back() += share ? " with " + std::to_string(*share) : "";
    }
    config.finish();
    return std::pair(names, config.effective());
  };
  const auto [names, text] = parts_of(base::Config::from_text(toml));
  ASSERT_EQ(names.size(), 12u);
  EXPECT_EQ(names[2], "part 2");
  EXPECT_EQ(names[7], "part 7 with 0.500000");
  EXPECT_EQ(names[11], "part 11");
  EXPECT_EQ(parts_of(base::Config::from_text(text)).first, names) << "read back";
  EXPECT_EQ(parts_of(base::Config::from_text(text)).second, text);

  base::Config changed = base::Config::from_text(toml);
  changed.set("train.parts.2.share=0.25");
  EXPECT_EQ(parts_of(changed).first[2], "part 2 with 0.250000");
  changed.set("train.parts.2.share=2");
  expect_usage_error([&] { parts_of(changed); }, "train.parts.2.share = 2 is not in [-inf, 1]");
  base::Config misspelt = base::Config::from_text(toml);
  misspelt.set("train.parts.3.shair=1");
  expect_usage_error([&] { parts_of(misspelt); }, "did you mean train.parts.3.share?");
  expect_usage_error([] { base::Config::from_text("[a]\nb = 1\n[[a.c]]\n"); },
                     "<text>:3: this [[a.c]] is empty");
  expect_usage_error([] { base::Config::from_text("[a]\nb = [1, 2]\n"); }, "a.b is a list");
}

TEST(Config, AnUnknownKeyNamesItsLineAndTheNearest) {
  Settings settings;
  base::Config config = base::Config::from_text("[train]\nepoch = 3\n", "r.toml");
  expect_usage_error([&] { read(config, settings); },
                     "r.toml:2: there is no setting train.epoch; did you mean");
  base::Config far = base::Config::from_text("zzzzzzzz = 3\n");
  expect_usage_error([&] { read(far, settings); }, "known: ");
}

TEST(Config, AWrongTypeRangeOrChoiceIsNamed) {
  for (const auto& [text, part] : std::map<std::string, std::string>{
           {"[train]\nepochs = \"x\"", "train.epochs must be a whole number"},
           {"[train]\nepochs = 1.5", "train.epochs must be a whole number"},
           {"[train]\nepochs = 101", "101 is not in [1, 100]"},
           {"[train]\nlr = -1", "-1 is not in [0, inf]"},
           {"[train]\nlr = nan", "is not in"},
           {"[train]\nshuffle = 1", "train.shuffle must be true or false"},
           {"recipe = 3", "recipe must be a text"},
           {"recipe = \"dogs\"", "\"dogs\" is not one of: cats, none"}}) {
    base::Config config = base::Config::from_text(text);
    Settings settings;
    expect_usage_error([&] { read(config, settings); }, part);
  }
}

TEST(Config, BadTomlAndMissingFilesAreNamed) {
  expect_usage_error([] { base::Config::from_text("a = = 3", "r.toml"); }, "r.toml:1");
  expect_usage_error([] { base::Config::from_text("a = [1, 2]", "r.toml"); }, "a is a list");
  expect_usage_error([] { base::Config::from_file("/no/such.toml"); }, "/no/such.toml");
}

TEST(Config, SetTakesTomlOrABareWord) {
  base::Config config;
  config.set("recipe=cats");
  config.set("train.shuffle=true");
  Settings settings;
  read(config, settings);
  EXPECT_EQ(settings.recipe, "cats");
  EXPECT_TRUE(settings.shuffle);
  expect_usage_error([&] { config.set("nothing"); }, "section.key=value");
  expect_usage_error([&] { config.set("=3"); }, "section.key=value");
}

}  // namespace
}  // namespace lockstep
