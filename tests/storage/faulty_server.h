#pragma once

// An HTTP server that does what it is told, good or bad.

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/socket.h"

namespace lockstep::test {

struct FaultyRequest {
  std::string method;
  std::string target;  // path and query
  std::string head;    // all of it
  int number = 0;      // of the requests so far, from 0
};

struct FaultyAnswer {
  std::string bytes;         // status line, headers, body: as they are
  bool then_stalls = false;  // instead of closing the connection
};

// Listens on loopback until it goes. Connections are served one after another.
class FaultyServer {
 public:
  using Handler = std::function<FaultyAnswer(const FaultyRequest&)>;
  explicit FaultyServer(Handler handler);
  ~FaultyServer();

  std::string endpoint() const { return "http://" + listener_.endpoint().text(); }
  int num_requests() const { return num_requests_; }

 private:
  void serve(std::stop_token stop);
  void answer(base::Socket socket, const std::stop_token& stop);

  Handler handler_;
  base::Listener listener_;
  base::FdPair wake_;
  std::atomic<int> num_requests_ = 0;
  std::jthread thread_;
};

// "HTTP/1.1 206 OK", the headers, Content-Length unless they have one, the body.
std::string http_answer(int status, const std::vector<std::string>& headers,
                        const std::string& body);

}  // namespace lockstep::test
