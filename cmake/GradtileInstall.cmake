# cmake --install and find_package(gradtile). The library is static, so a consumer links what it stands on as well:
# gradtileConfig.cmake carries those libraries by the paths they were found at.
include(CMakePackageConfigHelpers)

get_target_property(GRADTILE_LINK_LIBRARIES gradtile_dependencies INTERFACE_LINK_LIBRARIES)
set(GRADTILE_CONSUMER_INCLUDE_DIRS ${NLOHMANN_JSON_INCLUDE_DIR})

install(TARGETS gradtile gradtile_options gradtile_dependencies EXPORT gradtileTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET gradtile_program)
  install(TARGETS gradtile_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
# Not installed: internal/, device code, and the kernels of attention.
install(DIRECTORY core attention layers train DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gradtile FILES_MATCHING PATTERN "*.h"
  PATTERN internal EXCLUDE PATTERN device EXCLUDE REGEX "/attention/(cpu|cuda)$" EXCLUDE)
install(EXPORT gradtileTargets NAMESPACE gradtile:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradtile)

configure_package_config_file(cmake/gradtileConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/gradtileConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradtile)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/gradtileConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gradtileConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/gradtileConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/gradtile)
