#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "base/process/process.h"
#include "bench/tokenize/bench_tokenize.h"
#include "memory_file.h"
#include "tokenize_peer.h"

namespace lockstep::app {

namespace {

using Ids = std::vector<int32_t>;

constexpr auto kPatience = std::chrono::minutes(10);

struct Encoded {
  double seconds = 0;  // of CPU time
  Ids ids;             // each text's ended by -1
};

// Of this process, all its threads: what other programs take is not in it.
double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Encoded encode_here(const Tokenizer& tokenizer, const std::vector<std::string_view>& texts) {
  std::vector<Ids> all;
  all.reserve(texts.size());
  const double begin = cpu_seconds();
  for (const std::string_view text : texts) {
    all.push_back(tokenizer.encode(text, {.add_special_tokens = false}));
  }
  Encoded encoded{.seconds = cpu_seconds() - begin};
  for (const Ids& ids : all) {
    encoded.ids.insert(encoded.ids.end(), ids.begin(), ids.end());
    encoded.ids.push_back(-1);
  }
  return encoded;
}

// The peer's process; it reads the texts anew and times only its encoding.
class Peer {
 public:
  explicit Peer(const TokenizeBench& bench)
      : python_(bench.python),
        vocabulary_(bench.vocabulary),
        script_("tokenize_peer.py", kTokenizePeerScript),
        texts_("texts", joined(bench.texts)) {}

  Encoded encode() const {
    const base::Output output = base::run_process(
        {.argv = {python_, script_.path(), vocabulary_, texts_.path()},
         .env = {{"RAYON_NUM_THREADS", "1"}, {"TOKENIZERS_PARALLELISM", "false"}}},
        base::Deadline::after(kPatience));
    const size_t line = output.out.find('\n');
    if (!output.status.ok() || line == std::string::npos) {
      throw IoError("bench tokenize: the peer ended with {}{}; its last words:\n{}",
                    output.status.text(), output.timed_out ? ", too slow" : "", output.err);
    }
    Encoded encoded{.seconds = std::strtod(output.out.c_str(), nullptr)};
    encoded.ids.resize((output.out.size() - line - 1) / sizeof(int32_t));
    std::memcpy(encoded.ids.data(), output.out.data() + line + 1,
                encoded.ids.size() * sizeof(int32_t));
    return encoded;
  }

 private:
  static std::string joined(const std::vector<std::string_view>& texts) {
    std::string all;
    for (const std::string_view text : texts) {
      all += text;
      all += '\0';
    }
    return all;
  }

  std::string python_;
  std::string vocabulary_;
  MemoryFile script_;
  MemoryFile texts_;
};

void check_same(const Ids& ours, const Ids& peers) {
  if (ours == peers) {
    return;
  }
  size_t at = 0;
  while (at < ours.size() && at < peers.size() && ours[at] == peers[at]) {
    ++at;
  }
  const auto shown = [&](const Ids& ids) {
    return at < ids.size() ? std::to_string(ids[at]) : std::string("the end");
  };
  throw IoError("bench tokenize: id {} (of {}) is {} here and {} under the peer", at, ours.size(),
                shown(ours), shown(peers));
}

}  // namespace

TokenizeFigures measure_tokenize(const TokenizeBench& bench) {
  const Tokenizer tokenizer = load_tokenizer(bench.vocabulary);
  std::optional<Peer> peer;
  if (!bench.python.empty()) {
    peer.emplace(bench);
  }
  TokenizeFigures figures{.kind = tokenizer.kind()};
  encode_here(tokenizer, bench.texts);  // warm
  for (int i = 0; i < bench.repeats; ++i) {
    const Encoded ours = encode_here(tokenizer, bench.texts);
    figures.lockstep_cpu_s.push_back(ours.seconds);
    figures.num_tokens = static_cast<int64_t>(ours.ids.size() - bench.texts.size());
    if (peer) {
      const Encoded peers = peer->encode();
      check_same(ours.ids, peers.ids);
      figures.peer_cpu_s.push_back(peers.seconds);
    }
  }
  return figures;
}

}  // namespace lockstep::app
