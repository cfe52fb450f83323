#include "data/data_support.h"

#include <fmt/format.h>

#include "base/byte_source.h"
#include "formats/little_endian.h"
#include "formats/token_file.h"
#include "support/paths.h"

namespace lockstep::test {

std::string golden_tokenizer(const std::string& name) {
  return testing_support::in_tree("tests/tokenizers/golden/") + name;
}

std::vector<int64_t> all_ids(const std::string& path) {
  const base::FileSource source(path);
  const formats::TokenFile file = formats::read_token_file(source);
  const size_t id_bytes = file.dtype == formats::DType::U16 ? 2 : 4;
  const std::string bytes = source.read_text(file.offset_bytes, file.num_tokens * id_bytes);
  std::vector<int64_t> ids;
  for (size_t i = 0; i < file.num_tokens; ++i) {
    ids.push_back(id_bytes == 2 ? formats::number_at<uint16_t>(bytes, i * 2)
                                : formats::number_at<uint32_t>(bytes, i * 4));
  }
  return ids;
}

std::string pax_record(const std::string& key, const std::string& value) {
  const size_t rest = key.size() + value.size() + 3;  // a blank, = and the line's end
  size_t length = rest + 1;
  while (std::to_string(length).size() + rest != length) {
    ++length;
  }
  return fmt::format("{} {}={}\n", length, key, value);
}

std::string tar_bytes(const std::vector<TarEntry>& files) {
  constexpr size_t kBlockBytes = 512;
  std::string tar;
  for (const auto& [name, content, type] : files) {
    std::string header(kBlockBytes, '\0');
    header.replace(0, name.size(), name);
    header.replace(124, 11, fmt::format("{:011o}", content.size()));
    header.replace(148, 8, "        ");
    header[156] = name.ends_with('/') ? '5' : type;
    header.replace(257, 8,
                   std::string("ustar\0"
                               "00",
                               8));
    unsigned sum = 0;
    for (const char c : header) {
      sum += static_cast<unsigned char>(c);
    }
    header.replace(148, 7, fmt::format("{:06o}", sum) + '\0');
    tar += header + content;
    tar.resize((tar.size() + kBlockBytes - 1) / kBlockBytes * kBlockBytes);
  }
  return tar + std::string(2 * kBlockBytes, '\0');
}

}  // namespace lockstep::test
