# Fuzz targets. libFuzzer is clang's and the build is g++'s, so these are compiled beside it, with what
# they need of the libraries, by clang with its sanitizers. Without clang, and in builds that are sanitized anyway, there are none.

find_program(LOCKSTEP_CLANG NAMES clang++-14 clang++)
if(LOCKSTEP_CLANG AND NOT DEFINED LOCKSTEP_CLANG_FUZZES)
  set(probe ${CMAKE_CURRENT_BINARY_DIR}/fuzz_probe.cpp)
  file(WRITE ${probe} "extern \"C\" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }\n")
  execute_process(COMMAND ${LOCKSTEP_CLANG} -fsanitize=fuzzer,address,undefined ${probe} -o ${probe}.out
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    set(LOCKSTEP_CLANG_FUZZES OFF CACHE INTERNAL "")
  else()
    set(LOCKSTEP_CLANG_FUZZES ON CACHE INTERNAL "")
  endif()
endif()

# lockstep_fuzz(NAME formats_fuzz AREAS base formats TARGETS fuzz/a.cpp ... SOURCES support.cpp ... LIBRARIES fmt)
# Makes bin/fuzz_<target> for each of TARGETS, all part of the target NAME. SOURCES and the areas' sources are
# linked into each.
function(lockstep_fuzz)
  cmake_parse_arguments(arg "" "NAME" "AREAS;TARGETS;SOURCES;LIBRARIES" ${ARGN})
  set(own_sources ${arg_TARGETS} ${arg_SOURCES})
  lockstep_record(test ${arg_NAME} "${arg_AREAS}" "${own_sources}")
  if(NOT LOCKSTEP_CLANG_FUZZES OR LOCKSTEP_SANITIZE)
    return()
  endif()
  set(sources "")
  foreach(area IN LISTS arg_AREAS)
    get_target_property(folder lockstep_${area} SOURCE_DIR)
    get_target_property(files lockstep_${area} SOURCES)
    foreach(file IN LISTS files)
      cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${folder})
      list(APPEND sources ${file})
    endforeach()
  endforeach()
  foreach(file IN LISTS arg_SOURCES)
    list(APPEND sources ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  endforeach()
  set(objects "")
  foreach(source IN LISTS sources)
    lockstep_fuzz_object(${source} object)
    list(APPEND objects ${object})
  endforeach()
  list(TRANSFORM arg_LIBRARIES PREPEND -l)
  set(programs "")
  foreach(source IN LISTS arg_TARGETS)
    lockstep_fuzz_object(${CMAKE_CURRENT_SOURCE_DIR}/${source} object)
    cmake_path(GET source STEM name)
    set(program ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/fuzz_${name})
    add_custom_command(OUTPUT ${program}
      COMMAND ${LOCKSTEP_CLANG} -fsanitize=fuzzer,address,undefined ${object} ${objects} ${arg_LIBRARIES} -o ${program}
      DEPENDS ${object} ${objects}
      VERBATIM)
    list(APPEND programs ${program})
  endforeach()
  add_custom_target(${arg_NAME} ALL DEPENDS ${programs})
endfunction()

function(lockstep_fuzz_object source variable)
  cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE name)
  string(REPLACE "/" "_" name ${name})
  set(object ${CMAKE_CURRENT_BINARY_DIR}/fuzz_objects/${name}.o)
  set(${variable} ${object} PARENT_SCOPE)
  file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/fuzz_objects)
  set(paths "")
  if(source MATCHES "/support/paths\\.cpp$")
    set(paths -DLOCKSTEP_SOURCE_DIR="${PROJECT_SOURCE_DIR}" -DLOCKSTEP_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  endif()
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${LOCKSTEP_CLANG} -std=c++20 -O1 -g1 -fno-omit-frame-pointer
      -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
      -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/tests
      ${paths}
      -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object}
    DEPENDS ${source}
    DEPFILE ${object}.d
    VERBATIM)
endfunction()
