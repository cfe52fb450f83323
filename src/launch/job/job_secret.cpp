#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/secret.h"
#include "base/unique_fd.h"
#include "launch/job/rendezvous.h"

namespace lockstep::launch {

namespace {

constexpr size_t kMaxSecretBytes = 4096;

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.pop_back();
  }
  return text;
}

void check_strength(const std::string& secret, const std::string& what, const std::string& way) {
  if (const std::string weakness = base::secret_weakness(secret); !weakness.empty()) {
    throw UsageError(
        "{} can be guessed by who listens to the network: {}, and {} bits are needed; {}", what,
        weakness, base::kMinSecretBits, way);
  }
}

std::string read_secret(const std::string& path) {
  const base::UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    throw UsageError("cannot read the secret {}: {}", path, base::errno_text(errno));
  }
  if (!S_ISREG(info.st_mode) || (info.st_mode & 077) != 0 || info.st_uid != ::geteuid()) {
    throw UsageError("the secret {} must be a file that only you can read: chmod 600 {}", path,
                     path);
  }
  const std::string secret = trimmed(base::read_file(path, kMaxSecretBytes));
  check_strength(secret, "the secret " + path,
                 fmt::format("make one: openssl rand -hex 32 > {}", path));
  return secret;
}

std::string key_path(const base::Env& env) {
  const auto home = env.text("HOME");
  if (const auto config = env.text("XDG_CONFIG_HOME")) {
    return *config + "/lockstep/key";
  }
  if (!home) {
    throw UsageError(
        "the nodes of a job share a secret, and there is no HOME to keep it in: set "
        "LOCKSTEP_JOB_SECRET to the same random text on every node, or use --secret-file");
  }
  return *home + "/.config/lockstep/key";
}

// Whole or not at all, and never twice: nodes that share a home may come here together.
void make_key(const std::string& path) {
  std::error_code folder_error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), folder_error);
  const std::string draft = fmt::format("{}.{}", path, base::make_job_id());
  const std::string key = base::make_secret() + "\n";
  const base::UniqueFd fd(::open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) {
    throw UsageError(
        "cannot make the key {} that your jobs' secrets come from: {}; set LOCKSTEP_JOB_SECRET to "
        "the same random text on every node, or use --secret-file",
        path, folder_error ? folder_error.message() : base::errno_text(errno));
  }
  base::write_all(fd.get(), key.data(), key.size());
  ::fsync(fd.get());
  const bool is_made = ::link(draft.c_str(), path.c_str()) == 0 || errno == EEXIST;
  const int why = errno;
  ::unlink(draft.c_str());
  if (!is_made) {
    throw UsageError("cannot make the key {}: {}", path, base::errno_text(why));
  }
}

}  // namespace

std::string own_job_secret(const std::string& secret_file) {
  return secret_file.empty() ? base::make_secret() : read_secret(secret_file);
}

std::string job_secret(const std::string& secret_file, const std::string& job_id,
                       const base::Env& env) {
  if (!secret_file.empty()) {
    return read_secret(secret_file);
  }
  if (const auto secret = env.text("LOCKSTEP_JOB_SECRET")) {
    check_strength(*secret, "LOCKSTEP_JOB_SECRET", "make one for all nodes: openssl rand -hex 32");
    return *secret;
  }
  const std::string path = key_path(env);
  if (::access(path.c_str(), F_OK) != 0) {
    make_key(path);
  }
  return base::derive_secret(read_secret(path), job_id);
}

}  // namespace lockstep::launch
