#include "launch/job_message.h"

#include <array>

#include <nlohmann/json.hpp>

#include <lockstep/base/error.h>

namespace lockstep {

namespace {

using Json = nlohmann::json;

constexpr std::array kMemberWords{"join",   "started", "cannot_start", "ended",
                                  "failed", "idle",    "signal",       "beat"};
constexpr std::array kHeadWords{"refused", "start", "stop", "kill", "checkpoint", "end", "beat"};

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

// What a program printed need not be UTF-8; a letter replaced is better than a message lost.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json info_json(const MemberInfo& info) {
  return {{"host", info.host},
          {"address", info.address},
          {"pid", info.pid},
          {"node_rank", info.node_rank},
          {"num_nodes", info.num_nodes},
          {"procs_per_node", info.procs_per_node},
          {"master_port", info.master_port},
          {"what", info.what}};
}

MemberInfo info_of(const Json& json) {
  return {.host = json.at("host"),
          .address = json.at("address"),
          .pid = json.at("pid"),
          .node_rank = json.at("node_rank"),
          .num_nodes = json.at("num_nodes"),
          .procs_per_node = json.at("procs_per_node"),
          .master_port = json.at("master_port"),
          .what = json.at("what")};
}

Json assignment_json(const Assignment& place) {
  return {{"restart_count", place.restart_count}, {"first_node", place.first_node},
          {"num_nodes", place.num_nodes},         {"first_rank", place.first_rank},
          {"world_size", place.world_size},       {"store", place.store},
          {"master_addr", place.master_addr},     {"master_port", place.master_port}};
}

Assignment assignment_of(const Json& json, int64_t generation) {
  return {.generation = generation,
          .restart_count = json.at("restart_count"),
          .first_node = json.at("first_node"),
          .num_nodes = json.at("num_nodes"),
          .first_rank = json.at("first_rank"),
          .world_size = json.at("world_size"),
          .store = json.at("store"),
          .master_addr = json.at("master_addr"),
          .master_port = json.at("master_port")};
}

}  // namespace

std::string MemberMessage::to_json() const {
  Json json{{"kind", kMemberWords.at(static_cast<size_t>(kind))}, {"generation", generation}};
  if (kind == MemberSays::Join) {
    json["info"] = info_json(info);
  } else if (kind == MemberSays::Signal) {
    json["signal"] = signal;
  } else if (kind != MemberSays::Beat && kind != MemberSays::Idle) {
    json.update({{"rank", rank},
                 {"pid", pid},
                 {"code", status.code},
                 {"killed_by", status.signal},
                 {"age_ns", age.count()},
                 {"stopped", stopped},
                 {"text", text},
                 {"error", error},
                 {"log", log_folder},
                 {"log_is_whole", is_log_whole}});
  }
  return text_of(json);
}

MemberMessage MemberMessage::from_json(const std::string& text) try {
  const Json json = Json::parse(text);
  MemberMessage message{.kind = kind_of<MemberSays>(json, kMemberWords),
                        .generation = json.at("generation")};
  if (message.kind == MemberSays::Join) {
    message.info = info_of(json.at("info"));
  } else if (message.kind == MemberSays::Signal) {
    message.signal = json.at("signal");
  } else if (message.kind != MemberSays::Beat && message.kind != MemberSays::Idle) {
    message.rank = json.at("rank");
    message.pid = json.at("pid");
    message.status = {.code = json.at("code"), .signal = json.at("killed_by")};
    message.age = std::chrono::nanoseconds(json.at("age_ns").get<int64_t>());
    message.stopped = json.at("stopped");
    message.text = json.at("text");
    message.error = json.at("error");
    message.log_folder = json.at("log");
    message.is_log_whole = json.at("log_is_whole");
  }
  return message;
} catch (const Json::exception& error) {
  throw FormatError("a member of the job sent what cannot be read: {}", error.what());
}

std::string HeadMessage::to_json() const {
  Json json{{"kind", kHeadWords.at(static_cast<size_t>(kind))}, {"generation", generation}};
  if (kind == HeadSays::Start) {
    json["assignment"] = assignment_json(assignment);
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
    message.assignment = assignment_of(json.at("assignment"), message.generation);
  } else if (message.kind == HeadSays::Refused || message.kind == HeadSays::End) {
    message.code = json.at("code");
    message.text = json.at("text");
  }
  return message;
} catch (const Json::exception& error) {
  throw FormatError("the head of the job sent what cannot be read: {}", error.what());
}

}  // namespace lockstep
