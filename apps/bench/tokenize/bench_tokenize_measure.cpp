#include <cstring>
#include <ctime>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/tokenizers/tokenizer.h>

#include "bench/peer_process.h"
#include "bench/tokenize/bench_tokenize.h"
#include "memory_file.h"
#include "tokenize_peer.h"

namespace lockstep::app {

namespace {

using Ids = std::vector<int32_t>;

struct Encoded {
  double seconds = 0;  // of CPU time
  Ids ids;             // each text's ended by -1
};

// Counts all threads of this process: what other programs take is not in it.
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

// The peer's process. Like this one, it lives through all rounds, and has encoded every text once
// before the first of them; it times only its encoding.
class Peer {
 public:
  explicit Peer(const TokenizeBench& bench)
      : script_("tokenize_peer.py", kTokenizePeerScript), texts_("texts", joined(bench.texts)) {
    process_.start({bench.python, script_.path(), bench.vocabulary, texts_.path()},
                   {{"RAYON_NUM_THREADS", "1"}, {"TOKENIZERS_PARALLELISM", "false"}});
    if (process_.answer() != "ready") {
      fail();
    }
  }

  Encoded encode() {
    process_.say("go\n");
    std::istringstream words(process_.answer());
    Encoded encoded;
    size_t num_ids = 0;
    if (!(words >> encoded.seconds >> num_ids)) {
      fail();
    }
    const std::string bytes = process_.bytes(num_ids * sizeof(int32_t));
    if (bytes.size() != num_ids * sizeof(int32_t)) {
      fail();
    }
    encoded.ids.resize(num_ids);
    std::memcpy(encoded.ids.data(), bytes.data(), bytes.size());
    return encoded;
  }

 private:
  // Its last words are on standard error, which it shares with this process.
  [[noreturn]] void fail() {
    throw IoError("bench tokenize: the peer ended with {} before it had answered",
                  process_.ending());
  }

  static std::string joined(const std::vector<std::string_view>& texts) {
    std::string all;
    for (const std::string_view text : texts) {
      all += text;
      all += '\0';
    }
    return all;
  }

  MemoryFile script_;
  MemoryFile texts_;
  PeerProcess process_;
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
