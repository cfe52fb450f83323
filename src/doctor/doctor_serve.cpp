#include "doctor/doctor_serve.h"

#include <algorithm>
#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <poll.h>
#include <sstream>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <openssl/evp.h>

#include <lockstep/base/error.h>
#include <lockstep/base/version.h>

#include "base/env.h"
#include "base/secret.h"
#include "base/unique_fd.h"
#include "doctor/doctor.h"
#include "doctor/link_probe.h"
#include "remote/host_address.h"
#include "remote/remote_process.h"

namespace lockstep::doctor {

namespace {

using Json = nlohmann::json;

constexpr auto kReachTime = std::chrono::milliseconds(2000);
constexpr int64_t kMaxTimeoutMs = 60000;
constexpr size_t kMaxProgramBytes = 1u << 30;
constexpr const char* kFilePrefix = ".lockstep-doctor-";

// Identifies a program: two with the same value are the same program.
std::string build_id() {
  const std::string program = base::read_file("/proc/self/exe", kMaxProgramBytes);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(program.data(), program.size(), digest, &size, EVP_sha256(), nullptr) != 1) {
    throw IoError("cannot compute the SHA-256 of this program");
  }
  return fmt::format("{:02x}", fmt::join(digest, digest + 6, ""));
}

Json hello(const DoctorServeOptions& options) {
  const HostName name = look_up_host_name();
  Json answer{{"version", kVersion},         {"build", build_id()},         {"name", name.name},
              {"error_of_name", name.error}, {"addresses", name.addresses}, {"torch", ""}};
  if (::access(options.torch_program.c_str(), X_OK) == 0) {
    answer["torch"] = check_torch(options.torch_program).front().found;
  }
  return answer;
}

// The address that was asked for, else the one by which ssh came in ("client port server port").
std::string listening_address(const Json& request) {
  const std::string wanted = request.at("interface");
  if (!wanted.empty()) {
    std::string address =
        remote::interface_of(wanted).empty() ? remote::address_of_interface(wanted) : wanted;
    if (address.empty()) {
      throw UsageError("there is no interface {} with an address", wanted);
    }
    return address;
  }
  if (std::string address = request.at("address"); !address.empty()) {
    return address;
  }
  std::istringstream words(base::Env().text("SSH_CONNECTION").value_or(""));
  std::string client, port, server;
  words >> client >> port >> server;
  return server.empty() ? "127.0.0.1" : server;
}

ProbeTarget target_of(const Json& json) {
  return {{json.at("address"), json.at("port")}, json.at("token")};
}

// Removes the file that it made.
class SharedFile {
 public:
  explicit SharedFile(const std::string& folder)
      : path_(std::filesystem::path(folder) / (kFilePrefix + base::make_job_id())) {
    const base::UniqueFd fd = base::open_file(path_, O_WRONLY | O_CREAT | O_EXCL);
    base::write_all(fd.get(), path_.data(), path_.size());
  }
  ~SharedFile() { ::unlink(path_.c_str()); }
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// "" if the file shows up with the right text. A network file system may take seconds to show it.
std::string look_for(const std::string& file, std::chrono::milliseconds timeout) {
  const base::Deadline deadline = base::Deadline::after(timeout);
  for (;;) {
    std::string problem;
    try {
      problem = base::read_file(file, file.size()) == file ? "" : "it holds something else";
    } catch (const IoError& error) {
      problem = error.what();
    }
    pollfd input{STDIN_FILENO, 0, 0};  // for its end only
    if (problem.empty() || deadline.expired() || ::poll(&input, 1, 50) != 0) {
      return problem;
    }
  }
}

class DoctorServer {
 public:
  explicit DoctorServer(const DoctorServeOptions& options) : options_(options) {}

  Json answer(const Json& request) {
    const std::string verb = request.at("do");
    if (verb == "hello") {
      return hello(options_);
    }
    if (verb == "time") {
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      return {{"time_ns", std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()}};
    }
    if (verb == "listen") {
      const std::string address = listening_address(request);
      listener_ = std::make_unique<ProbeListener>(address, base::make_secret());
      return {{"address", address},
              {"port", listener_->endpoint().port},
              {"token", listener_->token()},
              {"interface", remote::interface_of(address)}};
    }
    if (verb == "reach") {
      std::vector<ProbeTarget> targets;
      for (const Json& target : request.at("to")) {
        targets.push_back(target_of(target));
      }
      return {{"problems", try_links(targets, kReachTime)}};
    }
    if (verb == "measure") {
      const LinkSpeed speed = measure_link(target_of(request.at("to")));
      return {{"rtt_us", speed.rtt_us}, {"gb_per_s", speed.gb_per_s}};
    }
    if (verb == "write") {
      file_.emplace(request.at("folder").get<std::string>());
      return {{"file", file_->path()}};
    }
    if (verb == "see") {
      const int64_t timeout_ms = std::min(request.at("timeout_ms").get<int64_t>(), kMaxTimeoutMs);
      return {{"problem", look_for(request.at("file"), std::chrono::milliseconds(timeout_ms))}};
    }
    throw UsageError("there is no request {}", verb);
  }

 private:
  const DoctorServeOptions& options_;
  std::unique_ptr<ProbeListener> listener_;
  std::optional<SharedFile> file_;
};

}  // namespace

int serve_doctor(const DoctorServeOptions& options) {
  remote::announce_ready();
  DoctorServer server(options);
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      answer = server.answer(Json::parse(line));
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    const std::string text = answer.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    base::write_all(STDOUT_FILENO, text.data(), text.size());
  }
  return 0;
}

}  // namespace lockstep::doctor
