# libdeflate as Libdeflate::Libdeflate: Debian's package brings no file for CMake. Installed beside lockstep's own.
find_library(LOCKSTEP_LIBDEFLATE_LIBRARY deflate)
find_path(LOCKSTEP_LIBDEFLATE_INCLUDE libdeflate.h)
mark_as_advanced(LOCKSTEP_LIBDEFLATE_LIBRARY LOCKSTEP_LIBDEFLATE_INCLUDE)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libdeflate REQUIRED_VARS LOCKSTEP_LIBDEFLATE_LIBRARY LOCKSTEP_LIBDEFLATE_INCLUDE)
if(Libdeflate_FOUND AND NOT TARGET Libdeflate::Libdeflate)
  add_library(Libdeflate::Libdeflate UNKNOWN IMPORTED)
  set_target_properties(Libdeflate::Libdeflate PROPERTIES
    IMPORTED_LOCATION ${LOCKSTEP_LIBDEFLATE_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${LOCKSTEP_LIBDEFLATE_INCLUDE})
endif()
