# `cmake --install`: the programs, the archives of the public API with its headers, what find_package
# and pkg-config read, recipes and documents. Everything refers to its neighbours by relative paths, so
# the tree may be moved. libtorch is not part of it, but for the component libtorch:
#
#   cmake --install build/release --prefix /opt/lockstep
#   cmake --install build/release --prefix /opt/lockstep --component libtorch    # and a copy of libtorch
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
set(lockstep_torch_home ${CMAKE_INSTALL_LIBDIR}/lockstep/libtorch/torch) # where the component puts it

# --- programs, archives, headers -------------------------------------------------------------------

get_property(public_areas GLOBAL PROPERTY lockstep_public_areas)
list(TRANSFORM public_areas PREPEND lockstep_ OUTPUT_VARIABLE public_targets)
install(TARGETS lockstep_all ${public_targets} EXPORT lockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")

install(TARGETS lockstep RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
set_target_properties(lockstep PROPERTIES INSTALL_RPATH "")
if(LOCKSTEP_WITH_TORCH)
  set(rank_programs lockstep-torch lockstep-bench lockstep-explain)
  install(TARGETS ${rank_programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_FULL_LIBDIR BASE_DIRECTORY ${CMAKE_INSTALL_FULL_BINDIR} OUTPUT_VARIABLE to_lib)
  set_target_properties(${rank_programs} PROPERTIES
    INSTALL_RPATH "$ORIGIN/${to_lib}/lockstep/libtorch/torch/lib;${LOCKSTEP_TORCH}/lib;$ORIGIN/${to_lib}/lockstep")
endif()

# The CUDA plug-in, where it is built. Programs find it by their run path, which find_package and pkg-config give them.
set(lockstep_plugin_home ${CMAKE_INSTALL_LIBDIR}/lockstep)
get_property(plugin GLOBAL PROPERTY lockstep_plugin)
if(plugin)
  install(PROGRAMS ${plugin} DESTINATION ${lockstep_plugin_home})
endif()

# --- find_package ----------------------------------------------------------------------------------

set(lockstep_packages Threads fmt spdlog tomlplusplus OpenSSL Xxhash Libdeflate)
foreach(package JPEG PNG)
  if(${package}_FOUND)
    list(APPEND lockstep_packages ${package})
  endif()
endforeach()
list(JOIN lockstep_packages " " lockstep_packages)
set(generated ${PROJECT_BINARY_DIR}/package)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/lockstepConfig.cmake.in ${generated}/lockstepConfig.cmake
  INSTALL_DESTINATION ${package_folder})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${generated}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package_folder})
install(FILES
  ${generated}/lockstepConfig.cmake ${generated}/lockstepConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindXxhash.cmake ${CMAKE_CURRENT_LIST_DIR}/FindLibdeflate.cmake
  DESTINATION ${package_folder})
if(LOCKSTEP_WITH_TORCH)
  install(FILES ${CMAKE_CURRENT_LIST_DIR}/LockstepTorch.cmake DESTINATION ${package_folder})
endif()

# --- pkg-config ------------------------------------------------------------------------------------

set(pc_folder ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${pc_folder} OUTPUT_VARIABLE pc_prefix)
set(pc_requires "fmt spdlog tomlplusplus libcrypto libxxhash libdeflate")
if(JPEG_FOUND)
  string(APPEND pc_requires " libjpeg")
endif()
if(PNG_FOUND)
  string(APPEND pc_requires " libpng")
endif()
list(TRANSFORM public_targets PREPEND -l OUTPUT_VARIABLE pc_archives)
list(JOIN pc_archives " " pc_archives)

# lockstep_write_pc(file torch_folder)
function(lockstep_write_pc file torch_folder)
  if(LOCKSTEP_WITH_TORCH)
    set(include "\${torchdir}/include")
    set(pc_torch_folder "torchdir=${torch_folder}\n")
    set(pc_torch_cflags "-isystem ${include} -isystem ${include}/torch/csrc/api/include -DFMT_HEADER_ONLY=1")
    file(GLOB cuda RELATIVE ${LOCKSTEP_TORCH} ${LOCKSTEP_TORCH}/../nvidia/cu*/lib)
    list(TRANSFORM cuda PREPEND ":\${torchdir}/")
    list(JOIN cuda "" cuda)
    string(CONCAT pc_torch_libs "-L\${torchdir}/lib -ltorch_cpu -lc10 -Wl,-rpath,\${torchdir}/lib "
      "-Wl,-rpath-link,\${torchdir}/lib${cuda} -Wl,--disable-new-dtags")
  endif()
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/lockstep.pc.in ${file} @ONLY)
endfunction()
lockstep_write_pc(${generated}/lockstep.pc "${LOCKSTEP_TORCH}")
install(FILES ${generated}/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# --- recipes and documents --------------------------------------------------------------------------

install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes DESTINATION ${CMAKE_INSTALL_DATADIR}/lockstep)
foreach(name README.md CHANGELOG.md LICENSE THIRD_PARTY.md)
  install(FILES ${PROJECT_SOURCE_DIR}/${name} DESTINATION ${CMAKE_INSTALL_DOCDIR})
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.cpp")

# --- the component libtorch -------------------------------------------------------------------------

if(LOCKSTEP_WITH_TORCH)
  set(component COMPONENT libtorch EXCLUDE_FROM_ALL)
  cmake_path(GET lockstep_torch_home PARENT_PATH wheel_home)
  install(DIRECTORY ${LOCKSTEP_TORCH}/include DESTINATION ${lockstep_torch_home} ${component})
  # The libraries of a CPU build, the same that tools/setup.sh unpacks.
  set(libraries "lib(torch_cpu|torch|torch_global_deps|shm|c10|gomp[^/]*|cudart[^/]*|cupti[^/]*)\\.so[^/]*$")
  install(DIRECTORY ${LOCKSTEP_TORCH}/lib DESTINATION ${lockstep_torch_home} ${component}
    FILES_MATCHING REGEX "${libraries}")
  # Their licences belong to every copy.
  file(GLOB nvidia RELATIVE ${LOCKSTEP_TORCH}/.. ${LOCKSTEP_TORCH}/../nvidia/cu*/lib)
  file(GLOB licenses RELATIVE ${LOCKSTEP_TORCH}/..
    ${LOCKSTEP_TORCH}/../torch-*.dist-info/licenses ${LOCKSTEP_TORCH}/../nvidia_cuda_runtime-*.dist-info/licenses
    ${LOCKSTEP_TORCH}/../nvidia_cuda_cupti-*.dist-info/licenses)
  foreach(folder IN LISTS nvidia)
    install(DIRECTORY ${LOCKSTEP_TORCH}/../${folder}/ DESTINATION ${wheel_home}/${folder} ${component}
      FILES_MATCHING REGEX "${libraries}")
  endforeach()
  foreach(folder IN LISTS licenses)
    install(DIRECTORY ${LOCKSTEP_TORCH}/../${folder}/ DESTINATION ${wheel_home}/${folder} ${component})
  endforeach()
  lockstep_write_pc(${generated}/libtorch/lockstep.pc "\${prefix}/${lockstep_torch_home}")
  # The two differ in one line and are of the same second: CMake would take the one for the other.
  set(installed_pc "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig/lockstep.pc")
  install(CODE "file(REMOVE \"${installed_pc}\")" ${component})
  install(FILES ${generated}/libtorch/lockstep.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig ${component})
endif()
