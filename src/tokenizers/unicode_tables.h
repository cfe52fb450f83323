#pragma once

// What unicode.cpp unfolds; tools/make_unicode_tables.py writes the numbers.

#include <cstddef>
#include <cstdint>

namespace lockstep::tokenizers {

extern const uint32_t kClassRuns[];
extern const size_t kClassRunsSize;
extern const uint32_t kChineseRanges[];
extern const size_t kChineseRangesSize;
extern const uint32_t kCombiningRuns[];
extern const size_t kCombiningRunsSize;
extern const uint32_t kDecompositions[];
extern const size_t kDecompositionsSize;
extern const uint32_t kNeverComposed[];
extern const size_t kNeverComposedSize;
extern const int32_t kLowerRuns[];
extern const size_t kLowerRunsSize;

}  // namespace lockstep::tokenizers
