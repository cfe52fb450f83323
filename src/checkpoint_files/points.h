#pragma once

// The moments of a save, for tests that kill a rank in them.

#include <atomic>

namespace lockstep::checkpoint_files {

enum class SavePoint {
  Prepared,         // the hidden folder is there
  HalfWritten,      // a part of the shard
  ShardsWritten,    // this rank's shard is on the disk
  ManifestWritten,  // all is in the hidden folder
  ShardsMoved,      // of a step that was there: beside those of the old checkpoint, which holds
  Renamed,          // committed; `latest` is the old one
  Committed         // `latest` is the new one; older checkpoints are still there
};

// Called by the thread that saves; null: nobody.
inline std::atomic<void (*)(SavePoint)> save_observer = nullptr;

inline void pass(SavePoint point) {
  if (auto* observer = save_observer.load()) {
    observer(point);
  }
}

}  // namespace lockstep::checkpoint_files
