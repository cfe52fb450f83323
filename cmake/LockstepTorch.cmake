# Finds libtorch and makes the target lockstep::torch of it. The build reads this file, and so does the
# installed package: the wheel's own find_package(Torch) refuses to work without a CUDA toolkit, which a
# CPU build must not need.
#
# LOCKSTEP_TORCH, a variable of CMake or of the environment: a folder with include/torch and
# lib/libtorch_cpu.so, such as the `torch` folder of a Python installation or an unpacked libtorch zip.

set(LOCKSTEP_TORCH_REQUIRED 2.11.0)

# "2.11.0"; "of an unknown version" for a libtorch that does not say; empty for a folder that holds none.
function(lockstep_torch_version folder variable)
  set(version "")
  if(EXISTS ${folder}/lib/libtorch_cpu.so)
    set(version "of an unknown version")
    # Older ones have it in the second place.
    foreach(header headeronly/version.h csrc/api/include/torch/version.h)
      set(lines "")
      if(EXISTS ${folder}/include/torch/${header})
        file(STRINGS ${folder}/include/torch/${header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      endif()
      if(lines)
        string(REGEX REPLACE "[^0-9;]" "" version "${lines}")
        string(REPLACE ";" "." version "${version}")
        break()
      endif()
    endforeach()
  endif()
  set(${variable} "${version}" PARENT_SCOPE)
endfunction()

# Where people keep libtorch: what they gave to find_package(Torch), or beside it.
function(lockstep_torch_folders variable)
  set(folders "")
  if(Torch_DIR)
    list(APPEND folders ${Torch_DIR}/../../..)
  endif()
  set(prefixes ${CMAKE_PREFIX_PATH})
  if(DEFINED ENV{CMAKE_PREFIX_PATH})
    string(REPLACE ":" ";" more "$ENV{CMAKE_PREFIX_PATH}")
    list(APPEND prefixes ${more})
  endif()
  foreach(prefix IN LISTS prefixes)
    # The second is what torch.utils.cmake_prefix_path says, <torch>/share/cmake.
    list(APPEND folders ${prefix} ${prefix}/../.. ${prefix}/torch ${prefix}/libtorch)
  endforeach()
  set(${variable} ${folders} PARENT_SCOPE)
endfunction()

# The torch that `import torch` would load, without the seconds that loading it takes.
function(lockstep_torch_of_python variable)
  set(${variable} "" PARENT_SCOPE)
  find_program(LOCKSTEP_PYTHON python3)
  mark_as_advanced(LOCKSTEP_PYTHON)
  set(python ${LOCKSTEP_PYTHON})
  if(Python3_EXECUTABLE)
    set(python ${Python3_EXECUTABLE})
  endif()
  if(python)
    set(ask "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')")
    execute_process(COMMAND ${python} -c "${ask}"
      OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(${variable} "${folder}" PARENT_SCOPE)
  endif()
endfunction()

# lockstep_find_torch(BESIDE folder BUILT_WITH folder WAY_OUT sentence)
# Sets LOCKSTEP_TORCH and LOCKSTEP_TORCH_VERSION, or lockstep_torch_problem to a sentence. BESIDE comes before
# CMAKE_PREFIX_PATH and BUILT_WITH after it; the last resort is python3.
function(lockstep_find_torch)
  cmake_parse_arguments(arg "" "BESIDE;BUILT_WITH;WAY_OUT" "" ${ARGN})
  set(named "${LOCKSTEP_TORCH}")
  if(NOT named AND DEFINED ENV{LOCKSTEP_TORCH})
    set(named $ENV{LOCKSTEP_TORCH})
  endif()
  set(needed "lockstep needs ${LOCKSTEP_TORCH_REQUIRED} (c10d has no stable interface)")
  set(problem "")
  if(named)
    # A folder that was named must be right: to take another one instead would be a surprise.
    lockstep_torch_version(${named} version)
    if(NOT version)
      string(CONCAT problem "LOCKSTEP_TORCH=${named} is no libtorch: lib/libtorch_cpu.so is missing; "
        "name the folder that has include/ and lib/")
    elseif(NOT version STREQUAL LOCKSTEP_TORCH_REQUIRED)
      set(problem "LOCKSTEP_TORCH=${named} is libtorch ${version}; ${needed}")
    endif()
    set(found ${named})
  else()
    lockstep_torch_folders(folders)
    lockstep_first_torch(found others ${arg_BESIDE} ${folders} ${arg_BUILT_WITH})
    if(NOT found)
      lockstep_torch_of_python(folder)
      lockstep_first_torch(found more ${folder})
      list(APPEND others ${more})
    endif()
    if(NOT found)
      list(JOIN others ", " passed_over)
      string(REGEX REPLACE "(.+)" " (found and passed over: \\1; ${needed})" passed_over "${passed_over}")
      string(CONCAT problem "libtorch ${LOCKSTEP_TORCH_REQUIRED} was not found in ${arg_BESIDE}, nor in CMAKE_PREFIX_PATH, "
        "nor as python3's torch${passed_over}: ${arg_WAY_OUT}")
    endif()
  endif()
  set(LOCKSTEP_TORCH "${found}" PARENT_SCOPE)
  set(LOCKSTEP_TORCH_VERSION ${LOCKSTEP_TORCH_REQUIRED} PARENT_SCOPE)
  set(lockstep_torch_problem "${problem}" PARENT_SCOPE)
endfunction()

# The first of the folders that holds the version; `others` names the libtorches of other versions.
function(lockstep_first_torch found others)
  set(${found} "" PARENT_SCOPE)
  set(wrong "")
  foreach(folder IN LISTS ARGN)
    cmake_path(NORMAL_PATH folder)
    lockstep_torch_version(${folder} version)
    if(version STREQUAL LOCKSTEP_TORCH_REQUIRED)
      set(${found} ${folder} PARENT_SCOPE)
      break()
    elseif(version)
      list(APPEND wrong "${folder} is ${version}")
    endif()
  endforeach()
  set(${others} "${wrong}" PARENT_SCOPE)
endfunction()

function(lockstep_add_torch_target)
  if(TARGET lockstep::torch)
    return()
  endif()
  add_library(lockstep::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(lockstep::torch SYSTEM INTERFACE
    ${LOCKSTEP_TORCH}/include ${LOCKSTEP_TORCH}/include/torch/csrc/api/include)
  # libtorch ships headers of another fmt than the system's; header-only, the two never meet at link time.
  target_compile_definitions(lockstep::torch INTERFACE FMT_HEADER_ONLY=1)
  target_link_libraries(lockstep::torch INTERFACE
    ${LOCKSTEP_TORCH}/lib/libtorch_cpu.so ${LOCKSTEP_TORCH}/lib/libc10.so Threads::Threads)
  # libtorch's own libraries find each other by their run path, the linker does not look there.
  file(GLOB torch_rpath_dirs ${LOCKSTEP_TORCH}/../nvidia/cu*/lib)
  list(JOIN torch_rpath_dirs ":" torch_rpath_link)
  target_link_options(lockstep::torch INTERFACE
    LINKER:-rpath-link,${LOCKSTEP_TORCH}/lib:${torch_rpath_link} LINKER:--disable-new-dtags)
endfunction()
