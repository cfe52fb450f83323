#include "support/ssh_server.h"

#include <filesystem>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/unique_fd.h"

namespace lockstep::test {

namespace {

constexpr auto kPatience = std::chrono::seconds(30);
constexpr const char* kServer = "/usr/sbin/sshd";  // it insists on its full path

void run_tool(const base::ProcessOptions& options) {
  const base::Output output = base::run_process(options, base::Deadline::after(kPatience));
  if (!output.status.ok()) {
    throw IoError("`{}` failed: {}", fmt::join(options.argv, " "), output.err);
  }
}

void make_key(const std::string& path) {
  run_tool({.argv = {"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path}});
}

// The host's /etc/passwd, but root has an empty home and a plain shell: start-up files of the real
// one would be read by every command over ssh, and cut off in the middle when a test kills it.
std::string passwd_with_home(const std::string& home) {
  std::istringstream lines(base::read_file("/etc/passwd"));
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    text += line.starts_with("root:") ? fmt::format("root:x:0:0:root:{}:/bin/sh", home) : line;
    text += '\n';
  }
  return text;
}

std::string client_config(const std::string& folder, const std::string& key) {
  return fmt::format(
      "Host *\n"
      "  User root\n"
      "  IdentityFile {1}\n"
      "  IdentitiesOnly yes\n"
      "  IdentityAgent none\n"
      "  UserKnownHostsFile {0}/known_hosts\n"
      "  GlobalKnownHostsFile none\n"
      "  StrictHostKeyChecking yes\n",
      folder, key);
}

}  // namespace

SshServers::SshServers(const TestNodes& nodes, const std::string& folder)
    : nodes_(nodes),
      folder_(folder),
      config_(folder + "/config"),
      wrong_config_(folder + "/wrong_config") {
  for (const char* name : {"/user_key", "/wrong_key", "/host_key"}) {
    make_key(folder_ + name);
  }
  base::write_file_atomically(config_, client_config(folder_, folder_ + "/user_key"));
  base::write_file_atomically(wrong_config_, client_config(folder_, folder_ + "/wrong_key"));
  base::write_file_atomically(folder_ + "/authorized_keys",
                              base::read_file(folder_ + "/user_key.pub"));
  std::string known;
  for (int node = 0; node < nodes_.size(); ++node) {
    known += fmt::format("{},{} {}", nodes_.host_name(node), nodes_.address(node),
                         base::read_file(folder_ + "/host_key.pub"));
  }
  base::write_file_atomically(folder_ + "/known_hosts", known);
  std::filesystem::create_directory(folder_ + "/home");
  base::write_file_atomically(folder_ + "/passwd", passwd_with_home(folder_ + "/home"));
  for (int node = 0; node < nodes_.size(); ++node) {
    run_tool(
        nodes_.inside(node, {.argv = {"mount", "--bind", folder_ + "/passwd", "/etc/passwd"}}));
    start(node);
  }
}

void SshServers::start(int node) {
  const std::string config = fmt::format("{}/sshd_config_{}", folder_, node);
  const std::string log = fmt::format("{}/sshd_log_{}", folder_, node);
  base::write_file_atomically(config, fmt::format("ListenAddress {}\n"
                                                  "HostKey {}/host_key\n"
                                                  "AuthorizedKeysFile {}/authorized_keys\n"
                                                  "StrictModes no\n"  // /tmp is writable by all
                                                  "PermitRootLogin prohibit-password\n"
                                                  "PasswordAuthentication no\n"
                                                  "KbdInteractiveAuthentication no\n"
                                                  "PermitUserRC no\n"
                                                  "UsePAM no\n"
                                                  "PidFile none\n",
                                                  nodes_.address(node), folder_, folder_));
  servers_.emplace_back(
      nodes_.inside(node, {.argv = {kServer, "-D", "-f", config, "-E", log}, .new_group = true}));
  const base::Deadline deadline = base::Deadline::after(kPatience);
  const auto text = [&log] { return std::filesystem::exists(log) ? base::read_file(log) : ""; };
  while (text().find("Server listening") == std::string::npos) {
    if (servers_.back().poll() || deadline.expired()) {
      throw IoError("the ssh server of node {} does not listen: {}", node, text());
    }
    ::usleep(2000);
  }
}

std::vector<std::string> SshServers::client_in(int node) const {
  return nodes_.inside(node, {.argv = client()}).argv;
}

std::optional<std::string> ssh_refusal() {
  for (const char* program : {kServer, "/usr/bin/ssh", "/usr/bin/ssh-keygen"}) {
    if (::access(program, X_OK) != 0) {
      return fmt::format("{} is missing: apt-get install openssh-server openssh-client", program);
    }
  }
  return nodes_refusal();
}

}  // namespace lockstep::test
