# Finds the libraries that gradtile needs, and names the packages of missing ones.
include(GNUInstallDirs)
find_package(Threads REQUIRED)

# Homebrew links some libraries only into folders of their own.
if(APPLE)
  find_program(GRADTILE_BREW brew)
  mark_as_advanced(GRADTILE_BREW)
  foreach(formula IN ITEMS "" openssl@3 libomp)
    if(GRADTILE_BREW)
      execute_process(COMMAND ${GRADTILE_BREW} --prefix ${formula} OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      list(APPEND CMAKE_PREFIX_PATH ${folder})
    endif()
  endforeach()
endif()

set(GRADTILE_MISSING "")
# gradtile_require(WHAT FOUND PACKAGE FORMULA): the names in Debian and in Homebrew
macro(gradtile_require what found package formula)
  if(NOT ${found} AND APPLE)
    string(APPEND GRADTILE_MISSING "  ${what}: brew install ${formula}\n")
  elseif(NOT ${found})
    string(APPEND GRADTILE_MISSING "  ${what}: apt-get install ${package}\n")
  endif()
endmacro()

# Matrix products on the CPU: oneDNN first; else OpenBLAS, or Accelerate, which is a part of macOS.
set(GRADTILE_CPU_BLAS "auto" CACHE STRING "CPU matrix library: auto, onednn, openblas or accelerate")
find_package(DNNLLibrary QUIET)
find_library(OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-pthread)
if(GRADTILE_CPU_BLAS STREQUAL "auto")
  if(DNNLLibrary_FOUND)
    set(gradtile_blas onednn)
  elseif(APPLE)
    set(gradtile_blas accelerate)
  else()
    set(gradtile_blas openblas)
  endif()
else()
  set(gradtile_blas ${GRADTILE_CPU_BLAS})
endif()
if(gradtile_blas STREQUAL "onednn")
  set(gradtile_blas_source onednn)
  gradtile_require("oneDNN" DNNLLibrary_FOUND libdnnl-dev onednn)
  find_package(OpenMP REQUIRED COMPONENTS CXX)  # only to tell oneDNN's OpenMP runtime that each of our threads works alone
else()
  set(gradtile_blas_source cblas)  # loaded at the first product, not linked: gemm_cblas.cpp says why
  if(gradtile_blas STREQUAL "openblas")
    gradtile_require("oneDNN or OpenBLAS" OPENBLAS_LIBRARY "libdnnl-dev (or libopenblas-dev)" onednn)
  endif()
endif()

find_package(HDF5 COMPONENTS C)
gradtile_require("HDF5" HDF5_FOUND libhdf5-dev hdf5)
# Only OpenSSL's libcrypto is used, which HDF5 of Debian and Ubuntu depends on as well.
find_package(OpenSSL COMPONENTS Crypto)
gradtile_require("OpenSSL (libcrypto)" OPENSSL_FOUND libssl-dev openssl@3)
find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp)
gradtile_require("CLI11" CLI11_INCLUDE_DIR libcli11-dev cli11)
find_package(nlohmann_json QUIET)
gradtile_require("nlohmann-json" nlohmann_json_FOUND nlohmann-json3-dev nlohmann-json)
if(GRADTILE_TESTS)
  find_package(GTest)
  gradtile_require("GoogleTest" GTest_FOUND libgtest-dev googletest)
endif()
if(GRADTILE_MISSING)
  message(FATAL_ERROR "gradtile: missing libraries; scripts/setup.sh installs them all:\n${GRADTILE_MISSING}")
endif()

# This target is exported, so it links only targets and names that gradtileConfig.cmake finds again on the
# consumer's machine, never paths.
add_library(gradtile_dependencies INTERFACE)
target_link_libraries(gradtile_dependencies INTERFACE
  Threads::Threads hdf5::hdf5 OpenSSL::Crypto nlohmann_json::nlohmann_json ${CMAKE_DL_LIBS})
target_include_directories(gradtile_dependencies SYSTEM INTERFACE $<BUILD_INTERFACE:${CLI11_INCLUDE_DIR}>)
if(gradtile_blas STREQUAL "onednn")
  target_link_libraries(gradtile_dependencies INTERFACE DNNLLibrary::DNNL OpenMP::OpenMP_CXX)
endif()
message(STATUS "gradtile: CPU matrix library: ${gradtile_blas}")

# MPI connects CPU processes that mpirun started. Only the plug-in is linked with MPI; programs of the build find it by RUNPATH.
find_package(MPI COMPONENTS C)
set(GRADTILE_PLUGIN_DIR ${PROJECT_BINARY_DIR}/plugins)
list(APPEND CMAKE_BUILD_RPATH ${GRADTILE_PLUGIN_DIR})
if(MPI_C_FOUND)
  message(STATUS "gradtile: MPI ${MPI_C_VERSION} at ${MPI_C_LIBRARIES}")
else()
  message(STATUS "gradtile: no MPI; --processes needs none")
endif()

include(GradtileCuda)
