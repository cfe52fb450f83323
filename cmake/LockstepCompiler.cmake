# Language level, warnings, sanitizers, ccache.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The precompiled header needs the sloppiness, or ccache caches nothing that uses it. The base folder
  # makes paths relative, so that a second clone or worktree finds what the first one compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${LOCKSTEP_CCACHE})
endif()

add_library(lockstep_options INTERFACE)
target_compile_options(lockstep_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers
  # g++ 12 finds these in std::string itself when it inlines much, where nothing is wrong.
  -Wno-maybe-uninitialized -Wno-restrict
  $<$<BOOL:${LOCKSTEP_WERROR}>:-Werror>)
if(LOCKSTEP_SANITIZE)
  if(LOCKSTEP_WITH_TORCH)
    message(FATAL_ERROR "LOCKSTEP_SANITIZE needs LOCKSTEP_WITH_TORCH=OFF: libtorch is not built with "
                        "sanitizers; use the presets asan and tsan")
  endif()
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
endif()
