#pragma once

// Text for language models: made into a file of token ids once, then read by sequence.
//
//   TokenizeOptions text{.inputs = {"wiki.jsonl"}, .tokenizer = "gpt2", .output = "wiki.bin",
//                        .rank = group.rank(), .num_ranks = group.size()};
//   tokenize_share(text);          // every rank its share of the bytes
//   group.barrier();
//   if (group.rank() == 0) { join_token_shares(text); }
//   group.barrier();
//   auto data = open_tokens({"wiki.bin"}, {.sequence_length = 1024});

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>

namespace lockstep {

struct TokenDataOptions {
  int64_t sequence_length = 1024;  // T, >= 1: tokens of a sample
  int64_t vocab_size = 0;          // > 0: an id that is not below it is a FormatError
};

// Files as nanoGPT and llm.c write them, here or on s3://. Sample i of a file is its tokens
// [i*T, (i+1)*T); the samples of the files follow one another, and what is left at a file's end is
// dropped. A batch is int64 [B, T], the same tensor as input and as target: next_token_loss() does
// the shift. Samples of s3:// are requests of their own, several at a time.
// Throws UsageError for an option out of range or files without one whole sample, IoError and
// FormatError for files that cannot be read or are none of tokens.
std::shared_ptr<const Dataset> open_tokens(const std::vector<std::string>& files,
                                           TokenDataOptions options = {});

struct TokenizeOptions {
  std::vector<std::string> inputs;  // REQUIRED, files here or on s3://; NAME.jsonl: a document in
                                    // each line; any other name: a text, which is one document
  std::string tokenizer;            // REQUIRED: a folder or a file, as for load_tokenizer()
  std::string output;               // REQUIRED: a path that all ranks see
  std::string text_field = "text";  // of a line of JSON: the document
  int rank = 0;                     // in [0, num_ranks)
  int num_ranks = 1;                // the same on every rank
};

// Writes the ids of this rank's share of the bytes to a file beside `output`. Behind each document
// comes the tokenizer's end-of-text id, if it has one. The inputs are cut every 256 KiB, at the end
// of a line, wherever the shares begin: the ids do not depend on the number of ranks. Does nothing
// if tokens_are_current(). Throws UsageError, IoError, and FormatError with the file and the place
// in it.
void tokenize_share(const TokenizeOptions& options);

// Puts the shares together, on one rank, once all of them are there. `output` appears whole or not
// at all, in llm.c's layout (uint16, or uint32 for more than 65536 ids), with a note of what it was
// made from in OUTPUT.json; the shares are deleted. Does nothing if tokens_are_current(). Throws
// FormatError for a share that is missing or another run's.
void join_token_shares(const TokenizeOptions& options);

// Whether `output` was made from these inputs (size and version: an ETag, the time of the last
// change) by this tokenizer (SHA-256 of its files), and still has its size.
bool tokens_are_current(const TokenizeOptions& options);

}  // namespace lockstep
