#include "launch/job/job_message.h"

#include <array>
#include <utility>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

namespace lockstep::launch {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemberInfo, host, address, pid, node_rank, num_nodes,
                                   procs_per_node, master_port, what, is_staging)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Assignment, restart_count, first_node, num_nodes, first_rank,
                                   world_size, store, master_addr, master_port, run)

namespace {

using Json = nlohmann::json;

constexpr std::array kMemberWords{"join", "started", "cannot_start", "ended",  "failed",
                                  "idle", "signal",  "beat",         "staged", "cannot_stage"};
constexpr std::array kHeadWords{"refused",    "start", "stop", "kill",
                                "checkpoint", "hurry", "end",  "beat"};

template <typename Kind, size_t N>
Kind kind_of(const Json& json, const std::array<const char*, N>& words) {
  const std::string word = json.at("kind");
  for (size_t i = 0; i < N; ++i) {
    if (word == words[i]) {
      return static_cast<Kind>(i);
    }
  }
  throw FormatError("a message of the job is of the unknown kind {}", word);
}

bool has_fields(MemberSays kind) {
  return kind != MemberSays::Beat && kind != MemberSays::Idle && kind != MemberSays::Staged;
}

// What is not the end of a rank has the fields of one all the same.
RankEnd end_fields(const MemberMessage& message) {
  return message.kind == MemberSays::Ended
             ? message.end
             : RankEnd{.status = message.status, .last_lines = message.text};
}

void write_end(const RankEnd& end, Json& json) {
  json.update({{"code", end.status.code},
               {"killed_by", end.status.signal},
               {"stopped", end.stopped},
               {"text", end.last_lines},
               {"error", end.error},
               {"log", end.log_folder},
               {"log_is_whole", end.is_log_whole}});
}

RankEnd read_end(const Json& json) {
  return {.status = {.code = json.at("code"), .signal = json.at("killed_by")},
          .stopped = json.at("stopped"),
          .last_lines = json.at("text"),
          .error = json.at("error"),
          .log_folder = json.at("log"),
          .is_log_whole = json.at("log_is_whole")};
}

// What a program printed need not be UTF-8; a letter replaced is better than a message lost.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string MemberMessage::to_json() const {
  Json json{{"kind", kMemberWords.at(static_cast<size_t>(kind))}, {"generation", generation}};
  if (kind == MemberSays::Join) {
    json["info"] = info;
  } else if (kind == MemberSays::Signal) {
    json["signal"] = signal;
  } else if (has_fields(kind)) {
    json.update({{"rank", rank}, {"pid", pid}, {"age_ns", age.count()}});
    write_end(end_fields(*this), json);
  }
  return text_of(json);
}

MemberMessage MemberMessage::from_json(const std::string& text) try {
  const Json json = Json::parse(text);
  MemberMessage message{.kind = kind_of<MemberSays>(json, kMemberWords),
                        .generation = json.at("generation")};
  if (message.kind == MemberSays::Join) {
    message.info = json.at("info");
  } else if (message.kind == MemberSays::Signal) {
    message.signal = json.at("signal");
  } else if (has_fields(message.kind)) {
    message.rank = json.at("rank");
    message.pid = json.at("pid");
    message.age = std::chrono::nanoseconds(json.at("age_ns").get<int64_t>());
    RankEnd end = read_end(json);
    if (message.kind == MemberSays::Ended) {
      message.end = std::move(end);
    } else {
      message.status = end.status;
      message.text = std::move(end.last_lines);
    }
  }
  return message;
} catch (const Json::exception& error) {
  throw FormatError("a member of the job sent what cannot be read: {}", error.what());
}

std::string HeadMessage::to_json() const {
  Json json{{"kind", kHeadWords.at(static_cast<size_t>(kind))}, {"generation", generation}};
  if (kind == HeadSays::Start) {
    json["assignment"] = assignment;
  } else if (kind == HeadSays::Stop) {
    json["signal"] = signal;
  } else if (kind == HeadSays::Refused || kind == HeadSays::End) {
    json.update({{"code", code}, {"text", text}});
  }
  return text_of(json);
}

HeadMessage HeadMessage::from_json(const std::string& text) try {
  const Json json = Json::parse(text);
  HeadMessage message{.kind = kind_of<HeadSays>(json, kHeadWords),
                      .generation = json.at("generation")};
  if (message.kind == HeadSays::Start) {
    message.assignment = json.at("assignment");
    message.assignment.generation = message.generation;
  } else if (message.kind == HeadSays::Stop) {
    message.signal = json.at("signal");
  } else if (message.kind == HeadSays::Refused || message.kind == HeadSays::End) {
    message.code = json.at("code");
    message.text = json.at("text");
  }
  return message;
} catch (const Json::exception& error) {
  throw FormatError("the head of the job sent what cannot be read: {}", error.what());
}

}  // namespace lockstep::launch
