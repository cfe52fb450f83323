#pragma once

// Texts with a number each, of which the longest that a text begins with is found in one walk.

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::tokenizers {

class TokenTrie {
 public:
  struct Match {
    int32_t id = -1;   // -1: none
    size_t bytes = 0;  // of the text
  };

  // `id` >= 0; a text that is there already gets the new id. An empty text is not kept.
  void insert(std::string_view text, int32_t id);

  bool is_empty() const { return ids_.size() == 1; }
  bool has_first(unsigned char byte) const { return first_[byte] != 0; }

  Match longest(std::string_view text) const {
    Match match;
    uint32_t node = text.empty() ? 0 : first_[static_cast<unsigned char>(text[0])];
    for (size_t i = 1; node != 0; ++i) {
      if (ids_[node] >= 0) {
        match = {.id = ids_[node], .bytes = i};
      }
      if (i == text.size()) {
        break;
      }
      node = child(node, static_cast<unsigned char>(text[i]));
    }
    return match;
  }

 private:
  // An edge of the table: the node it leaves and its byte, and the node it reaches.
  struct Edge {
    uint32_t key = 0;
    uint32_t child = 0;  // 0: a free place; no edge leads to the root
  };

  uint32_t child(uint32_t node, unsigned char byte) const {
    const uint32_t key = node << 8 | byte;
    for (size_t at = slot(key);; at = (at + 1) & (edges_.size() - 1)) {
      if (edges_[at].child == 0 || edges_[at].key == key) {
        return edges_[at].child;
      }
    }
  }
  size_t slot(uint32_t key) const {
    return (key * 0x9E3779B97F4A7C15u >> 32) & (edges_.size() - 1);
  }
  uint32_t add_node();
  void add_edge(uint32_t key, uint32_t child);

  std::array<uint32_t, 256> first_{};  // children of the root
  std::vector<int32_t> ids_{-1};       // of each node
  std::vector<Edge> edges_{16};
  size_t num_edges_ = 0;
};

}  // namespace lockstep::tokenizers
