#include <lockstep/base/error.h>

#include "formats/archive/zip_reader.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/unpickler.h"

namespace lockstep::formats {

namespace {

constexpr uint64_t kMaxNoteBytes = 64;  // of version and byteorder

// "state_dict" of "state_dict/data.pkl": every record lies under it.
std::string root_of(const ZipReader& zip) {
  const std::string& file = zip.source().name();
  if (zip.entries().empty()) {
    throw FormatError("{}: an empty zip", file);
  }
  const std::string& first = zip.entries().front().name;
  const std::string root = first.substr(0, first.find('/')) + "/";
  for (const ZipEntry& entry : zip.entries()) {
    if (!entry.name.starts_with(root)) {
      throw FormatError("{}: record {} is not under {}, as all of torch's are", file,
                        base::shown(entry.name), base::shown(root));
    }
  }
  if (zip.find(root + "constants.pkl") != nullptr) {
    throw FormatError("{}: a TorchScript archive, which holds code; save the state_dict instead",
                      file);
  }
  return root;
}

const ZipEntry& record(const ZipReader& zip, const std::string& name) {
  const ZipEntry* entry = zip.find(name);
  if (entry == nullptr) {
    throw FormatError("{}: no record {}; is this a file of torch.save?", zip.source().name(),
                      base::shown(name));
  }
  return *entry;
}

void check_byteorder(const ZipReader& zip, const std::string& root) {
  const ZipEntry* entry = zip.find(root + "byteorder");
  if (entry != nullptr && zip.read(*entry, kMaxNoteBytes) != "little") {
    throw FormatError(
        "{}: record {} (offset {}) is not \"little\"; save the file on a "
        "little-endian machine",
        zip.source().name(), base::shown(entry->name), entry->data_offset);
  }
}

}  // namespace

TorchFile read_torch_zip(const base::ByteSource& source) {
  const ZipReader zip(source);
  const std::string root = root_of(zip);
  zip.read(record(zip, root + "version"), kMaxNoteBytes);
  check_byteorder(zip, root);
  const ZipEntry& data = record(zip, root + "data.pkl");
  const std::string bytes = zip.read(data, kMaxPickleBytes);
  Pickle pickle = unpickle(bytes, {.file = source.name(), .offset = data.data_offset});
  if (pickle.size_bytes != bytes.size()) {
    throw FormatError("{}: {} bytes follow the pickle at offset {}", source.name(),
                      bytes.size() - pickle.size_bytes, data.data_offset + pickle.size_bytes);
  }
  std::vector<TorchStorage> storages;
  for (const PickledStorage& wanted : pickle.storages) {
    const ZipEntry& entry = record(zip, root + "data/" + wanted.key);
    if (entry.size_bytes != wanted.size_bytes) {
      throw FormatError("{}: storage {} (offset {}) has {} bytes, and the pickle says {}",
                        source.name(), base::shown(wanted.key), entry.data_offset, entry.size_bytes,
                        wanted.size_bytes);
    }
    storages.push_back({.key = wanted.key,
                        .offset_bytes = entry.data_offset,
                        .size_bytes = entry.size_bytes,
                        .crc = zip.has_checksums() ? std::optional(entry.crc) : std::nullopt});
  }
  TorchFile file = place_tensors(source, std::move(pickle), std::move(storages));
  file.has_checksums = zip.has_checksums();
  return file;
}

}  // namespace lockstep::formats
