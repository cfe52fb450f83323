#include <set>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/secret.h"
#include "checkpoint_files/checkpoint_list.h"
#include "checkpoint_files/own_files.h"
#include "checkpoint_files/place.h"
#include "checkpoint_files/points.h"
#include "storage/location.h"

namespace lockstep::checkpoint_files {

namespace {

class ObjectSink : public ShardSink {
 public:
  explicit ObjectSink(std::unique_ptr<storage::ObjectWriter> writer) : writer_(std::move(writer)) {}

  void append(std::span<const std::byte> bytes) override { writer_->append(bytes); }
  void finish() override { writer_->commit(); }

 private:
  std::unique_ptr<storage::ObjectWriter> writer_;
};

// "step-00000100" of "step-00000100/shard-...", if it is a file of a checkpoint; nothing for
// objects of others, whose keys may begin with "step-" too.
std::optional<std::string> checkpoint_of(const std::string& path) {
  const size_t slash = path.find('/');
  if (slash == std::string::npos || !is_own_file(path.substr(slash + 1))) {
    return std::nullopt;
  }
  const std::string name = path.substr(0, slash);
  return step_of(name) ? std::optional(name) : std::nullopt;
}

// A bucket has no folders to rename: the manifest is what commits, and a save of the same step as
// an older one writes shards of other names.
class RemotePlace : public CheckpointPlace {
 public:
  explicit RemotePlace(const std::string& location) : storage_(storage::open_storage(location)) {}

  void probe() override {
    const std::string path = ".lockstep-probe-" + base::make_secret();
    try {
      const auto writer = storage_->create(path);
      writer->append(path);
      writer->commit();
      storage_->remove(path);
    } catch (const IoError& error) {
      throw IoError("checkpoint: nothing can be written to {}, or not removed again: {}",
                    storage_->location(), error.what());
    }
  }

  void prepare(const SavePlan&) override {
    std::set<std::string> committed;
    const auto objects = storage_->list("step-");
    for (const storage::ObjectInfo& object : objects) {
      if (const auto name = checkpoint_of(object.path);
          name && object.path.ends_with(kManifestFile)) {
        committed.insert(*name);
      }
    }
    for (const storage::ObjectInfo& object : objects) {
      if (const auto name = checkpoint_of(object.path); name && !committed.contains(*name)) {
        log::info("checkpoint", "removing {}/{}, which a save that was killed left behind",
                  storage_->location(), object.path);
        storage_->remove(object.path);
      }
    }
  }

  std::string shard_file(const SavePlan& save, int rank, int size) const override {
    return shard_name(rank, size, save.sequence);
  }

  std::string attachment_file(const SavePlan& save, const std::string& name) const override {
    return attachment_file_name(name, save.sequence);
  }

  std::unique_ptr<ShardSink> open_shard(const SavePlan& save, const std::string& file,
                                        uint64_t) override {
    return std::make_unique<ObjectSink>(storage_->create(checkpoint_name(save.step) + "/" + file));
  }

  void commit(const SavePlan& save, const std::string& manifest) override {
    const auto writer =
        storage_->create(fmt::format("{}/{}", checkpoint_name(save.step), kManifestFile));
    pass(SavePoint::ManifestWritten);
    writer->append(manifest);
    writer->commit();
    pass(SavePoint::Renamed);
    remove_others(save.step, manifest);
  }

  void abort(const SavePlan& save) override {
    const std::string path = fmt::format("{}/{}", checkpoint_name(save.step), kManifestFile);
    std::string manifest;  // of an older save of this step
    if (storage_->find(path)) {
      const auto source = storage_->open(path);
      manifest = source->read_text(0, source->size());
    }
    remove_others(save.step, manifest);
  }

  void remove(const std::string& name) override {
    storage_->remove(fmt::format("{}/{}", name, kManifestFile));
    for (const storage::ObjectInfo& object : storage_->list(name + "/")) {
      if (checkpoint_of(object.path)) {
        storage_->remove(object.path);
      }
    }
  }

  void point(const std::string& pointer, const std::string& name) override {
    const auto writer = storage_->create(pointer);
    writer->append(name + "\n");
    writer->commit();
  }

 private:
  // Files of the step that its manifest does not name.
  void remove_others(int64_t step, const std::string& text) {
    std::set<std::string> named = {std::string(kManifestFile)};
    if (!text.empty()) {
      const Manifest manifest = parse_manifest(storage_->location(), text);
      for (size_t i = 0; i < manifest.num_files(); ++i) {
        named.insert(manifest.file(i).file);
      }
    }
    for (const storage::ObjectInfo& object : storage_->list(checkpoint_name(step) + "/")) {
      if (checkpoint_of(object.path) &&
          !named.contains(object.path.substr(object.path.find('/') + 1))) {
        storage_->remove(object.path);
      }
    }
  }

  const std::shared_ptr<storage::Storage> storage_;
};

}  // namespace

std::unique_ptr<CheckpointPlace> make_remote_place(const std::string& location) {
  return std::make_unique<RemotePlace>(location);
}

std::unique_ptr<CheckpointPlace> make_place(const std::string& location) {
  const storage::Location place = storage::parse_location(location);
  return place.is_s3 ? make_remote_place(location) : make_folder_place(place.path);
}

}  // namespace lockstep::checkpoint_files
