#pragma once

// Places for files: a folder, here or on a shared file system ("/data", "file:///data"), or a
// bucket ("s3://bucket/prefix"). Both are read by offset, written whole or not at all, and named by
// paths with slashes.
//
//   auto storage = open_storage("s3://models/gpt2");
//   for (const ObjectInfo& object : storage->list()) { ... }
//   auto source = storage->open("model.safetensors");
//
// Errors: UsageError for a location that cannot be one, IoError for what is not there, may not be
// read or did not come in time; each names the object.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/byte_source.h"

namespace lockstep::storage {

struct ObjectInfo {
  std::string path;  // inside its Storage: "folder/file"
  uint64_t size_bytes = 0;
  std::string version;  // changes when the content does: an ETag, a time; compare it, no more
};

// A file being written. Until commit() returns nobody sees it, and what was there before stays;
// destroyed without commit(), it leaves nothing behind.
class ObjectWriter {
 public:
  virtual ~ObjectWriter() = default;

  virtual void append(std::span<const std::byte> bytes) = 0;
  void append(std::string_view bytes) { append(std::as_bytes(std::span(bytes))); }
  virtual void commit() = 0;  // once, and nothing after it
};

// Paths are relative, with no "." or ".." in them.
// Threads: every method may be called concurrently; an ObjectWriter belongs to one thread.
class Storage {
 public:
  virtual ~Storage() = default;

  virtual const std::string& location() const = 0;  // as given to open_storage(), for messages

  // Every file, at any depth, whose path begins with the text `prefix`, sorted by path. Links to
  // files are followed, links to folders are not.
  virtual std::vector<ObjectInfo> list(const std::string& prefix = "") const = 0;

  // Nothing if there is no such file.
  virtual std::optional<ObjectInfo> find(const std::string& path) const = 0;

  virtual std::unique_ptr<base::ByteSource> open(const std::string& path) const = 0;

  // Makes the folders on the way.
  virtual std::unique_ptr<ObjectWriter> create(const std::string& path) = 0;

  // Writes a small file unless there is one: false. A server that knows no conditions replaces it.
  virtual bool create_new(const std::string& path, std::string_view text) = 0;

  virtual void remove(const std::string& path) = 0;  // it need not be there
};

// Does not look whether the folder or the bucket exists: the first use does.
std::shared_ptr<Storage> open_storage(const std::string& location);

// One file: a path, "file:///path", "s3://bucket/key".
std::unique_ptr<base::ByteSource> open_source(const std::string& location);

// The same for bytes that this process alone reads, and once (a share of a weight file, say): past
// the page cache where that pays. See direct_source.h.
std::unique_ptr<base::ByteSource> open_direct_source(const std::string& location);

// What the file at `location` is; nothing if there is none.
std::optional<ObjectInfo> find_file(const std::string& location);

// Whether a folder is meant. A bucket has no folders to ask about: there a last part without an
// extension is one.
bool is_folder(const std::string& location);

// Whether it is on the other side of a network for sure: s3://. A path may be, too (NFS, Lustre).
bool is_remote(const std::string& location);

}  // namespace lockstep::storage
