// `split`: which pictures each rank reads, and that together they read each one.

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/torch.h>

#include <lockstep/data/distributed_sampler.h>

#include "explain/gather.h"
#include "explain/lesson.h"

namespace lockstep::explain {
namespace {

using Indices = std::vector<int64_t>;
using Json = nlohmann::ordered_json;

constexpr int64_t kMany = 400;
constexpr int64_t kHundred = 100;
constexpr int64_t kUneven = 10;
constexpr size_t kShownPictures = 5;  // pictures of each rank in the tables

// How pictures were dealt: what each rank reported, and how often the ranks together took each.
struct Deal {
  std::vector<Indices> parts;  // [rank], numbered from `first`
  Indices counts;              // [picture]
  int64_t first = 0;

  int64_t fewest() const { return *std::min_element(counts.begin(), counts.end()); }
  int64_t most() const { return *std::max_element(counts.begin(), counts.end()); }

  Indices dealt(int64_t times) const {
    Indices found;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == times) {
        found.push_back(first + static_cast<int64_t>(i));
      }
    }
    return found;
  }

  Json data() const {
    return {{"pictures", counts.size()},
            {"first", first},
            {"parts", parts},
            {"each_once", fewest() == 1 && most() == 1}};
  }
};

// Collective: reports this rank's part, numbered from `first`, and adds up how often each was
// taken.
Deal report_part(Group& group, int64_t num_pictures, const Indices& mine, int64_t first = 0) {
  const at::Tensor part = torch::tensor(mine, torch::kInt64);
  const at::Tensor counts = torch::zeros({num_pictures}, torch::kInt64);
  counts.index_add_(0, part - first, torch::ones_like(part));
  group.all_reduce(counts);
  Deal deal{.counts = as_integers(counts), .first = first};
  const at::Tensor parts = gather(group, part);
  for (int64_t rank = 0; rank < group.size(); ++rank) {
    deal.parts.push_back(as_integers(parts[rank]));
  }
  return deal;
}

Deal deal_blocks(Group& group, int64_t num_pictures) {
  const int64_t length = num_pictures / group.size();
  Indices mine;
  for (int64_t i = 0; i < length; ++i) {
    mine.push_back(group.rank() * length + i + 1);
  }
  return report_part(group, num_pictures, mine, 1);
}

Deal deal_stride(Group& group, int64_t num_pictures) {
  Indices mine;
  for (int64_t i = group.rank(); i < num_pictures; i += group.size()) {
    mine.push_back(i);
  }
  return report_part(group, num_pictures, mine);
}

Deal deal_sampler(Group& group, SamplerOptions options, int64_t epoch = 0) {
  options.num_ranks = group.size();
  options.rank = group.rank();
  return report_part(group, options.num_samples, DistributedSampler(options).indices(epoch));
}

// "1 - 100", "0, 4, 8" or "0, 4, 8, 12, 16, ... 396".
std::string shorten(const Indices& part) {
  const bool is_range = part.back() - part.front() + 1 == std::ssize(part) &&
                        std::is_sorted(part.begin(), part.end());
  if (is_range) {
    return fmt::format("{} - {}", part.front(), part.back());
  }
  if (part.size() <= kShownPictures + 1) {
    return fmt::format("{}", fmt::join(part, ", "));
  }
  return fmt::format("{}, ... {}", fmt::join(part.begin(), part.begin() + kShownPictures, ", "),
                     part.back());
}

// One line per rank, one column (with its name) per deal.
Table deal_table(const Speaker& say,
                 const std::vector<std::pair<std::string, const Deal*>>& deals) {
  Table table{.header = {say("rank")}};
  for (const auto& [name, deal] : deals) {
    table.header.insert(table.header.end(), {name, say("count")});
  }
  for (size_t rank = 0; rank < deals.front().second->parts.size(); ++rank) {
    table.rows.push_back({std::to_string(rank)});
    for (const auto& [name, deal] : deals) {
      const Indices& part = deal->parts[rank];
      table.rows.back().push_back(shorten(part));
      table.rows.back().push_back(std::to_string(part.size()));
    }
  }
  return table;
}

int64_t num_moved(const Deal& before, const Deal& after) {
  int64_t moved = 0;
  for (size_t rank = 0; rank < before.parts.size(); ++rank) {
    for (const int64_t picture : before.parts[rank]) {
      const Indices& now = after.parts[rank];
      moved += std::find(now.begin(), now.end(), picture) == now.end() ? 1 : 0;
    }
  }
  return moved;
}

void add_blocks_and_stride(Group& group, const Speaker& say, Report& report) {
  const Deal blocks_many = deal_blocks(group, kMany);
  const Deal blocks_hundred = deal_blocks(group, kHundred);
  const Deal stride_many = deal_stride(group, kMany);
  const Deal stride_hundred = deal_stride(group, kHundred);
  const auto add = [&](std::string sentence, const Deal& many, const Deal& hundred) {
    report.steps.push_back(
        {.sentence = std::move(sentence),
         .table = deal_table(say, {{say("of", kMany), &many}, {say("of", kHundred), &hundred}})});
    report.steps.push_back({.sentence = say("once", std::min(many.fewest(), hundred.fewest()),
                                            std::max(many.most(), hundred.most()))});
  };
  add(say("blocks"), blocks_many, blocks_hundred);
  add(say("stride", group.size(), 2 * group.size()), stride_many, stride_hundred);
  report.steps.push_back({.sentence = say("why")});
  report.data["blocks"] = {blocks_many.data(), blocks_hundred.data()};
  report.data["stride"] = {stride_many.data(), stride_hundred.data()};
}

void add_sampler(Group& group, const Speaker& say, Report& report) {
  const Deal epoch_0 = deal_sampler(group, {.num_samples = kHundred}, 0);
  const Deal epoch_1 = deal_sampler(group, {.num_samples = kHundred}, 1);
  const Deal plain = deal_sampler(group, {.num_samples = kHundred, .shuffle = false});
  const bool plain_is_stride = plain.parts == deal_stride(group, kHundred).parts;
  report.steps.push_back(
      {.sentence = say("sampler", kHundred, num_moved(epoch_0, epoch_1)),
       .table = deal_table(say, {{say("epoch", 0), &epoch_0}, {say("epoch", 1), &epoch_1}})});
  report.steps.push_back({.sentence = say("once", std::min(epoch_0.fewest(), epoch_1.fewest()),
                                          std::max(epoch_0.most(), epoch_1.most()))});
  report.steps.push_back({.sentence = say(plain_is_stride ? "plain_same" : "plain_differ")});
  report.data["sampler"] = {{"seed", SamplerOptions{}.seed},
                            {"epoch_0", epoch_0.data()},
                            {"epoch_1", epoch_1.data()},
                            {"without_shuffle_is_stride", plain_is_stride}};
}

void add_uneven(Group& group, const Speaker& say, Report& report) {
  const Deal wrapped = deal_sampler(group, {.num_samples = kUneven, .shuffle = false});
  const Deal dropped =
      deal_sampler(group, {.num_samples = kUneven, .shuffle = false, .drop_last = true});
  report.steps.push_back({.sentence = say("uneven", kUneven, group.size(),
                                          fmt::format("{}", fmt::join(wrapped.dealt(2), ", "))),
                          .table = deal_table(say, {{say("pictures"), &wrapped}})});
  report.steps.push_back(
      {.sentence = say("drop", fmt::format("{}", fmt::join(dropped.dealt(0), ", "))),
       .table = deal_table(say, {{say("pictures"), &dropped}})});
  report.data["uneven"] = {{"pictures", kUneven},
                           {"parts", wrapped.parts},
                           {"dealt_twice", wrapped.dealt(2)},
                           {"drop_last_parts", dropped.parts},
                           {"left_out", dropped.dealt(0)}};
}

}  // namespace

Report run_split(Group& group, const LessonOptions& options) {
  require_lesson_ranks(group, "split");
  const Speaker say(split_phrases(), options.language);
  Report report = begin_report(group, "split", say("title"));
  add_blocks_and_stride(group, say, report);
  add_sampler(group, say, report);
  add_uneven(group, say, report);
  return report;
}

}  // namespace lockstep::explain
