// What load_tokenizer() accepts, and the sentence that each damaged file gets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/temp_folder.h"
#include "tokenizers/tokenizer_support.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Files = std::map<std::string, std::string>;

// What loading a folder of these files says; paths without the folder.
std::string said(const Files& files) {
  const TempFolder folder;
  for (const auto& [name, text] : files) {
    folder.file(name, text);
  }
  std::string message = refused([&] { load_tokenizer(folder.path()); });
  for (size_t at = message.find(folder.path()); at != std::string::npos;
       at = message.find(folder.path())) {
    message.erase(at, folder.path().size() + (message[at + folder.path().size()] == '/' ? 1 : 0));
  }
  return message;
}

const std::string kWords = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n##s\n";

json tiny_bpe() {
  json description = described_tokenizer("bpe");
  description["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}, {"<|endoftext|>", 3}};
  description["model"]["merges"] = {"a b"};
  description["added_tokens"] = json::array();
  return description;
}

std::string said_of(const json& description) {
  return said({{"tokenizer.json", description.dump()}});
}

TEST(TokenizerLoad, FoldersAndFilesOfEveryKindAreRead) {
  const Tokenizer bert = load_tokenizer(tokenizer_golden("uncased"));
  EXPECT_EQ(bert.kind(), "wordpiece");
  EXPECT_EQ(bert.vocab_size(), 30522);
  EXPECT_EQ(bert.encode("Hello, world!"), (std::vector<int32_t>{101, 7592, 1010, 2088, 999, 102}));
  EXPECT_EQ(bert.decode(bert.encode("Hello, world!")), "hello, world!");
  EXPECT_EQ(bert.id_of("[MASK]"), 103);
  EXPECT_EQ(bert.token_of(103), "[MASK]");
  EXPECT_EQ(bert.special_ids().padding, 0);
  EXPECT_EQ(bert.special_ids().unknown, 100);
  EXPECT_EQ(bert.special_ids().classifier, 101);
  EXPECT_EQ(bert.special_ids().separator, 102);
  EXPECT_EQ(bert.special_ids().mask, 103);
  EXPECT_EQ(bert.special_ids().end, std::nullopt);
  EXPECT_EQ(load_tokenizer(tokenizer_golden("uncased/vocab.txt")).vocab_size(), 30522);

  const Tokenizer bpe = load_tokenizer(tokenizer_golden("bpe/vocab.json"));
  EXPECT_EQ(bpe.kind(), "byte-bpe");
  EXPECT_EQ(bpe.special_ids().end, bpe.id_of("<|endoftext|>"));
  EXPECT_EQ(bpe.decode(bpe.encode(" any \xc3\xa9 text")), " any \xc3\xa9 text");
}

TEST(TokenizerLoad, TokenizersFromMemoryAreThoseOfTheFiles) {
  const WordPieceTokenizer words({.vocabulary = {"[UNK]", "a", "##b", "B"}, .lowercase = false});
  EXPECT_EQ(words.encode("ab B c [UNK]"), (std::vector<int32_t>{1, 2, 3, 0, 0}));
  const BytePairTokenizer pairs({.vocabulary = {"a", "b", "ab", "Ġ"}, .merges = {{"a", "b"}}});
  EXPECT_EQ(pairs.encode("abba ab"), (std::vector<int32_t>{2, 1, 0, 3, 2}));
  EXPECT_EQ(pairs.encode("a?b"), (std::vector<int32_t>{0, 1})) << "a byte that is no token";
  EXPECT_THAT(refused([] { WordPieceTokenizer({.vocabulary = {"a"}}); }),
              HasSubstr("the vocabulary lacks \"[UNK]\""));
  EXPECT_THAT(refused([] {
                WordPieceTokenizer({.vocabulary = {"[UNK]", "a", "a"}});
              }),
              HasSubstr("vocabulary: the token \"a\" is there twice, as 1 and as 2"));
  EXPECT_THAT(refused([] {
                BytePairTokenizer({.vocabulary = {"a"}, .merges = {{"a", "b"}}});
              }),
              HasSubstr("merges: merge 0: the merge of \"a\" and \"b\" needs the token \"b\""));
}

TEST(TokenizerLoad, ConfigBesideTheVocabularyIsHonoured) {
  const TempFolder folder;
  folder.file("vocab.txt", "<unk>\n[CLS]\n[SEP]\nH\n##i\nnew\n");
  folder.file("tokenizer_config.json",
              R"({"do_lower_case":false,"unk_token":{"content":"<unk>"},"mask_token":null,
                  "added_tokens_decoder":{"6":{"content":"<extra>","special":true,
                                               "normalized":false}}})");
  const Tokenizer tokenizer = load_tokenizer(folder.path());
  EXPECT_EQ(tokenizer.encode("Hi hi <unk><extra>"), (std::vector<int32_t>{1, 3, 4, 0, 0, 6, 2}));
  EXPECT_EQ(tokenizer.vocab_size(), 7);
  EXPECT_EQ(tokenizer.special_ids().unknown, 0);
  EXPECT_EQ(tokenizer.special_ids().mask, std::nullopt);
}

TEST(TokenizerLoad, DamagedVocabularyIsRefusedWithItsLine) {
  EXPECT_EQ(said({}), ": the folder has no tokenizer.json, vocab.txt or vocab.json");
  EXPECT_EQ(said({{"vocab.txt", "[PAD]\nhello\n"}}),
            "vocab.txt: the vocabulary lacks \"[UNK]\", the token of unknown words");
  EXPECT_EQ(said({{"vocab.txt", kWords + "hello\n"}}),
            "vocab.txt:8: the token \"hello\" is there twice, as 5 and as 7; which of them is "
            "meant?");
  EXPECT_EQ(said({{"vocab.txt", kWords + "a\xff\xfe\n"}}),
            "vocab.txt:8: the token \"a\xef\xbf\xbd\xef\xbf\xbd\" is not UTF-8 from its byte 1 on");
  EXPECT_EQ(said({{"vocab.txt", kWords + "\nx\n"}}),
            "vocab.txt:8: the line is empty, so no token has the id 7; put its token back, or one "
            "that no text holds (\"[unused-7]\"). Without the line every id behind it would be "
            "another");
  EXPECT_EQ(said({{"vocab.txt", kWords + "a\rb\n"}}),
            "vocab.txt:8: a carriage return inside the line; which lines are meant?");
  EXPECT_THAT(said({{"vocab.txt", kWords + std::string(5000, 'x') + "\n"}}),
              AllOf(HasSubstr("vocab.txt:8: the token \"xxxx"),
                    HasSubstr("has 5000 bytes, the limit is 4096")));
  EXPECT_EQ(said({{"vocab.txt", kWords}, {"added_tokens.json", "{}"}}),
            "added_tokens.json: added tokens are read from a tokenizer.json only; transformers' "
            "save_pretrained writes one");
  EXPECT_EQ(said({{"vocab.txt", kWords}, {"tokenizer_config.json", R"({"do_lower_case":"yes"})"}}),
            "tokenizer_config.json: \"do_lower_case\" is \"\"yes\"\", true or false is needed");
  EXPECT_EQ(said({{"vocab.txt", kWords},
                  {"tokenizer_config.json", R"({"added_tokens_decoder":{"-1":{"content":"x"}}})"}}),
            "tokenizer_config.json: added_tokens_decoder: \"-1\" is no id");
  EXPECT_THAT(refused([] { load_tokenizer("/nowhere/at/all.json"); }),
              HasSubstr("/nowhere/at/all.json"));
}

TEST(TokenizerLoad, WindowsLineEndsAreNoPartOfTokens) {
  const TempFolder folder;
  folder.file("vocab.txt", "[UNK]\r\na\r\nb");
  EXPECT_EQ(load_tokenizer(folder.path()).encode("b a c"), (std::vector<int32_t>{2, 1, 0}));
}

TEST(TokenizerLoad, DamagedMergesAreRefusedWithTheirLine) {
  const std::string vocabulary = R"({"a":0,"b":1,"ab":2,"c":3})";
  const auto merges = [&](const std::string& text) {
    return said({{"vocab.json", vocabulary}, {"merges.txt", text}});
  };
  EXPECT_EQ(merges("#version: 0.2\na b\n"), "none");
  EXPECT_EQ(said({{"vocab.json", vocabulary}}),
            "vocab.json: it is neither a tokenizer.json, which has a \"model\", nor is there a "
            "merges.txt beside it");
  EXPECT_EQ(merges("#version: 0.2\na b\na c\n"),
            "merges.txt:3: the merge of \"a\" and \"c\" needs the token \"ac\", which the "
            "vocabulary lacks");
  EXPECT_EQ(merges("a b\na z\n"),
            "merges.txt:2: the merge of \"a\" and \"z\" needs the token \"z\", which the "
            "vocabulary lacks");
  EXPECT_EQ(merges("a b\na b\n"), "merges.txt:2: the merge of \"a\" and \"b\" is there twice");
  for (const char* line : {"a", "a b c", " a", "a ", "a  b"}) {
    EXPECT_EQ(
        merges(std::string("a b\n") + line + "\n"),
        "merges.txt:2: \"" + std::string(line) + "\" is not two tokens with a blank between them");
  }
  EXPECT_EQ(merges("a b\n\n"), "merges.txt:2: the line is empty; delete it");
}

TEST(TokenizerLoad, DamagedJsonIsRefused) {
  const auto vocabulary = [&](const std::string& text) {
    return said({{"vocab.json", text}, {"merges.txt", ""}});
  };
  EXPECT_EQ(vocabulary("{\n\"a\": 0,\n oops}"),
            "vocab.json: it is not JSON in UTF-8 at offset 12 (line 3)");
  EXPECT_THAT(vocabulary("{\"a\xff\": 0}"), HasSubstr("it is not JSON in UTF-8"));
  EXPECT_THAT(vocabulary(R"({"\ud800": 0})"), HasSubstr("it is not JSON in UTF-8"));
  EXPECT_EQ(vocabulary(R"({"a": 0, "a": 1})"),
            "vocab.json: it names \"a\" twice; which of them is meant?");
  EXPECT_EQ(vocabulary(R"({"a": 0, "b": 0})"),
            "vocab.json: the id 0 of the token \"b\" is that of \"a\" already");
  EXPECT_EQ(vocabulary("[]"), "vocab.json: there is no object of tokens and their ids");
  for (const char* id : {"-1", "2097152", "1.5", "null", "1e400", "99999999999999999999"}) {
    EXPECT_THAT(vocabulary(std::string("{\"a\": ") + id + "}"), HasSubstr("vocab.json: ")) << id;
  }
  EXPECT_THAT(vocabulary(std::string(100, '[')), HasSubstr("vocab.json"));
  const std::string deep = std::string(40, '[') + std::string(40, ']');
  EXPECT_EQ(said({{"tokenizer.json", deep}}), "tokenizer.json: it is nested deeper than 32");
}

TEST(TokenizerLoad, UnknownPartsOfATokenizerAreNamed) {
  json description = tiny_bpe();
  ASSERT_EQ(said_of(description), "none");
  description["model"]["type"] = "Unigram";
  EXPECT_EQ(said_of(description),
            "tokenizer.json: the model \"Unigram\" is not known; WordPiece and byte-level BPE are");
  const auto changed = [](const json& patch) {
    json whole = tiny_bpe();
    whole.merge_patch(patch);
    return said_of(whole);
  };
  EXPECT_THAT(changed({{"normalizer", {{"type", "NFKC"}}}}),
              HasSubstr("the normalizer \"NFKC\" is not known; BertNormalizer, Lowercase"));
  EXPECT_THAT(changed({{"pre_tokenizer", {{"type", "Metaspace"}}}}),
              HasSubstr("the pre-tokenizer \"Metaspace\" is not known"));
  EXPECT_THAT(changed({{"pre_tokenizer", nullptr}}), HasSubstr("the pre-tokenizer \"none\""));
  EXPECT_THAT(changed({{"pre_tokenizer", {{"use_regex", false}}}}),
              HasSubstr("without its expression"));
  EXPECT_THAT(changed({{"decoder", {{"type", "CTC"}}}}), HasSubstr("the decoder \"CTC\""));
  EXPECT_THAT(changed({{"post_processor", {{"type", "Strange"}}}}),
              HasSubstr("the post-processor \"Strange\" is not known"));
  EXPECT_THAT(changed({{"model", {{"byte_fallback", true}}}}),
              HasSubstr("a BPE model with byte_fallback is not known"));
  EXPECT_THAT(changed({{"model", {{"end_of_word_suffix", "</w>"}}}}),
              HasSubstr("a BPE model with end_of_word_suffix \"</w>\" is not known"));
  EXPECT_THAT(changed({{"model", {{"dropout", 0.1}}}}), HasSubstr("dropout"));
  EXPECT_THAT(changed({{"model", {{"merges", {{"a", "b", "c"}}}}}}),
              HasSubstr("merge 0 is \"[\"a\",\"b\",\"c\"]\", not two tokens"));
  EXPECT_THAT(changed({{"model", {{"merges", {"a z"}}}}}),
              HasSubstr("tokenizer.json: merge 0: the merge of \"a\" and \"z\" needs"));
  json words = described_tokenizer("cased");
  words["pre_tokenizer"]["type"] = "Whitespace";
  EXPECT_THAT(said_of(words), HasSubstr("with WordPiece only BertPreTokenizer is"));
  words = described_tokenizer("cased");
  words["post_processor"]["single"][0]["SpecialToken"]["type_id"] = -1;
  EXPECT_THAT(said_of(words), HasSubstr("TemplateProcessing: the type_id -1 of \"[CLS]\""));
  words["post_processor"]["single"][0]["SpecialToken"] = {{"id", "[X]"}, {"type_id", 0}};
  EXPECT_THAT(said_of(words), HasSubstr("the special token \"[X]\" needs a list of one id"));
  words["post_processor"]["single"][0] = {{"Sequence", {{"id", "C"}, {"type_id", 0}}}};
  EXPECT_THAT(said_of(words), HasSubstr("the sequence \"C\" is neither A nor B"));
  words["model"]["max_input_chars_per_word"] = -1;
  EXPECT_THAT(said_of(words), HasSubstr("neither A nor B"));
  words["post_processor"] = nullptr;
  EXPECT_THAT(said_of(words), HasSubstr("max_input_chars_per_word -1 is negative"));
}

TEST(TokenizerLoad, AddedTokensMustFitTheVocabulary) {
  const auto with = [](const json& token) {
    json description = tiny_bpe();
    description["added_tokens"] = json::array({token});
    return said_of(description);
  };
  EXPECT_EQ(with({{"id", 4}, {"content", "x"}}), "none");
  EXPECT_EQ(with({{"id", 4}, {"content", "a"}}),
            "tokenizer.json: the added token \"a\" has the id 4 here and 0 in the vocabulary");
  EXPECT_EQ(with({{"id", 1}, {"content", "x"}}),
            "tokenizer.json: the id 1 of the token \"x\" is that of \"b\" already");
  EXPECT_THAT(with({{"id", -4}, {"content", "x"}}), HasSubstr("it needs a text and an id in"));
  EXPECT_THAT(with({{"id", 4}, {"content", ""}}), HasSubstr("it needs a text and an id in"));
  EXPECT_EQ(with({{"id", "4"}, {"content", "x"}}),
            "tokenizer.json: added_tokens: \"id\" is \"\"4\"\", a whole number is needed");
  EXPECT_EQ(with({{"id", 4}}), "tokenizer.json: \"content\" is missing, text is needed");
}

// A mark alone is nothing once accents are stripped; the text is normalized all the same.
TEST(Tokenizer, AnAddedTokenOfWhichNothingIsLeftChangesNothing) {
  json description = described_tokenizer("uncased");
  description["added_tokens"].push_back(
      {{"id", 30522}, {"content", "\u0301"}, {"normalized", true}});
  EXPECT_EQ(load_described(description).encode("H\u00c9LLO e\u0301"),
            load_tokenizer(tokenizer_golden("uncased")).encode("H\u00c9LLO e\u0301"));
}

// What Hugging Face's tokenizers 0.23.3 gave for the same files: it looks among the special tokens
// for the text that is shown, which a normalizer may have changed.
TEST(Tokenizer, DecodingKeepsASpecialTokenThatTheNormalizerChanges) {
  const auto decoded = [](const char* content, bool special, bool normalized) {
    json description = described_tokenizer("uncased");
    description["added_tokens"].push_back(
        {{"id", 30522}, {"content", content}, {"special", special}, {"normalized", normalized}});
    const Tokenizer tokenizer = load_described(description);
    const int32_t ids[] = {7592, 30522, 2088};
    return tokenizer.decode(ids);
  };
  EXPECT_EQ(decoded("<Ctrl>", true, true), "hello <ctrl> world");
  EXPECT_EQ(decoded("<Ctrl>", true, false), "hello world");
  EXPECT_EQ(decoded("<Ctrl>", false, true), "hello <ctrl> world");
  EXPECT_EQ(decoded("<Ctrl>", false, false), "hello <Ctrl> world");
  EXPECT_EQ(decoded("<ctrl>", true, true), "hello world");
  EXPECT_EQ(decoded("[\u00c9]", true, true), "hello [e] world");
}

TEST(Tokenizer, WhatCannotBeDoneIsAUsageError) {
  const Tokenizer bert = load_tokenizer(tokenizer_golden("uncased"));
  const int32_t beyond[] = {7592, 30522};
  EXPECT_EQ(refused([&] { bert.decode(beyond); }),
            "decode: 30522 is no id of this tokenizer, whose vocabulary has 30522");
  EXPECT_THROW(bert.token_of(-1), UsageError);
  EXPECT_EQ(refused([&] { bert.encode("a", {.max_length = 1}); }),
            "encode: max_length 1 leaves no room: there are 2 special tokens; give more, 0 for no "
            "limit, or add_special_tokens = false");
  EXPECT_THROW(bert.encode("a", {.max_length = -1}), UsageError);
  EXPECT_EQ(bert.encode("a", {.max_length = 2}), (std::vector<int32_t>{101, 102}));
}

}  // namespace
}  // namespace lockstep::test
