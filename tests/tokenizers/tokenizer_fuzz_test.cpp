// Any bytes at all have ids, and ids have texts; from several threads at once.

#include <random>
#include <thread>

#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/text/utf8.h"
#include "support/temp_folder.h"
#include "tokenizers/awkward_text.h"
#include "tokenizers/tokenizer_support.h"

namespace lockstep::test {
namespace {

std::string random_bytes(std::mt19937_64& random, size_t most) {
  std::string bytes(random() % most, '\0');
  const bool is_text = random() % 2 == 0;
  for (char& byte : bytes) {
    byte = static_cast<char>(is_text ? 32 + random() % 96 : random());
  }
  return bytes;
}

TEST(TokenizerFuzz, AnyBytesHaveIdsAndIdsHaveTexts) {
  std::mt19937_64 random(42);
  for (const char* name : {"uncased", "cased", "bpe", "added", "steps", "composed", "roberta"}) {
    const Tokenizer tokenizer = load_described(described_tokenizer(name));
    for (int i = 0; i < 3000; ++i) {
      const std::string text = random_bytes(random, i % 100 == 0 ? 5000 : 80);
      const std::vector<int32_t> ids = tokenizer.encode(text);
      const std::string decoded = tokenizer.decode(ids);
      ASSERT_EQ(base::first_invalid_utf8(decoded), decoded.size()) << name << " " << i;
      tokenizer.encode(decoded);
    }
    for (int i = 0; i < 300; ++i) {
      std::vector<int32_t> ids(random() % 50);
      for (int32_t& id : ids) {
        id = static_cast<int32_t>(random() % static_cast<uint64_t>(tokenizer.vocab_size()));
      }
      tokenizer.encode(tokenizer.decode(ids));
    }
  }
}

TEST(TokenizerFuzz, ByteLevelTextComesBackAsItWas) {
  const Tokenizer bpe = load_tokenizer(tokenizer_golden("bpe"));
  for (uint64_t i = 0; i < 2000; ++i) {
    const std::string text = awkward_text(i);
    ASSERT_EQ(bpe.decode(bpe.encode(text), {.skip_special_tokens = false}),
              base::replace_invalid_utf8(text))
        << i;
  }
}

TEST(TokenizerFuzz, VeryLongWordsTakeNoLongerPerByte) {
  const Tokenizer bpe = load_tokenizer(tokenizer_golden("bpe"));
  const Tokenizer bert = load_tokenizer(tokenizer_golden("uncased"));
  std::string word;
  for (int64_t i = 0; i < 200'000; ++i) {
    word += static_cast<char>('a' + i * i % 26);
  }
  // Quadratic merging would take a minute.
  EXPECT_EQ(bpe.decode(bpe.encode(word)), word);
  EXPECT_EQ(bert.encode(word).size(), 3u);
  const std::string marks = "a" + [] {
    std::string many;
    for (int i = 0; i < 50'000; ++i) {
      many += i % 2 == 0 ? "\u0301" : "\u0323";
    }
    return many;
  }();
  EXPECT_EQ(bert.encode(marks).size(), 3u);
}

TEST(TokenizerFuzz, ThreadsShareATokenizer) {
  const Tokenizer tokenizers[] = {load_tokenizer(tokenizer_golden("bpe")),
                                  load_tokenizer(tokenizer_golden("uncased"))};
  std::vector<std::vector<int32_t>> expected;
  for (uint64_t i = 0; i < 500; ++i) {
    expected.push_back(tokenizers[i % 2].encode(awkward_text(i)));
  }
  std::vector<std::thread> threads;
  std::atomic<int> num_wrong = 0;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < 500; ++i) {
        num_wrong += tokenizers[i % 2].encode(awkward_text(i)) != expected[i] ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(num_wrong, 0);
}

void mutate(std::string& bytes, std::mt19937_64& random) {
  for (uint64_t left = 1 + random() % 3; left > 0; --left) {
    const size_t at = random() % bytes.size();
    switch (random() % 3) {
      case 0:
        bytes[at] = static_cast<char>(random());
        break;
      case 1:
        bytes.erase(at, 1 + random() % 8);
        break;
      default:
        bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 16));
    }
    if (bytes.empty()) {
      bytes = " ";
    }
  }
}

// A tokenizer, or an error of ours: of no file anything else.
void try_to_load(const std::string& path) {
  try {
    load_tokenizer(path).encode("hello \xe4\xb8\xad [MASK] world");
  } catch (const FormatError& /*expected*/) {
  } catch (const IoError& /*expected*/) {
  }
}

TEST(TokenizerFuzz, DamagedFilesEndInATokenizerOrAFormatError) {
  std::mt19937_64 random(7);
  nlohmann::json bpe = described_tokenizer("roberta");
  bpe["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}, {"Ġ", 3}};
  bpe["model"]["merges"] = {"a b"};
  nlohmann::json words = described_tokenizer("added");
  words["model"]["vocab"] = {{"[UNK]", 0}, {"a", 1}, {"##b", 2}, {"hello", 3}};
  const std::vector<std::pair<std::string, std::string>> seeds = {
      {"tokenizer.json", bpe.dump()},
      {"tokenizer.json", words.dump()},
      {"vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\nworld\n##s\n"},
      {"vocab.json", R"({"a":0,"b":1,"ab":2,"c":3,"<|endoftext|>":4})"},
      {"merges.txt", "#version: 0.2\na b\nab c\n"},
      {"tokenizer_config.json", R"({"do_lower_case":false,"added_tokens_decoder":{"9":{"content":)"
                                R"("<x>","normalized":true,"lstrip":true}},"unk_token":"[UNK]"})"}};
  // Each in a folder of its own, with what it needs beside it.
  std::vector<TempFolder> folders(seeds.size());
  for (const TempFolder& folder : folders) {
    folder.file("merges.txt", "a b\n");
    folder.file("vocab.txt", "[UNK]\nhello\n");
    folder.file("vocab.json", R"({"a":0,"b":1,"ab":2})");
  }
  for (size_t i = 0; i < 1200; ++i) {
    const auto& [name, seed] = seeds[i % seeds.size()];
    const TempFolder& folder = folders[i % seeds.size()];
    std::string bytes = seed;
    mutate(bytes, random);
    folder.file(name, bytes);
    const bool is_merges = name == "merges.txt";
    const bool is_config = name == "tokenizer_config.json";
    ASSERT_NO_THROW(try_to_load(folder.at(is_merges   ? "vocab.json"
                                          : is_config ? "vocab.txt"
                                                      : name)))
        << i << ": " << bytes;
  }
}

}  // namespace
}  // namespace lockstep::test
