#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "inspect.h"

namespace lockstep::app {

namespace {

using Json = nlohmann::ordered_json;

uint64_t logical_bytes(const formats::TensorInfo& tensor) {
  return formats::checked_bytes(tensor.dtype, tensor.shape).value_or(0);
}

// The sums over the tensors of a set; tied tensors count once.
struct Totals {
  uint64_t num_elements = 0;
  uint64_t size_bytes = 0;
};

Totals totals_of(const formats::WeightSet& set) {
  Totals totals;
  for (const formats::WeightEntry& entry : set.entries) {
    if (!entry.tied_to) {
      totals.num_elements += formats::checked_elements(entry.tensor.shape).value_or(0);
      totals.size_bytes += logical_bytes(entry.tensor);
    }
  }
  return totals;
}

const formats::WeightChecksum* checksum_of(const formats::WeightSet& set,
                                           const formats::WeightEntry& entry) {
  const auto& ranges = set.parts[entry.part].file.checksums;
  auto after = std::upper_bound(ranges.begin(), ranges.end(), entry.tensor.offset_bytes,
                                [](uint64_t offset, const formats::WeightChecksum& range) {
                                  return offset < range.offset_bytes;
                                });
  if (after == ranges.begin() || entry.tensor.size_bytes == 0) {
    return nullptr;
  }
  --after;
  return entry.tensor.offset_bytes - after->offset_bytes < after->size_bytes ? &*after : nullptr;
}

std::string summary(const std::string& location, const formats::WeightSet& set) {
  const Totals totals = totals_of(set);
  const formats::WeightFile& first = set.parts.front().file;
  uint64_t file_bytes = 0;
  bool has_checksums = true;
  for (const formats::WeightPart& part : set.parts) {
    file_bytes += part.file_bytes;
    has_checksums &= !part.file.checksums.empty();
  }
  std::string text =
      fmt::format("{}: {}, {}{}\n{} tensors, {} elements, {}; {}\n", base::escaped(location),
                  formats::name_of(first.format), size_text(file_bytes),
                  set.parts.size() > 1 ? fmt::format(" in {} files", set.parts.size()) : "",
                  set.entries.size(), totals.num_elements, size_text(totals.size_bytes),
                  has_checksums ? "CRC-32 of every record" : "no checksum in the file");
  for (const formats::WeightPart& part : set.parts) {
    for (const auto& [key, value] : part.file.metadata) {
      text += fmt::format("  {} = {}{}\n", base::escaped(key),
                          base::escaped(value.substr(0, kMaxValueWidth)),
                          value.size() > kMaxValueWidth ? "..." : "");
    }
  }
  return text;
}

std::string note_of(const formats::WeightSet& set, const formats::WeightEntry& entry) {
  if (entry.tied_to) {
    return "= " + base::escaped(set.entries[*entry.tied_to].tensor.name);
  }
  return entry.tensor.strides.empty()
             ? ""
             : fmt::format("strides [{}]", fmt::join(entry.tensor.strides, ", "));
}

std::string shape_text(const formats::TensorInfo& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

struct Branch {
  std::map<std::string, Branch> branches;
  const formats::WeightEntry* leaf = nullptr;
  Totals totals;
};

void add_leaf(Branch& root, const formats::WeightEntry& entry) {
  Branch* branch = &root;
  std::string_view name = entry.tensor.name;
  for (size_t depth = 0;; ++depth) {
    if (!entry.tied_to) {
      branch->totals.num_elements += formats::checked_elements(entry.tensor.shape).value_or(0);
      branch->totals.size_bytes += logical_bytes(entry.tensor);
    }
    constexpr size_t kMaxDepth = 64;  // a name of dots only
    const size_t dot = depth < kMaxDepth ? name.find('.') : name.npos;
    branch = &branch->branches[std::string(name.substr(0, dot))];
    if (dot == name.npos) {
      break;
    }
    name.remove_prefix(dot + 1);
  }
  branch->leaf = &entry;
}

// Numbers by value, so that layer 10 comes after layer 9.
bool comes_before(const std::string& a, const std::string& b) {
  const auto is_number = [](const std::string& text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  return is_number(a) && is_number(b) && a.size() != b.size() ? a.size() < b.size() : a < b;
}

void add_lines(const formats::WeightSet& set, const Branch& branch, const std::string& indent,
               std::vector<std::vector<std::string>>& rows) {
  std::vector<const std::pair<const std::string, Branch>*> sorted;
  for (const auto& child : branch.branches) {
    sorted.push_back(&child);
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const auto* a, const auto* b) { return comes_before(a->first, b->first); });
  for (const auto* child : sorted) {
    const Branch& inner = child->second;
    if (inner.leaf != nullptr) {
      const formats::TensorInfo& tensor = inner.leaf->tensor;
      rows.push_back({indent + base::escaped(child->first),
                      fmt::format("{} {}", formats::name_of(tensor.dtype), shape_text(tensor)),
                      size_text(logical_bytes(tensor)), note_of(set, *inner.leaf)});
    }
    if (!inner.branches.empty()) {
      rows.push_back({indent + base::escaped(child->first) + "/",
                      fmt::format("{} elements", inner.totals.num_elements),
                      size_text(inner.totals.size_bytes)});
      add_lines(set, inner, indent + "  ", rows);
    }
  }
}

Json tensor_json(const formats::WeightSet& set, const formats::WeightEntry& entry) {
  const formats::TensorInfo& tensor = entry.tensor;
  Json json{{"name", tensor.name},
            {"dtype", formats::name_of(tensor.dtype)},
            {"shape", tensor.shape},
            {"size_bytes", logical_bytes(tensor)},
            {"file", set.parts[entry.part].location},
            {"offset_bytes", tensor.offset_bytes}};
  if (!tensor.strides.empty()) {
    json["strides"] = tensor.strides;
  }
  if (entry.tied_to) {
    json["tied_to"] = set.entries[*entry.tied_to].tensor.name;
  }
  if (const formats::WeightChecksum* checksum = checksum_of(set, entry)) {
    json["crc32"] = fmt::format("{:08x}", checksum->crc);
  }
  return json;
}

}  // namespace

std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string size_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < std::size(kUnits); ++unit) {
    value /= 1000;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.3g} {}", value, kUnits[unit]);
}

std::string weights_table(const std::string& location, const formats::WeightSet& set) {
  std::vector<std::vector<std::string>> rows{{"NAME", "TYPE", "SHAPE", "SIZE", "CRC-32", ""}};
  for (const formats::WeightEntry& entry : set.entries) {
    const formats::WeightChecksum* checksum = checksum_of(set, entry);
    rows.push_back(
        {base::escaped(entry.tensor.name), std::string(formats::name_of(entry.tensor.dtype)),
         shape_text(entry.tensor), size_text(logical_bytes(entry.tensor)),
         checksum != nullptr ? fmt::format("{:08x}", checksum->crc) : "-", note_of(set, entry)});
  }
  return summary(location, set) + aligned(rows);
}

std::string weights_tree(const std::string& location, const formats::WeightSet& set) {
  Branch root;
  for (const formats::WeightEntry& entry : set.entries) {
    add_leaf(root, entry);
  }
  std::vector<std::vector<std::string>> rows;
  add_lines(set, root, "", rows);
  return summary(location, set) + aligned(rows);
}

std::string weights_json(const std::string& location, const formats::WeightSet& set,
                         const std::vector<Verified>& verified) {
  const Totals totals = totals_of(set);
  Json json{{"location", location},
            {"format", formats::name_of(set.parts.front().file.format)},
            {"num_tensors", set.entries.size()},
            {"num_elements", totals.num_elements},
            {"size_bytes", totals.size_bytes},
            {"files", Json::array()},
            {"metadata", Json::object()},
            {"tensors", Json::array()}};
  if (set.total_size) {
    json["index_total_size"] = *set.total_size;
  }
  for (const formats::WeightPart& part : set.parts) {
    json["files"].push_back({{"file", part.location},
                             {"size_bytes", part.file_bytes},
                             {"has_checksums", !part.file.checksums.empty()}});
    for (const auto& [key, value] : part.file.metadata) {
      json["metadata"][key] = value;
    }
  }
  for (const formats::WeightEntry& entry : set.entries) {
    json["tensors"].push_back(tensor_json(set, entry));
  }
  for (const Verified& file : verified) {
    json["verified"].push_back({{"file", file.file},
                                {"crc32_records", file.num_records},
                                {"has_sidecar", file.has_sidecar}});
  }
  // Names that are not UTF-8 are shown as far as they are.
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::app
