#pragma once

// A BERT as others publish it, small and new.

#include <string>

#include <lockstep/models/bert.h>

namespace lockstep::test {

// Makes the folder: weights and config.json of BertModel, and vocab.txt.
void write_bert(const std::string& folder, const BertOptions& options,
                const std::string& vocabulary);

// The one of the recipe in train/own_data.h, which names its labels.
void write_review_bert(const std::string& folder);

}  // namespace lockstep::test
