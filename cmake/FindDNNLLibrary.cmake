# oneDNN's header and library as the target DNNLLibrary::DNNL. oneDNN's own CMake config is not used, because
# it requires OpenCL headers that oneDNN does not need on the CPU.
find_path(DNNL_INCLUDE_DIR dnnl.hpp)
find_library(DNNL_LIBRARY dnnl)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(DNNLLibrary REQUIRED_VARS DNNL_LIBRARY DNNL_INCLUDE_DIR)
if(DNNLLibrary_FOUND AND NOT TARGET DNNLLibrary::DNNL)
  add_library(DNNLLibrary::DNNL UNKNOWN IMPORTED)
  set_target_properties(DNNLLibrary::DNNL PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
endif()
