#include "weights/name_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

const weights::NameRules kRules{.prefix = "bert.",
                                .renamed_ends = {{"LayerNorm.gamma", "LayerNorm.weight"}},
                                .ignored_ends = {"position_ids"},
                                .ties = {{"decoder.weight", "words.weight"}}};

weights::NameMap map(std::vector<std::string> model, std::vector<std::string> file) {
  return weights::map_names(model, file, kRules);
}

std::vector<std::string> pairs(const weights::NameMap& map) {
  std::vector<std::string> texts;
  for (const weights::NameMap::Pair& pair : map.pairs) {
    texts.push_back(pair.model_name + " <- " + pair.file_name);
  }
  return texts;
}

TEST(NameMap, PrefixMayBeOnEitherSide) {
  EXPECT_THAT(pairs(map({"bert.a", "head"}, {"head", "a"})),
              ElementsAre("bert.a <- a", "head <- head"));
  EXPECT_THAT(pairs(map({"a"}, {"bert.a"})), ElementsAre("a <- bert.a"));
  EXPECT_THAT(pairs(map({"bert.a"}, {"bert.a"})), ElementsAre("bert.a <- bert.a"));
}

TEST(NameMap, KnowsOldNamesAndWhatIsNoWeight) {
  const weights::NameMap names =
      map({"LayerNorm.weight"}, {"bert.LayerNorm.gamma", "bert.embeddings.position_ids"});
  EXPECT_THAT(pairs(names), ElementsAre("LayerNorm.weight <- bert.LayerNorm.gamma"));
  EXPECT_THAT(names.ignored, ElementsAre("bert.embeddings.position_ids"));
  EXPECT_THAT(names.surplus, IsEmpty());
}

TEST(NameMap, TakesEitherNameOfATie) {
  const weights::NameMap both = map({"bert.words.weight"}, {"decoder.weight", "bert.words.weight"});
  EXPECT_THAT(pairs(both), ElementsAre("bert.words.weight <- bert.words.weight"));
  EXPECT_THAT(both.tied, ElementsAre("decoder.weight"));
  EXPECT_THAT(pairs(map({"bert.words.weight"}, {"decoder.weight"})),
              ElementsAre("bert.words.weight <- decoder.weight"));
}

TEST(NameMap, DropsTheWrapperOnlyWhereAllHaveIt) {
  EXPECT_THAT(pairs(map({"a", "b"}, {"module.a", "module.bert.b"})),
              ElementsAre("a <- module.a", "b <- module.bert.b"));
  const weights::NameMap mixed = map({"a"}, {"module.a", "b"});
  EXPECT_THAT(mixed.missing, ElementsAre("a"));
  EXPECT_THAT(mixed.surplus, ElementsAre("b", "module.a"));
}

TEST(NameMap, RefusesTwoForOnePlace) {
  EXPECT_THAT(
      [] {
        map({"a"}, {"a", "bert.a"});
      },
      ThrowsMessage<FormatError>(HasSubstr("\"a\" and \"bert.a\" are both a")));
}

}  // namespace
}  // namespace lockstep
