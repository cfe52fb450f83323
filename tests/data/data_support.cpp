#include "data/data_support.h"

#include "base/byte_source.h"
#include "formats/little_endian.h"
#include "formats/token_file.h"

namespace lockstep::test {

std::string golden_tokenizer(const std::string& name) {
  return std::string(LOCKSTEP_SOURCE_DIR) + "/tests/data/golden/tokenizers/" + name;
}

std::vector<int64_t> all_ids(const std::string& path) {
  const FileSource source(path);
  const TokenFile file = read_token_file(source);
  const size_t id_bytes = file.dtype == DType::U16 ? 2 : 4;
  const std::string bytes = source.read_text(file.offset_bytes, file.num_tokens * id_bytes);
  std::vector<int64_t> ids;
  for (size_t i = 0; i < file.num_tokens; ++i) {
    ids.push_back(id_bytes == 2 ? number_at<uint16_t>(bytes, i * 2)
                                : number_at<uint32_t>(bytes, i * 4));
  }
  return ids;
}

}  // namespace lockstep::test
