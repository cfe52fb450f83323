#include <algorithm>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

#include "base/round.h"
#include "formats/little_endian.h"
#include "formats/safetensors_header.h"

namespace lockstep::formats {

namespace {

constexpr uint64_t kDataAlignment = 4096;  // of pages, and of reads that go past their cache

void check_tensors(const std::string& path, const std::vector<TensorInfo>& tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == kMetadata || !names.insert(tensor.name).second) {
      throw UsageError("cannot write {}: the name {} is empty, taken or reserved", path,
                       base::shown(tensor.name));
    }
    if (!dtype_of_safetensors(name_of(tensor.dtype)) ||
        !checked_bytes(tensor.dtype, tensor.shape)) {
      throw UsageError("cannot write {}: safetensors cannot hold tensor {}, {}; write a .pth file",
                       path, base::shown(tensor.name), to_string(tensor.dtype, tensor.shape));
    }
  }
}

std::string header_json(const std::vector<TensorInfo>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    json[std::string(kMetadata)] = metadata;
  }
  std::string text = json.dump();
  text.pop_back();  // entries are appended one by one: ordered_json searches its keys linearly
  for (const TensorInfo& tensor : tensors) {
    const nlohmann::ordered_json entry{
        {"dtype", name_of(tensor.dtype)},
        {"shape", tensor.shape},
        {"data_offsets", {tensor.offset_bytes, tensor.offset_bytes + tensor.size_bytes}}};
    text += fmt::format("{}{}:{}", text.size() > 1 ? "," : "", nlohmann::json(tensor.name).dump(),
                        entry.dump());
  }
  return text + "}";
}

// Sorts the tensors, gives them their places and returns what stands before them.
std::string lay_out(const std::string& path, std::vector<TensorInfo>& tensors,
                    const std::map<std::string, std::string>& metadata) {
  check_tensors(path, tensors);
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return bits_of(a.dtype) != bits_of(b.dtype) ? bits_of(a.dtype) > bits_of(b.dtype)
                                                : a.name < b.name;
  });
  uint64_t end = 0;
  for (TensorInfo& tensor : tensors) {
    tensor.strides.clear();
    tensor.offset_bytes = end;
    tensor.size_bytes = *checked_bytes(tensor.dtype, tensor.shape);
    end += tensor.size_bytes;
  }
  const std::string head = safetensors_head(path, tensors, metadata);
  for (TensorInfo& tensor : tensors) {
    tensor.offset_bytes += head.size();
  }
  return head;
}

}  // namespace

std::string safetensors_head(const std::string& path, const std::vector<TensorInfo>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  std::string json;
  try {
    json = header_json(tensors, metadata);
  } catch (const nlohmann::json::exception& error) {
    throw UsageError("cannot write {}: a name or a value of the metadata is not UTF-8", path);
  }
  std::string head;
  append_number<uint64_t>(head, base::rounded_up(8 + json.size(), kDataAlignment) - 8);
  head += json;
  head.resize(base::rounded_up(head.size(), kDataAlignment), ' ');
  return head;
}

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<TensorInfo> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : path_(path), tensors_(std::move(tensors)), file_(std::move(path)) {
  const std::string head = lay_out(path_, tensors_, metadata);
  file_.append(head);
  end_ = tensors_.empty() ? head.size() : tensors_.back().offset_bytes + tensors_.back().size_bytes;
}

void SafetensorsWriter::finish() {
  if (file_.size() != end_) {
    throw UsageError("cannot write {}: its tensors end at offset {}, and bytes up to {} were given",
                     path_, end_, file_.size());
  }
  file_.commit();
}

}  // namespace lockstep::formats
