#pragma once

// Text whose tokens are its bytes: a vocabulary of 256 that needs no file.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>

namespace lockstep::train {

inline constexpr int64_t kByteVocabulary = 256;

// Reads the files (paths or s3://), one after another, into memory; of NAME.jsonl the field "text"
// of each line, and the end of a line. Sample i is bytes [i*T, (i+1)*T), as input and as target.
// Throws IoError, FormatError for a line that is no such object, and UsageError for less than one
// sample.
std::shared_ptr<const Dataset> open_byte_text(const std::vector<std::string>& files,
                                              int64_t sequence_length);

std::vector<int64_t> encode_bytes(const std::string& text);
std::string decode_bytes(const std::vector<int64_t>& ids);  // ids beyond the bytes are left out

}  // namespace lockstep::train
