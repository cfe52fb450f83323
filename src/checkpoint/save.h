#pragma once

// One save, on one rank, which CheckpointWriter's thread carries out.

#include <lockstep/checkpoint/checkpoint.h>

#include "checkpoint/device_snapshot.h"
#include "checkpoint/layout.h"
#include "checkpoint/snapshot.h"
#include "checkpoint_files/owner.h"
#include "checkpoint_files/place.h"

namespace lockstep::checkpoint {

class Save {
 public:
  struct Parts {
    Group& group;  // of the saving threads alone
    checkpoint_files::CheckpointPlace& place;
    CopyPool& pool;
    checkpoint_files::PlaceOwner* owner;  // rank 0's; null on others
    DeviceSaves* device;                  // null: all tensors are the host's
  };
  // Everything in the parts must outlive it.
  Save(Parts parts, CheckpointInfo info, checkpoint_files::SavePlan plan,
       std::vector<SavedTensor> tensors, Share share);

  // Collective. Nothing that it could throw is lost: it is in the result. The same on every rank,
  // but for one that lost the others.
  SaveResult run();

  // Another thread calls it. It returns when the tensors may change.
  void capture();

  const checkpoint_files::SavePlan& plan() const { return plan_; }
  const CheckpointInfo& info() const { return info_; }
  int64_t created_s() const { return created_s_; }

 private:
  void run_steps(SaveResult& result);
  template <typename Append>
  void write_device(const Append& append);
  std::string write_shard();  // what rank 0 must know of it
  void write_attachments();   // of rank 0
  checkpoint_files::Manifest make_manifest(const std::vector<std::string>& reports) const;

  Parts parts_;
  const CheckpointInfo info_;
  const checkpoint_files::SavePlan plan_;
  std::vector<SavedTensor> tensors_;
  Share share_;
  Snapshot snapshot_;
  size_t num_device_bodies_ = 0;            // chunks; those of the device's rest follow
  std::unique_ptr<DeviceSnapshot> device_;  // null: no bytes of a device
  std::vector<checkpoint_files::ManifestAttachment> attachments_;  // those that are written
  const int64_t created_s_;
  const base::Stopwatch watch_;
};

}  // namespace lockstep::checkpoint
