#include "storage/faulty_server.h"

#include <algorithm>
#include <poll.h>
#include <sstream>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep::test {

FaultyServer::FaultyServer(Handler handler)
    : handler_(std::move(handler)),
      listener_({"127.0.0.1", 0}),
      wake_(base::make_pipe()),
      thread_([this](std::stop_token stop) { serve(stop); }) {}

FaultyServer::~FaultyServer() {
  thread_.request_stop();
  wake_.write.reset();
}

void FaultyServer::serve(std::stop_token stop) {
  while (!stop.stop_requested()) {
    pollfd polls[2] = {{listener_.fd(), POLLIN, 0}, {wake_.read.get(), POLLIN, 0}};
    ::poll(polls, 2, -1);
    if (base::Socket socket = listener_.accept()) {
      try {
        answer(std::move(socket), stop);
      } catch (const Error&) {
        // The client had enough.
      }
    }
  }
}

void FaultyServer::answer(base::Socket socket, const std::stop_token& stop) {
  const base::Deadline deadline = base::Deadline::after(std::chrono::seconds(10));
  FaultyRequest request;
  for (char byte = 0; !request.head.ends_with("\r\n\r\n");) {
    socket.receive(&byte, 1, deadline);
    request.head.push_back(byte);
  }
  std::istringstream(request.head) >> request.method >> request.target;
  request.number = num_requests_++;
  const FaultyAnswer answer = handler_(request);
  socket.send(answer.bytes.data(), answer.bytes.size(), deadline);
  if (answer.then_stalls) {
    // Until the client hangs up.
    pollfd polls[2] = {{socket.fd(), POLLIN | POLLRDHUP, 0}, {wake_.read.get(), POLLIN, 0}};
    while (!stop.stop_requested() && (polls[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0) {
      ::poll(polls, 2, -1);
    }
  }
  ::shutdown(socket.fd(), SHUT_WR);  // a close with unread bytes would be a reset
}

std::string http_answer(int status, const std::vector<std::string>& headers,
                        const std::string& body) {
  std::string text = fmt::format("HTTP/1.1 {} Word\r\nConnection: close\r\n", status);
  bool has_length = false;
  for (const std::string& header : headers) {
    text += header + "\r\n";
    has_length = has_length || header.starts_with("Content-Length");
  }
  if (!has_length) {
    text += fmt::format("Content-Length: {}\r\n", body.size());
  }
  return text + "\r\n" + body;
}

}  // namespace lockstep::test
