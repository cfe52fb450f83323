#include "shm/fd_exchange.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <lockstep/base/log.h>

#include "base/secret.h"
#include "shm/fd_message.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;

constexpr auto kProofTime = 2s;      // for a stranger to show that it belongs here
constexpr int kBatchRanks = 16;      // whose descriptors travel together
constexpr int kBatchesUnderWay = 4;  // to as many ranks, until they say that they have them
static_assert(kBatchRanks <= kMaxFdsPerMessage);

struct Hello {
  base::Nonce nonce;
  int32_t rank;
};

base::UniqueFd make_unix_socket() {
  base::UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) {
    throw IoError("shared memory: socket: {}", base::errno_text(errno));
  }
  return fd;
}

// A name that begins with a zero byte is in no file system.
socklen_t fill_address(sockaddr_un& address, const std::string& name) {
  address.sun_family = AF_UNIX;
  LOCKSTEP_CHECK(name.size() + 1 <= sizeof address.sun_path, "shm: the address {} is too long",
                 name);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

void check_user(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    throw IoError("shared memory: SO_PEERCRED: {}", base::errno_text(errno));
  }
  if (peer.uid != ::geteuid()) {
    throw UsageError("shared memory: user {} tried to join a job of user {}", peer.uid,
                     ::geteuid());
  }
}

// The kernel leaves out what this process may not open.
std::string too_few_text(size_t came, size_t sent) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return fmt::format(
      "shared memory: {} of {} descriptors could be taken: too many open files, at most {} are "
      "allowed; raise the limit (ulimit -n)",
      came, sent, limit.rlim_cur);
}

}  // namespace

FdExchange::FdExchange(FdExchangeOptions options) : options_(std::move(options)) {
  peers_.resize(options_.rank == 0 ? static_cast<size_t>(options_.size) : 1);
  if (options_.rank != 0 || options_.size == 1) {
    return;
  }
  address_ = "lockstep-" + base::make_secret();
  listener_ = make_unix_socket();
  sockaddr_un address{};
  const socklen_t length = fill_address(address, address_);
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener_.get(), options_.size) != 0) {
    throw IoError("shared memory: cannot listen: {}", base::errno_text(errno));
  }
}

void FdExchange::adopt(size_t place, base::UniqueFd fd) {
  const std::lock_guard lock(mutex_);
  if (interrupted_) {
    throw IoError("shared memory: the exchange was given up");
  }
  peers_[place] = std::move(fd);
}

void FdExchange::stop_if_interrupted() const {
  const std::lock_guard lock(mutex_);
  if (interrupted_) {
    throw IoError("shared memory: the exchange was given up");
  }
}

int FdExchange::prove(int fd, bool is_rank_zero, base::Deadline deadline) const {
  check_user(fd);
  const Hello mine{.nonce = base::random_nonce(), .rank = options_.rank};
  send_message(fd, &mine, sizeof mine, {}, deadline);
  Hello theirs{};
  receive_message(fd, &theirs, sizeof theirs, deadline);
  const base::Nonce& client = is_rank_zero ? theirs.nonce : mine.nonce;
  const base::Nonce& server = is_rank_zero ? mine.nonce : theirs.nonce;
  const auto proof_of = [&](bool of_rank_zero, int rank) {
    return base::make_proof(options_.secret, of_rank_zero ? "server" : "client",
                            fmt::format("{}/{}", options_.purpose, rank), client, server);
  };
  const base::Proof proof = proof_of(is_rank_zero, options_.rank);
  send_message(fd, proof.data(), proof.size(), {}, deadline);
  base::Proof shown{};
  receive_message(fd, shown.data(), shown.size(), deadline);
  if (!base::same_proof(shown, proof_of(!is_rank_zero, theirs.rank))) {
    throw UsageError("shared memory: a process that does not know the job's secret tried to join");
  }
  return theirs.rank;
}

void FdExchange::accept_all(base::Deadline deadline) {
  int num_missing = options_.size - 1;
  while (num_missing > 0) {
    wait_for(listener_.get(), POLLIN, deadline);
    stop_if_interrupted();  // a listener that was shut down is ready for ever, with nobody to
                            // accept
    base::UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) {
        continue;
      }
      throw IoError("shared memory: accept: {}{}", base::errno_text(errno),
                    errno == EMFILE ? "; raise the limit of open files (ulimit -n)" : "");
    }
    try {
      const int rank = prove(fd.get(), true, deadline.earlier(base::Deadline::after(kProofTime)));
      if (rank < 1 || rank >= options_.size || peers_[static_cast<size_t>(rank)]) {
        throw UsageError("shared memory: there is no place for rank {} of {}", rank, options_.size);
      }
      adopt(static_cast<size_t>(rank), std::move(fd));
      --num_missing;
    } catch (const Error& error) {  // a stranger must not keep the others from coming
      const std::lock_guard lock(mutex_);
      if (interrupted_) {
        throw;
      }
      log::warn("shm", "refused a connection: {}", error.what());
    }
  }
  const std::lock_guard lock(mutex_);
  listener_.reset();
}

void FdExchange::join(const std::string& address_text, base::Deadline deadline) {
  base::UniqueFd fd = make_unix_socket();
  sockaddr_un address{};
  const socklen_t length = fill_address(address, address_text);
  while (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    if (errno == EAGAIN) {  // its queue is full: as many may wait as there are ranks
      ::poll(nullptr, 0, 1);
    } else if (errno != EINTR) {
      throw IoError("shared memory: cannot reach rank 0 of this host: {}", base::errno_text(errno));
    }
    if (deadline.expired()) {
      throw TimeoutError("shared memory: rank 0 of this host does not answer");
    }
  }
  const int raw = fd.get();
  adopt(0, std::move(fd));  // before the proof: an interrupt reaches it there
  if (const int answered = prove(raw, false, deadline); answered != 0) {
    throw UsageError("shared memory: rank {} answered as rank 0", answered);
  }
}

// One message of an exchange. Rank 0 asks, one batch of ranks after the other: "give", and then
// everybody: "take"; "end" tells how it went.
struct FdExchange::Frame {
  enum class Step : uint32_t { Give, Given, Take, Taken, End };
  Step step;
  int32_t rank;           // Take: whose the first descriptor is; End: whose problem it was
  uint32_t count;         // Take: of descriptors
  char problem[512 + 1];  // empty: none

  static Frame make(Step step, int rank = 0, size_t count = 0, const std::string& problem = "") {
    Frame frame{.step = step, .rank = rank, .count = static_cast<uint32_t>(count), .problem = {}};
    problem.copy(frame.problem, sizeof frame.problem - 1);
    return frame;
  }
  void send(int fd, const std::vector<int>& fds, base::Deadline deadline) const {
    send_message(fd, this, sizeof *this, fds, deadline);
  }
  std::vector<base::UniqueFd> receive(int fd, base::Deadline deadline) {
    auto fds = receive_message(fd, this, sizeof *this, deadline);
    problem[sizeof problem - 1] = '\0';
    return fds;
  }
  void expect(Step expected, int from) const {
    if (step != expected) {
      throw IoError("shared memory: rank {} of this host sent message {} where {} was due", from,
                    static_cast<int>(step), static_cast<int>(expected));
    }
  }
};

// The first problem that any rank had.
struct FdExchange::Verdict {
  int rank = 0;
  std::string problem;

  void note(int of_rank, const std::string& text) {
    if (problem.empty() && !text.empty()) {
      rank = of_rank;
      problem = text;
    }
  }
  void raise() const {
    if (!problem.empty()) {
      throw Refused(rank, problem);
    }
  }
};

// The descriptors of some ranks that follow one another, at rank 0.
struct FdExchange::Batch {
  int first = 0;
  int last = 0;                       // the first behind it
  std::vector<base::UniqueFd> taken;  // of the others
  std::vector<int> fds;               // of all
};

void FdExchange::exchange(const Offer& mine, const Take& take, base::Deadline deadline) {
  if (options_.rank == 0) {
    lead(mine, take, deadline);
  } else {
    follow(mine, take, deadline);
  }
}

void FdExchange::lead(const Offer& mine, const Take& take, base::Deadline deadline) {
  Verdict verdict;
  for (int first = 0; first < options_.size && verdict.problem.empty(); first += kBatchRanks) {
    Batch batch{.first = first,
                .last = std::min(options_.size, first + kBatchRanks),
                .taken = {},
                .fds = {}};
    collect(batch, mine, verdict, deadline);
    if (verdict.problem.empty()) {
      distribute(batch, take, verdict, deadline);
    }
  }
  const Frame end = Frame::make(Frame::Step::End, verdict.rank, 0, verdict.problem);
  for (int rank = 1; rank < options_.size; ++rank) {
    end.send(peers_[static_cast<size_t>(rank)].get(), {}, deadline);
  }
  verdict.raise();
}

void FdExchange::collect(Batch& batch, const Offer& mine, Verdict& verdict,
                         base::Deadline deadline) {
  const Frame give = Frame::make(Frame::Step::Give);
  for (int rank = std::max(batch.first, 1); rank < batch.last; ++rank) {
    give.send(peers_[static_cast<size_t>(rank)].get(), {}, deadline);
  }
  if (batch.first == 0) {
    verdict.note(0, mine.problem);
    batch.fds.push_back(mine.fd);
  }
  for (int rank = std::max(batch.first, 1); rank < batch.last; ++rank) {
    Frame given{};
    auto fds = given.receive(peers_[static_cast<size_t>(rank)].get(), deadline);
    given.expect(Frame::Step::Given, rank);
    verdict.note(rank, given.problem);
    if (given.problem[0] != '\0') {
      continue;
    }
    if (fds.size() != 1) {
      verdict.note(0, too_few_text(fds.size(), 1));
      continue;
    }
    batch.fds.push_back(fds[0].get());
    batch.taken.push_back(std::move(fds[0]));
  }
}

void FdExchange::distribute(const Batch& batch, const Take& take, Verdict& verdict,
                            base::Deadline deadline) {
  const Frame frame = Frame::make(Frame::Step::Take, batch.first, batch.fds.size());
  int num_answered = 1;  // ranks below it have; rank 0 need not ask itself
  const auto hear_next = [&] {
    Frame taken{};
    taken.receive(peers_[static_cast<size_t>(num_answered)].get(), deadline);
    taken.expect(Frame::Step::Taken, num_answered);
    verdict.note(num_answered++, taken.problem);
  };
  for (int rank = 1; rank < options_.size; ++rank) {
    if (rank - num_answered == kBatchesUnderWay) {
      hear_next();
    }
    frame.send(peers_[static_cast<size_t>(rank)].get(), batch.fds, deadline);
  }
  verdict.note(0, take_all(std::max(batch.first, 1), batch.taken, take));
  while (num_answered < options_.size) {
    hear_next();
  }
}

void FdExchange::follow(const Offer& mine, const Take& take, base::Deadline deadline) {
  const int rank_zero = peers_[0].get();
  while (true) {
    Frame frame{};
    const auto fds = frame.receive(rank_zero, deadline);
    if (frame.step == Frame::Step::Give) {
      Frame::make(Frame::Step::Given, options_.rank, 1, mine.problem)
          .send(rank_zero, mine.problem.empty() ? std::vector{mine.fd} : std::vector<int>{},
                deadline);
    } else if (frame.step == Frame::Step::Take) {
      const std::string problem = fds.size() == frame.count ? take_all(frame.rank, fds, take)
                                                            : too_few_text(fds.size(), frame.count);
      Frame::make(Frame::Step::Taken, options_.rank, 0, problem).send(rank_zero, {}, deadline);
    } else {
      frame.expect(Frame::Step::End, 0);
      Verdict{.rank = frame.rank, .problem = frame.problem}.raise();
      return;
    }
  }
}

// Returns why it could not, or nothing.
std::string FdExchange::take_all(int first, const std::vector<base::UniqueFd>& fds,
                                 const Take& take) const {
  try {
    for (size_t i = 0; i < fds.size(); ++i) {
      const int rank = first + static_cast<int>(i);
      if (rank < 0 || rank >= options_.size) {
        throw IoError("shared memory: there is no rank {} of {}", rank, options_.size);
      }
      if (rank != options_.rank) {
        take(rank, fds[i]);
      }
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

void FdExchange::interrupt() noexcept {
  const std::lock_guard lock(mutex_);
  interrupted_ = true;
  if (listener_) {
    ::shutdown(listener_.get(), SHUT_RDWR);
  }
  for (const base::UniqueFd& peer : peers_) {
    if (peer) {
      ::shutdown(peer.get(), SHUT_RDWR);
    }
  }
}

}  // namespace lockstep::shm
