#pragma once

// What a user brings: texts, a tokenizer, labelled texts, and a recipe for each.

#include <string>

#include "support/temp_folder.h"

namespace lockstep::test {

// Numbers that look random.
std::string text_of_numbers();

// GPT-2's files of a tokenizer for them: the alphabet, a word and the end of a text.
void write_number_tokenizer(const TempFolder& folder, const std::string& name);

// A rhyme, over and over: soon known by heart.
std::string rhyme();

// So many lines of JSONL for each of the labels 0, 1 and 2, sorted by label.
std::string sorted_reviews(int num_each);

// All words of the reviews, as vocab.txt of a BERT, and the names of the labels.
inline constexpr int kReviewVocabulary = 24;
std::string review_vocabulary();
inline constexpr const char* kReviewLabels[] = {"poor", "fair", "good"};

// Recipes in a folder with "rhyme.txt", or with "reviews.jsonl" and a BERT in "bert".
std::string rhyme_recipe();
std::string review_recipe();

}  // namespace lockstep::test
