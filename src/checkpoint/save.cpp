#include "checkpoint/save.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/hash.h"
#include "checkpoint_files/checkpoint_list.h"
#include "checkpoint_files/points.h"
#include "comm/agree.h"

namespace lockstep::checkpoint {

namespace {

using Json = nlohmann::json;

int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Collective.
void throw_first(Group& group, const std::string& error) {
  if (const std::string first = comm::first_text(comm::gather_texts(group, error));
      !first.empty()) {
    throw IoError(first);
  }
}

}  // namespace

Save::Save(Parts parts, CheckpointInfo info, checkpoint_files::SavePlan plan,
           std::vector<SavedTensor> tensors, Share share)
    : parts_(parts),
      info_(std::move(info)),
      plan_(plan),
      tensors_(std::move(tensors)),
      share_(std::move(share)),
      snapshot_(share_.bodies, parts.pool),
      created_s_(seconds_now()) {
  std::vector<at::Tensor> of_device = std::exchange(share_.device_bodies, {});
  const at::Tensor rest = std::exchange(share_.device_rest, {});
  if (rest.defined()) {
    of_device.push_back(rest);
  }
  if (of_device.empty()) {
    return;
  }
  device_ = std::make_unique<DeviceSnapshot>(
      *parts_.device,
      DeviceSnapshot::Options{.parts = std::move(of_device), .timeout = parts_.group.timeout()});
  num_device_bodies_ = device_->num_chunks();
  if (rest.defined()) {
    num_device_bodies_ -= (rest.nbytes() + PinnedPool::kBytes - 1) / PinnedPool::kBytes;
  }
}

void Save::capture() {
  if (device_) {
    device_->capture();  // first: the device copies while the host does
  }
  snapshot_.capture();
}

SaveResult Save::run() {
  SaveResult result{.step = plan_.step, .bytes = plan_.bytes};
  try {
    run_steps(result);
    result.committed = true;
  } catch (const std::exception& error) {
    result.error = error.what();
    if (parts_.group.rank() == 0) {
      log::warn("checkpoint", "step {} was not saved: {}", plan_.step, error.what());
    }
  }
  snapshot_.close();
  if (device_) {
    device_->close();
  }
  tensors_.clear();  // the tensors' memory is the caller's again
  if (!result.committed && parts_.group.rank() == 0) {
    try {
      parts_.place.abort(plan_);
    } catch (const std::exception& error) {
      log::warn("checkpoint", "step {}: {}; the next save removes it", plan_.step, error.what());
    }
  }
  result.seconds = watch_.seconds();
  return result;
}

void Save::run_steps(SaveResult& result) {
  Group& group = parts_.group;
  const bool leads = group.rank() == 0;
  throw_first(group, comm::failure_of([&] {
                if (leads) {
                  parts_.owner->check();
                  parts_.place.prepare(plan_);
                }
              }));
  checkpoint_files::pass(checkpoint_files::SavePoint::Prepared);
  std::string report;
  const std::string error = comm::failure_of([&] {
    if (leads) {
      write_attachments();
    }
    report = write_shard();
  });
  // An error has no braces around it.
  const auto reports = comm::gather_texts(group, error.empty() ? report : "!" + error);
  for (const std::string& other : reports) {
    if (other.starts_with('!')) {
      throw IoError(other.substr(1));
    }
  }
  result.bytes = 0;
  for (const std::string& other : reports) {
    const Json report_of_rank = Json::parse(other);
    result.bytes += report_of_rank.at("bytes").get<uint64_t>() +
                    report_of_rank.at("attached_bytes").get<uint64_t>();
  }
  throw_first(group, comm::failure_of([&] {
                if (leads) {
                  parts_.place.commit(plan_,
                                      checkpoint_files::manifest_text(make_manifest(reports)));
                }
              }));
}

// The device's large tensors go to the disk; what is small goes to its place in the rest.
template <typename Append>
void Save::write_device(const Append& append) {
  for (size_t i = 0; i < num_device_bodies_; ++i) {
    if (i == num_device_bodies_ / 2 && snapshot_.num_chunks() == 0) {
      checkpoint_files::pass(checkpoint_files::SavePoint::HalfWritten);
    }
    append(device_->begin_write(i));
    device_->end_write(i);
  }
  std::vector<std::byte> small;
  for (size_t i = num_device_bodies_; i < device_->num_chunks(); ++i) {
    const std::span<const std::byte> bytes = device_->begin_write(i);
    small.insert(small.end(), bytes.begin(), bytes.end());
    device_->end_write(i);
  }
  auto from = small.begin();
  for (const Share::Gap& gap : share_.gaps) {
    const auto end = from + static_cast<int64_t>(gap.bytes);
    std::copy(from, end, share_.rest.begin() + static_cast<int64_t>(gap.at));
    from = end;
  }
}

std::string Save::write_shard() {
  const int rank = parts_.group.rank();
  const std::string file = parts_.place.shard_file(plan_, rank, parts_.group.size());
  const auto sink = parts_.place.open_shard(plan_, file, share_.file_bytes);
  base::Xxh3 hash;
  const auto append = [&](std::span<const std::byte> bytes) {
    hash.add(bytes);  // first: it is in the cache for what follows
    sink->append(bytes);
  };
  append(std::as_bytes(std::span(share_.head)));
  for (size_t i = 0; i < snapshot_.num_chunks(); ++i) {
    if (i == snapshot_.num_chunks() / 2) {
      checkpoint_files::pass(checkpoint_files::SavePoint::HalfWritten);
    }
    append(snapshot_.begin_write(i));
    snapshot_.end_write(i);
  }
  if (device_) {
    write_device(append);
  }
  append(share_.rest);
  sink->finish();
  checkpoint_files::pass(checkpoint_files::SavePoint::ShardsWritten);
  Json pieces = Json::array();
  for (const Share::Piece& piece : share_.pieces) {
    pieces.push_back(
        {piece.tensor, piece.place.offset_bytes, piece.place.begin, piece.place.count});
  }
  uint64_t attached_bytes = 0;
  for (const checkpoint_files::ManifestAttachment& attachment : attachments_) {
    attached_bytes += attachment.stored.size_bytes;
  }
  return Json{{"file", file},
              {"bytes", share_.file_bytes},
              {"attached_bytes", attached_bytes},
              {"xxh3", hash.hex()},
              {"pieces", pieces}}
      .dump();
}

void Save::write_attachments() {
  if (!info_.attachments) {
    return;
  }
  for (const auto& [name, text] : *info_.attachments) {
    const std::string file = parts_.place.attachment_file(plan_, name);
    const auto sink = parts_.place.open_shard(plan_, file, text.size());
    sink->append(std::as_bytes(std::span(text)));
    sink->finish();
    attachments_.push_back(
        {.name = name,
         .stored = {.file = file, .size_bytes = text.size(), .xxh3 = base::xxh3_hex(text)}});
  }
}

checkpoint_files::Manifest Save::make_manifest(const std::vector<std::string>& reports) const {
  checkpoint_files::Manifest manifest{.step = plan_.step,
                                      .sequence = plan_.sequence,
                                      .created_s = created_s_,
                                      .score = info_.score,
                                      .values = info_.values,
                                      .shards = {},
                                      .tensors = {},
                                      .attachments = attachments_};
  for (const SavedTensor& tensor : tensors_) {
    manifest.tensors.push_back(
        {.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape, .pieces = {}});
  }
  for (const std::string& text : reports) {
    const Json report = Json::parse(text);
    for (const Json& piece : report.at("pieces")) {
      manifest.tensors.at(piece.at(0).get<size_t>())
          .pieces.push_back({.shard = manifest.shards.size(),
                             .offset_bytes = piece.at(1).get<uint64_t>(),
                             .begin = piece.at(2).get<uint64_t>(),
                             .count = piece.at(3).get<uint64_t>()});
    }
    manifest.shards.push_back({.file = report.at("file").get<std::string>(),
                               .size_bytes = report.at("bytes").get<uint64_t>(),
                               .xxh3 = report.at("xxh3").get<std::string>()});
  }
  return manifest;
}

}  // namespace lockstep::checkpoint
