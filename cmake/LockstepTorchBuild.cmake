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

# One precompiled header for libraries and programs, one for tests: g++ takes the level of optimization from the
# header, whatever the command line says.
file(WRITE ${PROJECT_BINARY_DIR}/pch.cpp "// The precompiled libtorch header belongs to this target; the others reuse it.\n")
foreach(name IN ITEMS lockstep_pch lockstep_test_pch)
  if(name STREQUAL "lockstep_test_pch" AND NOT LOCKSTEP_TESTS)
    continue()
  endif()
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/pch.cpp)
  target_link_libraries(${name} PRIVATE lockstep::torch lockstep_options)
  target_compile_definitions(${name} PRIVATE FMT_HEADER_ONLY=1)
  target_precompile_headers(${name} PRIVATE <torch/torch.h>)
endforeach()
if(LOCKSTEP_TESTS)
  target_compile_options(lockstep_test_pch PRIVATE ${lockstep_test_optimization})
endif()
