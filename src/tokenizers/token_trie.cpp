#include "tokenizers/token_trie.h"

#include <utility>

#include <lockstep/base/error.h>

namespace lockstep::tokenizers {

namespace {

constexpr uint32_t kMaxNodes = 1u << 24;  // a node and a byte make a key of 32 bits

}  // namespace

void TokenTrie::insert(std::string_view text, int32_t id) {
  if (text.empty()) {
    return;
  }
  uint32_t* first = &first_[static_cast<unsigned char>(text[0])];
  if (*first == 0) {
    *first = add_node();
  }
  uint32_t node = *first;
  for (const char c : text.substr(1)) {
    const auto byte = static_cast<unsigned char>(c);
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = add_node();
      add_edge(node << 8 | byte, next);
    }
    node = next;
  }
  ids_[node] = id;
}

uint32_t TokenTrie::add_node() {
  if (ids_.size() == kMaxNodes) {
    throw FormatError("the vocabulary is too large: its tokens have more than {} beginnings",
                      kMaxNodes);
  }
  ids_.push_back(-1);
  return static_cast<uint32_t>(ids_.size() - 1);
}

void TokenTrie::add_edge(uint32_t key, uint32_t child) {
  if (++num_edges_ * 2 > edges_.size()) {
    const std::vector<Edge> old = std::exchange(edges_, std::vector<Edge>(edges_.size() * 2));
    num_edges_ = 1;
    for (const Edge& edge : old) {
      if (edge.child != 0) {
        add_edge(edge.key, edge.child);
      }
    }
  }
  size_t at = slot(key);
  while (edges_[at].child != 0) {
    at = (at + 1) & (edges_.size() - 1);
  }
  edges_[at] = {.key = key, .child = child};
}

}  // namespace lockstep::tokenizers
