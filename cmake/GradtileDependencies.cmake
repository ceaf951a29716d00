# Finds the libraries that gradtile needs, and names the packages of missing ones.
include(GNUInstallDirs)
find_package(Threads REQUIRED)

set(GRADTILE_MISSING "")
macro(gradtile_require what found package)
  if(NOT ${found})
    string(APPEND GRADTILE_MISSING "  ${what}: apt-get install ${package}\n")
  endif()
endmacro()

# Matrix products on the CPU: oneDNN first, OpenBLAS second.
set(GRADTILE_CPU_BLAS "auto" CACHE STRING "CPU matrix library: auto, onednn or openblas")
find_package(DNNLLibrary QUIET)
find_path(OPENBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas openblas-pthread)
find_library(OPENBLAS_LIBRARY openblas PATH_SUFFIXES openblas-pthread)
if(GRADTILE_CPU_BLAS STREQUAL "auto")
  if(DNNLLibrary_FOUND)
    set(gradtile_blas onednn)
  else()
    set(gradtile_blas openblas)
  endif()
else()
  set(gradtile_blas ${GRADTILE_CPU_BLAS})
endif()
if(gradtile_blas STREQUAL "onednn")
  gradtile_require("oneDNN" DNNLLibrary_FOUND libdnnl-dev)
  find_package(OpenMP REQUIRED COMPONENTS CXX)  # only to tell oneDNN's OpenMP runtime that each of our threads works alone
else()
  gradtile_require("oneDNN or OpenBLAS" OPENBLAS_LIBRARY "libdnnl-dev (or libopenblas-dev)")
endif()

find_package(HDF5 COMPONENTS C)
gradtile_require("HDF5" HDF5_FOUND libhdf5-dev)
# Only OpenSSL's libcrypto is used, which HDF5 of Debian and Ubuntu depends on as well.
find_package(OpenSSL COMPONENTS Crypto)
gradtile_require("OpenSSL (libcrypto)" OPENSSL_FOUND libssl-dev)
find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp)
gradtile_require("CLI11" CLI11_INCLUDE_DIR libcli11-dev)
find_package(nlohmann_json QUIET)
gradtile_require("nlohmann-json" nlohmann_json_FOUND nlohmann-json3-dev)
if(GRADTILE_TESTS)
  find_package(GTest)
  gradtile_require("GoogleTest" GTest_FOUND libgtest-dev)
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
else()
  # Loaded at the first product, not linked: gemm_openblas.cpp says why.
  target_include_directories(gradtile_dependencies SYSTEM INTERFACE $<BUILD_INTERFACE:${OPENBLAS_INCLUDE_DIR}>)
endif()
message(STATUS "gradtile: CPU matrix library: ${gradtile_blas}")

# MPI connects several processes on the CPU. Only the plug-in is linked with MPI; programs of the build find it by RUNPATH.
find_package(MPI COMPONENTS C)
set(GRADTILE_PLUGIN_DIR ${PROJECT_BINARY_DIR}/plugins)
list(APPEND CMAKE_BUILD_RPATH ${GRADTILE_PLUGIN_DIR})
if(MPI_C_FOUND)
  message(STATUS "gradtile: MPI ${MPI_C_VERSION} at ${MPI_C_LIBRARIES}")
else()
  message(STATUS "gradtile: no MPI; one process per run on the CPU")
endif()

include(GradtileCuda)
