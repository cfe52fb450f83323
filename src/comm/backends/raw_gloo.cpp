// As gloo_backend.cpp, this includes Gloo headers that are older than the code inside libtorch: no
// gloo:: type is constructed or derived here.

#include "comm/backends/raw_gloo.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "comm/c10d/c10d_store.h"

namespace lockstep::comm {

c10::intrusive_ptr<c10d::Backend> make_raw_gloo(const Store& store, const RawGlooOptions& options) {
  auto keys = c10::make_intrusive<C10dStore>(store.client(), options.prefix, options.timeout);
  auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
  gloo->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(options.address));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(keys), options.rank, options.size,
                                                     std::move(gloo));
}

}  // namespace lockstep::comm
