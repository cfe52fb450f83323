# What the build needs of libtorch beyond the target that users get: Gloo's headers, run paths, and the
# precompiled header.
include(LockstepTorch)

set(LOCKSTEP_TORCH "" CACHE PATH "Folder of libtorch ${LOCKSTEP_TORCH_REQUIRED}")
lockstep_find_torch(
  BESIDE ${PROJECT_SOURCE_DIR}/.deps/libtorch-${LOCKSTEP_TORCH_REQUIRED}/torch
  WAY_OUT "run `make setup`, set LOCKSTEP_TORCH to its folder, or build without tensors (-DLOCKSTEP_WITH_TORCH=OFF)")
if(lockstep_torch_problem)
  message(FATAL_ERROR "${lockstep_torch_problem}")
endif()
lockstep_add_torch_target()

# Gloo's code is inside libtorch_cpu; only its headers come from the system.
find_path(LOCKSTEP_GLOO_INCLUDE gloo/context.h REQUIRED)

set(CMAKE_BUILD_RPATH ${LOCKSTEP_TORCH}/lib)

file(WRITE ${PROJECT_BINARY_DIR}/pch.cpp "// The precompiled libtorch header belongs to this target; the others reuse it.\n")
add_library(lockstep_pch OBJECT ${PROJECT_BINARY_DIR}/pch.cpp)
target_link_libraries(lockstep_pch PRIVATE lockstep::torch lockstep_options)
target_compile_definitions(lockstep_pch PRIVATE FMT_HEADER_ONLY=1)
target_precompile_headers(lockstep_pch PRIVATE <torch/torch.h>)
