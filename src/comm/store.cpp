#include <lockstep/comm/store.h>

#include "base/store/store_client.h"
#include "base/store/store_server.h"

namespace lockstep {
namespace {

std::shared_ptr<base::StoreClient> connect_client(const base::Endpoint& server,
                                                  const StoreOptions& options) {
  const base::StoreClientOptions client{
      .server = server, .job_id = options.job_id, .secret = options.secret};
  return std::make_shared<base::StoreClient>(client, base::Deadline::after(options.timeout));
}

}  // namespace

Store::Store(std::shared_ptr<base::StoreServer> server, std::shared_ptr<base::StoreClient> client,
             std::chrono::milliseconds timeout)
    : server_(std::move(server)), client_(std::move(client)), timeout_(timeout) {}

Store Store::host(StoreOptions options) {
  base::StoreServerOptions serve;
  serve.listen = base::Endpoint::parse(options.endpoint, "store");
  serve.job_id = options.job_id;
  serve.secret = options.secret;
  auto server = std::make_shared<base::StoreServer>(serve);
  server->start();
  auto client = connect_client(server->endpoint(), options);
  return Store(std::move(server), std::move(client), options.timeout);
}

Store Store::connect(StoreOptions options) {
  return Store(nullptr, connect_client(base::Endpoint::parse(options.endpoint, "store"), options),
               options.timeout);
}

void Store::set(const std::string& key, const std::string& value) {
  client_->set(key, value, base::Deadline::after(timeout_));
}
std::string Store::get(const std::string& key) {
  return client_->get(key, base::Deadline::after(timeout_));
}
std::optional<std::string> Store::try_get(const std::string& key) {
  return client_->try_get(key, base::Deadline::after(timeout_));
}
int64_t Store::add(const std::string& key, int64_t delta) {
  return client_->add(key, delta, base::Deadline::after(timeout_));
}
bool Store::erase(const std::string& key) {
  return client_->erase(key, base::Deadline::after(timeout_));
}
std::string Store::compare_set(const std::string& key, const std::string& expected,
                               const std::string& desired) {
  return client_->compare_set(key, expected, desired, base::Deadline::after(timeout_));
}
std::string Store::endpoint() const {
  return client_->server().text();
}

}  // namespace lockstep
