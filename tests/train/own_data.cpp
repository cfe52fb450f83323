#include "train/own_data.h"

#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace lockstep::test {

std::string text_of_numbers() {
  std::string text;
  for (int i = 0; text.size() < 6000; ++i) {
    text += std::to_string(i * 7919 % 1000) + (i % 9 == 0 ? "\n" : " ");
  }
  return text;
}

void write_number_tokenizer(const TempFolder& folder, const std::string& name) {
  std::filesystem::create_directories(folder.at(name));
  nlohmann::json vocabulary;
  for (int i = 0; i < 10; ++i) {
    vocabulary[std::to_string(i)] = i;
  }
  vocabulary["\xc4\xa0"] = 10;  // a blank
  vocabulary["\xc4\x8a"] = 11;  // a new line
  vocabulary["11"] = 12;
  vocabulary["<|endoftext|>"] = 13;
  folder.file(name + "/vocab.json", vocabulary.dump());
  folder.file(name + "/merges.txt", "#version: 0.2\n1 1\n");
}

std::string rhyme() {
  std::string text;
  for (int i = 0; i < 80; ++i) {
    text += "The cat sat on the mat.\nA dog lay by the door.\n";
  }
  return text;
}

std::string rhyme_recipe() {
  return "recipe = \"gpt2\"\n"
         "[model]\nvocab_size = 256\nhidden_size = 32\nnum_layers = 2\nnum_heads = 2\n"
         "ffn_size = 64\nmax_positions = 32\n"
         "[data]\ntext = \"rhyme.txt\"\nsequence_length = 32\n"
         "[train]\nepochs = 1000000\nmax_steps = 120\nbatch_size = 12\nlr = 0.01\nschedule = "
         "\"constant\"\n"
         "threads = 1\neval_every = 1000\n"
         "[checkpoint]\ndir = \"runs/rhyme\"\n";
}

std::string review_vocabulary() {
  return "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\na\nthis\nfilm\nbook\nsong\nis\n!\n.\n##s\n"
         "awful\ndull\nweak\nfair\nusual\nplain\nfine\ngreat\nlovely\n";
}

std::string sorted_reviews(int num_each) {
  constexpr const char* kThings[] = {"film", "book", "song", "films"};
  constexpr const char* kWords[3][3] = {
      {"awful", "dull", "weak"}, {"fair", "usual", "plain"}, {"fine", "great", "lovely"}};
  std::string lines;
  for (int label = 0; label < 3; ++label) {
    for (int i = 0; i < num_each; ++i) {
      lines += fmt::format("{{\"text\": \"{} {} is {}{}\", \"label\": {}}}\n",
                           i % 2 == 0 ? "The" : "this", kThings[i % 4], kWords[label][i % 3],
                           i % 5 == 0 ? "!" : "", label);
    }
  }
  return lines;
}

std::string review_recipe() {
  return "recipe = \"bert-classify\"\n"
         "[model]\npretrained = \"bert\"\nnum_labels = 3\n"
         "[data]\ntrain = \"reviews.jsonl\"\nheld_out_share = 0.34\nmax_length = 16\n"
         "[train]\nepochs = 25\nbatch_size = 12\nlr = 0.01\nwarmup_steps = 5\nthreads = 1\n"
         "[checkpoint]\ndir = \"runs/reviews\"\n";
}

}  // namespace lockstep::test
