#include "comm/c10d/c10d_store.h"

namespace lockstep::comm {
namespace {

std::string to_text(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}
std::vector<uint8_t> to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

}  // namespace

C10dStore::C10dStore(std::shared_ptr<base::StoreClient> client, std::string prefix,
                     std::chrono::milliseconds timeout)
    : c10d::Store(timeout), client_(std::move(client)), prefix_(std::move(prefix)) {}

c10::intrusive_ptr<c10d::Store> C10dStore::clone() {
  return c10::make_intrusive<C10dStore>(client_, prefix_,
                                        timeout_);  // the client may be shared by threads
}

void C10dStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  client_->set(prefix_ + key, to_text(value), deadline());
}

std::vector<uint8_t> C10dStore::compareSet(const std::string& key,
                                           const std::vector<uint8_t>& expected,
                                           const std::vector<uint8_t>& desired) {
  return to_bytes(
      client_->compare_set(prefix_ + key, to_text(expected), to_text(desired), deadline()));
}

std::vector<uint8_t> C10dStore::get(const std::string& key) {
  return to_bytes(client_->get(prefix_ + key, deadline()));
}

int64_t C10dStore::add(const std::string& key, int64_t value) {
  return client_->add(prefix_ + key, value, deadline());
}

bool C10dStore::deleteKey(const std::string& key) {
  return client_->erase(prefix_ + key, deadline());
}

bool C10dStore::check(const std::vector<std::string>& keys) {
  for (const auto& key : keys) {
    if (!client_->try_get(prefix_ + key, deadline())) {
      return false;
    }
  }
  return true;
}

int64_t C10dStore::getNumKeys() {
  return client_->num_keys(deadline());
}

void C10dStore::wait(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
}

void C10dStore::wait(const std::vector<std::string>& keys,
                     const std::chrono::milliseconds& timeout) {
  const base::Deadline limit = base::Deadline::after(timeout);
  for (const auto& key : keys) {
    client_->get(prefix_ + key, limit);
  }
}

void C10dStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  client_->append(prefix_ + key, to_text(value), deadline());
}

}  // namespace lockstep::comm
