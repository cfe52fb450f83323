# Several sources of a target compiled as one: most of a unit's time goes into headers, libtorch's above all, and
# they are read once per unit then. `-DLOCKSTEP_UNITY=OFF` compiles each source by itself, which also shows a
# source that lives on its neighbour's headers.

option(LOCKSTEP_UNITY "Compile several sources of a target as one" ON)
set(LOCKSTEP_UNITY_SOURCES 8 CACHE STRING "How many sources are compiled as one, at most")

# lockstep_unite(comm "a.cpp;b.cpp;c.cpp" "c.cpp" result): what to compile instead of the sources. Those of the
# third argument (or ALL) stay alone, as do those that ask where the tree is (lockstep_define_paths). Only sources
# of one folder are compiled together. Paths in what is written are relative, so that ccache finds what another
# clone compiled.
function(lockstep_unite name sources alone result)
  if(NOT LOCKSTEP_UNITY OR alone STREQUAL "ALL")
    set(${result} ${sources} PARENT_SCOPE)
    return()
  endif()
  set(compiled "")
  set(folders "")
  foreach(source IN LISTS sources)
    lockstep_asks_for_paths(${source} asks)
    if(asks OR source IN_LIST alone OR NOT source MATCHES "\\.cpp$")
      list(APPEND compiled ${source})
    else()
      cmake_path(GET source PARENT_PATH folder)
      string(MAKE_C_IDENTIFIER "in_${folder}" folder)
      list(APPEND folders ${folder})
      list(APPEND ${folder} ${source})
      set_property(GLOBAL APPEND PROPERTY lockstep_united_${name} ${source})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  set(number 0)
  foreach(folder IN LISTS folders)
    list(LENGTH ${folder} count)
    math(EXPR num_units "(${count} + ${LOCKSTEP_UNITY_SOURCES} - 1) / ${LOCKSTEP_UNITY_SOURCES}")
    foreach(unit RANGE 1 ${num_units})
      math(EXPR first "(${unit} - 1) * ${count} / ${num_units}")
      math(EXPR length "${unit} * ${count} / ${num_units} - ${first}")
      list(SUBLIST ${folder} ${first} ${length} members)
      math(EXPR number "${number} + 1")
      lockstep_write_unit(${CMAKE_CURRENT_BINARY_DIR}/${name}_${number}.cpp "${members}")
      list(APPEND compiled ${CMAKE_CURRENT_BINARY_DIR}/${name}_${number}.cpp)
    endforeach()
  endforeach()
  set(${result} ${compiled} PARENT_SCOPE)
endfunction()

function(lockstep_write_unit file members)
  set(text "")
  cmake_path(GET file PARENT_PATH folder)
  foreach(member IN LISTS members)
    cmake_path(ABSOLUTE_PATH member BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
    cmake_path(RELATIVE_PATH member BASE_DIRECTORY ${folder})
    string(APPEND text "#include \"${member}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
  # g++ takes the anonymous namespaces of a source that is included for those of a header.
  set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()
