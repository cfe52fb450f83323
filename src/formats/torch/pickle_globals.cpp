#include "formats/torch/pickle_globals.h"

#include <string>

namespace lockstep::formats {

namespace {

struct GlobalRow {
  std::string_view module;
  std::string_view name;
  Callee callee;
};

constexpr GlobalRow kGlobalRows[] = {
    {"collections", "OrderedDict", Callee::OrderedDict},
    {"collections", "Counter", Callee::Counter},
    {"builtins", "set", Callee::Set},
    {"__builtin__", "set", Callee::Set},
    {"_codecs", "encode", Callee::Encode},
    {"torch", "Size", Callee::Size},
    {"torch", "device", Callee::Device},
    {"torch._utils", "_rebuild_tensor", Callee::RebuildTensor},
    {"torch._utils", "_rebuild_tensor_v2", Callee::RebuildTensorV2},
    {"torch._utils", "_rebuild_tensor_v3", Callee::RebuildTensorV3},
    {"torch._utils", "_rebuild_parameter", Callee::Parameter},
    {"torch._utils", "_rebuild_parameter_with_state", Callee::Parameter},
    {"torch.nn.parameter", "Parameter", Callee::Parameter},
    {"torch.storage", "UntypedStorage", Callee::UntypedStorage},
    {"torch", "UntypedStorage", Callee::UntypedStorage},
};

}  // namespace

std::optional<Global> find_global(std::string_view module, std::string_view name) {
  for (const GlobalRow& row : kGlobalRows) {
    if (row.module == module && row.name == name) {
      return Global{row.callee, std::nullopt};
    }
  }
  if (module != "torch") {
    return std::nullopt;
  }
  if (const auto dtype = dtype_of_storage_class(name)) {
    return Global{Callee::TypedStorage, dtype};
  }
  if (const auto dtype = dtype_of_torch(name)) {
    return Global{Callee::DType, dtype};
  }
  return std::nullopt;
}

std::optional<Global> find_tar_global(std::string_view module, std::string_view name) {
  constexpr std::string_view kTensor = "Tensor";
  if (module == "torch" || module == "torch.cuda") {
    std::string storage(name);
    if (name.ends_with(kTensor)) {
      storage.replace(name.size() - kTensor.size(), kTensor.size(), "Storage");
    }
    if (const auto dtype = dtype_of_storage_class(storage)) {
      return Global{Callee::DType, dtype};
    }
  }
  return find_global(module, name);
}

}  // namespace lockstep::formats
