#pragma once

// Which tensor of a file fills which tensor of a model: files of ten years name the same weights in
// many ways.

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::weights {

struct NameRules {
  // What stands before the names of a backbone in models with a head ("bert."), on either side.
  std::string prefix;
  // Ends of names that were once written differently: {"LayerNorm.gamma", "LayerNorm.weight"}.
  std::vector<std::pair<std::string, std::string>> renamed_ends;
  // Ends of names that are no weights: masks, positions.
  std::vector<std::string> ignored_ends;
  // Second names of tied weights -> the name that the model has, both without prefix.
  std::vector<std::pair<std::string, std::string>> ties;
};

struct NameMap {
  struct Pair {
    std::string model_name;
    std::string file_name;
  };
  std::vector<Pair> pairs;           // in the model's order
  std::vector<std::string> missing;  // names of the model that the file lacks
  std::vector<std::string> surplus;  // names of the file that the model lacks
  std::vector<std::string> ignored;  // names of the file that are no weights
  std::vector<std::string> tied;     // second names, beside the first one in the file
};

// Also drops "module.", which DataParallel puts before every name, where every name of the file has
// it. Throws FormatError if two tensors of the file claim the same place.
NameMap map_names(std::span<const std::string> model_names, std::span<const std::string> file_names,
                  const NameRules& rules);

}  // namespace lockstep::weights
