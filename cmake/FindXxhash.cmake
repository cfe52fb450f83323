# xxHash as Xxhash::Xxhash: Debian's package brings no file for CMake. Installed beside lockstep's own.
find_library(LOCKSTEP_XXHASH_LIBRARY xxhash)
find_path(LOCKSTEP_XXHASH_INCLUDE xxhash.h)
mark_as_advanced(LOCKSTEP_XXHASH_LIBRARY LOCKSTEP_XXHASH_INCLUDE)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Xxhash REQUIRED_VARS LOCKSTEP_XXHASH_LIBRARY LOCKSTEP_XXHASH_INCLUDE)
if(Xxhash_FOUND AND NOT TARGET Xxhash::Xxhash)
  add_library(Xxhash::Xxhash UNKNOWN IMPORTED)
  set_target_properties(Xxhash::Xxhash PROPERTIES
    IMPORTED_LOCATION ${LOCKSTEP_XXHASH_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${LOCKSTEP_XXHASH_INCLUDE})
endif()
