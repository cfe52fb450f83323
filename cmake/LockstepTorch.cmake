# libtorch as imported targets of our own. The wheel's own find_package(Torch) refuses to work without
# a CUDA toolkit, which a CPU build must not need.
#
# LOCKSTEP_TORCH: a folder with include/torch and lib/libtorch_cpu.so: the `torch` folder of a Python
# installation, an unpacked libtorch zip, or (default) what `make setup` put under .deps.

set(LOCKSTEP_TORCH_REQUIRED 2.11.0)
set(LOCKSTEP_TORCH "" CACHE PATH "Folder of libtorch ${LOCKSTEP_TORCH_REQUIRED}")
if(NOT LOCKSTEP_TORCH AND DEFINED ENV{LOCKSTEP_TORCH})
  set(LOCKSTEP_TORCH $ENV{LOCKSTEP_TORCH})
endif()
if(NOT LOCKSTEP_TORCH)
  set(LOCKSTEP_TORCH ${PROJECT_SOURCE_DIR}/.deps/libtorch-${LOCKSTEP_TORCH_REQUIRED}/torch)
endif()
if(NOT EXISTS ${LOCKSTEP_TORCH}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "no libtorch in ${LOCKSTEP_TORCH} (lib/libtorch_cpu.so is missing): run `make setup`, "
                      "or set LOCKSTEP_TORCH to a libtorch ${LOCKSTEP_TORCH_REQUIRED}, "
                      "or build without tensors by -DLOCKSTEP_WITH_TORCH=OFF")
endif()

file(STRINGS ${LOCKSTEP_TORCH}/include/torch/headeronly/version.h version_lines
     REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" version_parts "${version_lines}")
string(REPLACE ";" "." LOCKSTEP_TORCH_VERSION "${version_parts}")
if(NOT LOCKSTEP_TORCH_VERSION VERSION_EQUAL LOCKSTEP_TORCH_REQUIRED)
  message(FATAL_ERROR "libtorch in ${LOCKSTEP_TORCH} is ${LOCKSTEP_TORCH_VERSION}; lockstep is built for and "
                      "tested with ${LOCKSTEP_TORCH_REQUIRED} (c10d has no stable interface)")
endif()

# Gloo's code is inside libtorch_cpu; only its headers come from the system.
find_path(LOCKSTEP_GLOO_INCLUDE gloo/context.h REQUIRED)

add_library(lockstep_torch INTERFACE)
target_include_directories(lockstep_torch SYSTEM INTERFACE
  ${LOCKSTEP_TORCH}/include ${LOCKSTEP_TORCH}/include/torch/csrc/api/include)
# libtorch ships headers of another fmt than the system's; header-only, the two never meet at link time.
target_compile_definitions(lockstep_torch INTERFACE FMT_HEADER_ONLY=1)
target_link_libraries(lockstep_torch INTERFACE
  ${LOCKSTEP_TORCH}/lib/libtorch_cpu.so ${LOCKSTEP_TORCH}/lib/libc10.so Threads::Threads)
# libtorch's own libraries find each other by their run path, the linker does not look there.
file(GLOB torch_rpath_dirs ${LOCKSTEP_TORCH}/../nvidia/cu*/lib)
list(JOIN torch_rpath_dirs ":" torch_rpath_link)
target_link_options(lockstep_torch INTERFACE
  LINKER:-rpath-link,${LOCKSTEP_TORCH}/lib:${torch_rpath_link} LINKER:--disable-new-dtags)
set(CMAKE_BUILD_RPATH ${LOCKSTEP_TORCH}/lib)
set(CMAKE_INSTALL_RPATH ${LOCKSTEP_TORCH}/lib)

file(WRITE ${PROJECT_BINARY_DIR}/pch.cpp "// The precompiled libtorch header belongs to this target; the others reuse it.\n")
add_library(lockstep_pch OBJECT ${PROJECT_BINARY_DIR}/pch.cpp)
target_link_libraries(lockstep_pch PRIVATE lockstep_torch lockstep_options)
target_compile_definitions(lockstep_pch PRIVATE FMT_HEADER_ONLY=1)
target_precompile_headers(lockstep_pch PRIVATE <torch/torch.h>)
