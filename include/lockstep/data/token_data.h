#pragma once

// Text for language models: it is made into a file of token ids once, and then read by sequence.
//
// Example:
//   lockstep::TokenizeOptions text{.inputs = {"wiki.jsonl"},
//                                  .tokenizer = "gpt2",
//                                  .output = "wiki.bin",
//                                  .rank = group.rank(),
//                                  .num_ranks = group.size()};
//   lockstep::tokenize_share(text);  // each rank tokenizes its share of the bytes
//   group.barrier();
//   if (group.rank() == 0) lockstep::join_token_shares(text);
//   group.barrier();
//   auto data = lockstep::open_tokens({"wiki.bin"}, {.sequence_length = 1024});
//
// None of these functions is collective: the barriers in the example are what the ranks need.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>

namespace lockstep {

struct TokenDataOptions {
  int64_t sequence_length = 1024;  // T, >= 1: the number of tokens of a sample
  int64_t vocab_size = 0;          // if > 0, an id that is not below it is a FormatError
};

// Opens files as nanoGPT and llm.c write them, on a path or on s3://. Sample i of a file holds its
// tokens [i*T, (i+1)*T). The samples of the files follow one another, and what is left at the end
// of a file is dropped. A batch is an int64 tensor [B, T], which is both the input and the target:
// next_token_loss() does the shift. On s3:// each sample is a request of its own, and several are
// made at a time.
//
// Throws UsageError for an option out of range or for files without one whole sample, IoError for
// files that cannot be read, and FormatError for files that do not hold tokens.
std::shared_ptr<const Dataset> open_tokens(const std::vector<std::string>& files,
                                           TokenDataOptions options = {});

struct TokenizeOptions {
  // REQUIRED: files on a path or on s3://. In NAME.jsonl each line holds a document; a file with
  // any other name is a text, which is one document.
  std::vector<std::string> inputs;
  std::string tokenizer;            // REQUIRED: a folder or a file, as for load_tokenizer()
  std::string output;               // REQUIRED: a path that all ranks see
  std::string text_field = "text";  // the field of a JSON line that holds the document
  int rank = 0;                     // in [0, num_ranks)
  int num_ranks = 1;                // the same on every rank
};

// Writes the ids of this rank's share of the bytes to a file beside `output`. After each document
// comes the tokenizer's end-of-text id, if it has one. The inputs are cut every 256 KiB, at the end
// of a line, wherever the shares begin, so the ids do not depend on the number of ranks. The call
// does nothing if tokens_are_current().
//
// Throws UsageError for a wrong option, IoError for what cannot be read or written, and FormatError
// with the file and the place in it. `output` is untouched after an error.
void tokenize_share(const TokenizeOptions& options);

// Joins the shares. One rank calls it, after all of them have written theirs. `output` appears
// whole or not at all, in llm.c's layout (uint16, or uint32 for more than 65536 ids), together with
// OUTPUT.json, which says what it was made from; the shares are deleted. The call does nothing if
// tokens_are_current(). Throws FormatError for a share that is missing or from another run.
void join_token_shares(const TokenizeOptions& options);

// Whether `output` was made from these inputs by this tokenizer and still has its size. Inputs are
// compared by size and version (an ETag, or the time of the last change), and the tokenizer by the
// SHA-256 of its files.
bool tokens_are_current(const TokenizeOptions& options);

}  // namespace lockstep
