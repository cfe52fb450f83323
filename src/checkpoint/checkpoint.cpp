#include <algorithm>
#include <unordered_map>

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint.h>

#include "base/hash.h"
#include "checkpoint_files/checkpoint_list.h"
#include "comm/agree.h"
#include "device/memory.h"
#include "weights/catalog.h"
#include "weights/scalar_type.h"

namespace lockstep {

struct OpenCheckpoint {
  std::string path;
  checkpoint_files::Manifest manifest;
  CheckpointInfo info;
  std::vector<WeightInfo> tensors;
  std::unordered_map<std::string_view, size_t> index;
  std::shared_ptr<const weights::WeightCatalog>
      pieces;  // each a tensor of its own: see piece_name()
};

namespace {

using Json = nlohmann::json;

std::string piece_name(size_t tensor, size_t piece) {
  return fmt::format("{}.{}", tensor, piece);
}

std::shared_ptr<const weights::WeightCatalog> catalog_of(
    const std::string& path, const checkpoint_files::Manifest& manifest) {
  auto catalog = std::make_shared<weights::WeightCatalog>();
  catalog->location = path;
  for (const checkpoint_files::ManifestShard& shard : manifest.shards) {
    const std::string file = checkpoint_files::joined_location(path, shard.file);
    catalog->files.push_back(
        {.location = file, .opened = file, .size_bytes = shard.size_bytes, .checksums = {}});
  }
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const checkpoint_files::ManifestTensor& tensor = manifest.tensors[i];
    for (size_t k = 0; k < tensor.pieces.size(); ++k) {
      const checkpoint_files::ManifestPiece& piece = tensor.pieces[k];
      const auto unit = static_cast<uint64_t>(formats::bits_of(tensor.dtype) / 8);
      catalog->tensors.push_back({.info = {.name = piece_name(i, k),
                                           .dtype = tensor.dtype,
                                           .shape = {static_cast<int64_t>(piece.count)},
                                           .strides = {},
                                           .offset_bytes = piece.offset_bytes,
                                           .size_bytes = piece.count * unit},
                                  .file = piece.shard});
    }
  }
  catalog->finish();
  return catalog;
}

Checkpoint open(const std::string& path, const std::string& manifest) {
  auto open = std::make_shared<OpenCheckpoint>();
  open->path = path;
  open->manifest = checkpoint_files::parse_manifest(path, manifest);
  open->info = {.step = open->manifest.step,
                .values = open->manifest.values,
                .score = open->manifest.score,
                .attachments = nullptr};
  for (const checkpoint_files::ManifestTensor& tensor : open->manifest.tensors) {
    open->index[tensor.name] = open->tensors.size();
    open->tensors.push_back({.name = tensor.name,
                             .dtype = weights::scalar_type_of(tensor.dtype),
                             .shape = tensor.shape,
                             .bytes = static_cast<int64_t>(
                                 formats::checked_bytes(tensor.dtype, tensor.shape).value_or(0))});
  }
  open->pieces = catalog_of(path, open->manifest);
  return Checkpoint(std::move(open));
}

// Collective: each rank reads its part of the shards. Empty: it verifies.
std::string verify_together(const std::string& path, const std::string& text, Group& group) {
  const std::string failure = comm::failure_of([&] {
    const checkpoint_files::Manifest manifest = checkpoint_files::parse_manifest(path, text);
    for (auto i = static_cast<size_t>(group.rank()); i < manifest.num_files();
         i += static_cast<size_t>(group.size())) {
      checkpoint_files::verify_file(path, manifest, i);
    }
  });
  return comm::first_text(comm::gather_texts(group, failure));
}

Json from_rank0(Group& group, const Json& json) {
  return Json::parse(comm::broadcast_text(group, group.rank() == 0 ? json.dump() : ""));
}

// It was verified when the checkpoint was found, and is small: what is used is compared once more.
std::string read_verified(const std::string& path, const checkpoint_files::ManifestShard& stored) {
  const std::string file = checkpoint_files::joined_location(path, stored.file);
  const auto source = storage::open_source(file);
  if (source->size() != stored.size_bytes) {
    throw FormatError("{}: {} bytes, and {} were written", file, source->size(), stored.size_bytes);
  }
  std::string text = source->read_text(0, source->size());
  if (const std::string found = base::xxh3_hex(text); found != stored.xxh3) {
    throw FormatError("{}: damaged: its XXH3 is {}, and {} was written", file, found, stored.xxh3);
  }
  return text;
}

void check_target(const OpenCheckpoint& open, const WeightTarget& target) {
  const auto found = open.index.find(target.name);
  if (found == open.index.end()) {
    throw UsageError("{}: no tensor {} among its {}", open.path, base::shown(target.name),
                     open.tensors.size());
  }
  const checkpoint_files::ManifestTensor& tensor = open.manifest.tensors[found->second];
  const at::Tensor& own = target.tensor;
  if (!device::is_dense(own)) {
    throw UsageError("{}: tensor {} can be loaded only into a dense tensor of the CPU or a GPU",
                     open.path, base::shown(target.name));
  }
  if (own.scalar_type() != weights::scalar_type_of(tensor.dtype) ||
      own.sizes() != at::IntArrayRef(tensor.shape)) {
    throw UsageError("{}: tensor {} is {}, and the one to be filled is {} [{}]", open.path,
                     base::shown(target.name), formats::to_string(tensor.dtype, tensor.shape),
                     toString(own.scalar_type()), fmt::join(own.sizes(), ", "));
  }
}

at::Tensor memory_like(const at::Tensor& tensor) {
  return device::with_memory(
      {.user = "checkpoint", .device = tensor.device(), .bytes = tensor.nbytes()}, [&] {
        return at::empty(tensor.sizes(),
                         at::TensorOptions(tensor.scalar_type()).device(tensor.device()));
      });
}

// What is to be loaded for a target; one that is not contiguous is copied to, second to first.
void add_pieces(const OpenCheckpoint& open, const WeightTarget& target,
                std::vector<WeightTarget>& pieces,
                std::vector<std::pair<at::Tensor, at::Tensor>>& copies) {
  at::Tensor whole = target.tensor.detach();
  if (!whole.is_contiguous()) {
    copies.emplace_back(whole, memory_like(whole));
    whole = copies.back().second;
  }
  const at::Tensor flat = whole.view({-1});
  const size_t which = open.index.at(target.name);
  const auto& places = open.manifest.tensors[which].pieces;
  for (size_t k = 0; k < places.size(); ++k) {
    pieces.push_back({piece_name(which, k), flat.narrow(0, static_cast<int64_t>(places[k].begin),
                                                        static_cast<int64_t>(places[k].count))});
  }
}

}  // namespace

const CheckpointInfo& Checkpoint::info() const {
  return open_->info;
}

const std::string& Checkpoint::path() const {
  return open_->path;
}

const std::vector<WeightInfo>& Checkpoint::tensors() const {
  return open_->tensors;
}

const WeightInfo* Checkpoint::find(std::string_view name) const {
  const auto found = open_->index.find(name);
  return found == open_->index.end() ? nullptr : &open_->tensors[found->second];
}

std::vector<std::string> Checkpoint::attachments() const {
  std::vector<std::string> names;
  for (const checkpoint_files::ManifestAttachment& attachment : open_->manifest.attachments) {
    names.push_back(attachment.name);
  }
  return names;
}

std::string Checkpoint::read_attachment(const std::string& name, Group& group) const {
  std::string text;
  comm::throw_together(
      group, comm::caught([&] {
        const auto& all = open_->manifest.attachments;
        const auto found = std::find_if(
            all.begin(), all.end(),
            [&](const checkpoint_files::ManifestAttachment& one) { return one.name == name; });
        if (found == all.end()) {
          throw UsageError("{}: no attachment {} among its {}", open_->path, base::shown(name),
                           all.size());
        }
        if (group.rank() == 0) {
          text = read_verified(open_->path, found->stored);
        }
      }));
  return comm::broadcast_text(group, text);
}

void Checkpoint::load(std::span<const WeightTarget> targets, Group& group) const {
  std::vector<WeightTarget> pieces;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // of those that are not contiguous
  comm::throw_together(group, comm::caught([&] {
                         for (const WeightTarget& target : targets) {
                           check_target(*open_, target);
                         }
                         for (const WeightTarget& target : targets) {
                           add_pieces(*open_, target, pieces, copies);
                         }
                       }));
  Weights weights(open_->pieces);
  load_weights(weights, pieces, group);
  for (const auto& [to, from] : copies) {
    to.copy_(from);
  }
}

std::optional<Checkpoint> find_checkpoint(const std::string& location, Group& group) {
  checkpoint_files::CheckpointList list;
  comm::throw_together(group, comm::caught([&] {
                         if (group.rank() == 0) {
                           list = checkpoint_files::list_checkpoints(location);
                         }
                       }));
  const auto num_entries =
      static_cast<size_t>(from_rank0(group, list.entries.size()).get<size_t>());
  const bool is_single = from_rank0(group, list.is_single).get<bool>();
  std::string first_problem;
  for (size_t i = 0; i < num_entries; ++i) {
    const checkpoint_files::ListedCheckpoint entry =
        group.rank() == 0 ? list.entries[i] : checkpoint_files::ListedCheckpoint();
    const Json told =
        from_rank0(group, {entry.path, entry.problem, entry.problem.empty() ? entry.text : ""});
    const auto path = told.at(0).get<std::string>();
    auto problem = told.at(1).get<std::string>();
    const auto text = told.at(2).get<std::string>();
    problem = problem.empty() ? verify_together(path, text, group) : problem;
    if (problem.empty()) {
      return open(path, text);
    }
    if (is_single) {
      throw FormatError(problem);
    }
    if (group.rank() == 0) {
      log::warn("checkpoint", "{} is not used: {}", path, problem);
    }
    first_problem = first_problem.empty() ? problem : first_problem;
  }
  if (num_entries > 0) {
    throw IoError("{}: none of its {} checkpoints verifies; of the newest: {}", location,
                  num_entries, first_problem);
  }
  return std::nullopt;
}

}  // namespace lockstep
