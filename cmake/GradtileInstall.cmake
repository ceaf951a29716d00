# cmake --install, find_package(gradtile) and pkg-config. The library is static, so a consumer also links the
# libraries that gradtile uses. gradtileConfig.cmake and gradtile.pc find these on the consumer's machine and
# contain no path of the building machine.
include(CMakePackageConfigHelpers)

install(TARGETS gradtile gradtile_tools gradtile_dependencies EXPORT gradtileTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET gradtile_program)
  install(TARGETS gradtile_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright COMPONENT program)
endif()
if(TARGET gradtile_mpi)
  install(TARGETS gradtile_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/gradtile COMPONENT mpi)
endif()
include(GradtilePublicHeaders)
gradtile_public_headers(public_headers gradtile.h tools/tools.h)
foreach(header IN LISTS public_headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gradtile/${folder})
endforeach()
install(EXPORT gradtileTargets NAMESPACE gradtile:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradtile)

configure_package_config_file(cmake/gradtileConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/gradtileConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradtile)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/gradtileConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gradtileConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/gradtileConfigVersion.cmake
  cmake/FindDNNLLibrary.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradtile)

# gradtile.pc states paths relative to its own location, so that an installation can be moved.
file(RELATIVE_PATH gradtile_prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" gradtile_prefix_from_pc "${gradtile_prefix_from_pc}")
set(gradtile_pc_libraries "-ldl -pthread")
if(gradtile_blas STREQUAL "onednn")
  string(PREPEND gradtile_pc_libraries "-ldnnl ${OpenMP_CXX_FLAGS} ")
endif()
if(GRADTILE_HAVE_CUDA)
  string(APPEND gradtile_pc_libraries " -lcudart_static -lrt")
endif()
foreach(pc gradtile gradtile_tools)
  configure_file(cmake/${pc}.pc.in ${CMAKE_CURRENT_BINARY_DIR}/${pc}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${pc}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
