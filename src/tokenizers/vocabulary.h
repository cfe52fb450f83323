#pragma once

// Tokens and their ids.

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lockstep::tokenizers {

constexpr int64_t kMaxTokens = 1 << 21;  // ids of a pair and a rank share 64 bits (PairRanks)
constexpr size_t kMaxTokenBytes = 4096;

class Vocabulary {
 public:
  // Throws FormatError if the token or the id is taken, the token too long or no UTF-8, or the id
  // not in [0, kMaxTokens). `place` begins the message: a file, perhaps with a line.
  void add(std::string_view token, int64_t id, std::string_view place);

  std::optional<int32_t> id_of(std::string_view token) const;
  std::optional<std::string_view> token_of(int64_t id) const;
  int64_t size() const { return static_cast<int64_t>(token_of_.size()); }  // the largest id + 1

  // Calls `function(token, id)` in the order of the ids.
  template <typename Function>
  void for_each(Function function) const {
    for (size_t id = 0; id < token_of_.size(); ++id) {
      if (token_of_[id] != nullptr) {
        function(std::string_view(*token_of_[id]), static_cast<int32_t>(id));
      }
    }
  }

 private:
  std::deque<std::string> tokens_;
  std::vector<const std::string*> token_of_;  // null: an id that no token has
  std::unordered_map<std::string_view, int32_t> id_of_;
};

// A token as messages show it: at most 40 bytes of it, in quotes, control characters as "\x01".
std::string in_quotes(std::string_view token);

}  // namespace lockstep::tokenizers
