// A plug-in of another version, whose table means something else.

#include "device/plugin_api.h"

extern "C" const LockstepCudaPlugin* lockstep_cuda_plugin() {
  static const LockstepCudaPlugin plugin = {.version = 99};
  return &plugin;
}
