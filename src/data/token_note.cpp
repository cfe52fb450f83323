#include "data/token_note.h"

#include <filesystem>

#include <lockstep/base/error.h>

#include "base/digest.h"
#include "base/unique_fd.h"
#include "data/text_pieces.h"
#include "storage/location.h"
#include "storage/storage.h"
#include "tokenizers/json_file.h"

namespace lockstep::data {

namespace {

namespace fs = std::filesystem;

storage::ObjectInfo look_at(const std::string& location) {
  const storage::Location place = storage::parse_location(location);
  const fs::path path = place.is_s3 ? fs::path(place.path) : fs::absolute(place.path);
  const std::string folder = path.parent_path().string();
  const auto storage =
      storage::open_storage(place.is_s3 ? fmt::format("s3://{}/{}", place.bucket, folder) : folder);
  const auto object = storage->find(path.filename().string());
  if (!object) {
    throw IoError("cannot read {}: there is no such file", location);
  }
  return *object;
}

// The digest of every file that load_tokenizer() may read there.
std::string tokenizer_digest(const std::string& tokenizer) {
  const fs::path given = tokenizer;
  const bool is_folder = fs::is_directory(given);
  const fs::path folder = is_folder ? given : given.parent_path();
  base::Digest digest = base::Digest::sha256();
  const auto add = [&](const fs::path& path) {
    if (fs::is_regular_file(path)) {
      const std::string text = base::read_file(path.string(), tokenizers::kMaxVocabularyBytes);
      const std::string head = fmt::format("{} {}\n", path.filename().string(), text.size());
      digest.add(head);
      digest.add(text);
    }
  };
  if (!is_folder) {
    add(given);
  }
  for (const char* name :
       {"tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "tokenizer_config.json"}) {
    add(folder / name);
  }
  return digest.hex();
}

}  // namespace

nlohmann::json describe_tokens(const TokenizeOptions& options) {
  auto inputs = nlohmann::json::array();
  for (const std::string& input : options.inputs) {
    const storage::ObjectInfo object = look_at(input);
    inputs.push_back(
        {{"location", input}, {"size_bytes", object.size_bytes}, {"version", object.version}});
  }
  return {{"inputs", inputs},
          {"tokenizer_sha256", tokenizer_digest(options.tokenizer)},
          {"text_field", options.text_field},
          {"piece_bytes", kPieceBytes}};
}

std::string token_note_path(const TokenizeOptions& options) {
  return options.output + ".json";
}

bool is_noted(const TokenizeOptions& options, const nlohmann::json& made_from) {
  const std::string path = token_note_path(options);
  std::error_code error;
  const uint64_t size = fs::file_size(options.output, error);
  if (error || !fs::is_regular_file(path, error)) {
    return false;
  }
  const tokenizers::Json note = tokenizers::Json::parse(base::read_file(path), nullptr, false);
  return note.is_object() && tokenizers::field(note, "made_from") == made_from &&
         tokenizers::field(note, "size_bytes") == size;
}

void write_token_note(const TokenizeOptions& options, const TokenNote& note) {
  const nlohmann::json json{{"made_from", note.made_from},
                            {"num_tokens", note.num_tokens},
                            {"size_bytes", note.size_bytes}};
  base::write_file_atomically(token_note_path(options), json.dump(2) + "\n");
}

}  // namespace lockstep::data
