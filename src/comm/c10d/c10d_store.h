#pragma once

// Our store as a c10d::Store, for the code of libtorch that wants one (Gloo, NCCL).

#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/store/store_client.h"

namespace lockstep::comm {

class C10dStore : public c10d::Store {
 public:
  // Puts `prefix` before all keys.
  C10dStore(std::shared_ptr<base::StoreClient> client, std::string prefix,
            std::chrono::milliseconds timeout);

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;

 private:
  base::Deadline deadline() const { return base::Deadline::after(timeout_); }

  std::shared_ptr<base::StoreClient> client_;
  std::string prefix_;
};

}  // namespace lockstep::comm
