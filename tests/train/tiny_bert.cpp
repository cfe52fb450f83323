#include "train/tiny_bert.h"

#include <fcntl.h>

#include <nlohmann/json.hpp>

#include <lockstep/models/auto_model.h>

#include "base/unique_fd.h"
#include "train/own_data.h"

namespace lockstep::test {

namespace {

void write_text(const std::string& path, const std::string& text) {
  const base::UniqueFd fd = base::open_file(path, O_WRONLY | O_CREAT | O_TRUNC);
  base::write_all(fd.get(), text.data(), text.size());
}

}  // namespace

void write_bert(const std::string& folder, const BertOptions& options,
                const std::string& vocabulary) {
  save_pretrained(*Bert(options), folder);
  write_text(folder + "/vocab.txt", vocabulary);
}

void write_review_bert(const std::string& folder) {
  write_bert(folder,
             {.vocab_size = kReviewVocabulary,
              .hidden_size = 16,
              .num_layers = 1,
              .num_heads = 2,
              .ffn_size = 32,
              .max_positions = 16},
             review_vocabulary());
  auto config = nlohmann::json::parse(base::read_file(folder + "/config.json"));
  for (int i = 0; i < 3; ++i) {
    config["id2label"][std::to_string(i)] = kReviewLabels[i];
    config["label2id"][kReviewLabels[i]] = i;
  }
  write_text(folder + "/config.json", config.dump());
}

}  // namespace lockstep::test
