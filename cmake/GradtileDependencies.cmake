# Finds what gradtile stands on and says how to get what is missing.
include(GNUInstallDirs)
find_package(Threads REQUIRED)

set(GRADTILE_MISSING "")
macro(gradtile_require what found package)
  if(NOT ${found})
    string(APPEND GRADTILE_MISSING "  ${what}: apt-get install ${package}\n")
  endif()
endmacro()

# Matrix products on the CPU: oneDNN first, OpenBLAS second. oneDNN's own CMake config asks for OpenCL headers that
# its CPU side does not need, hence the plain library search.
set(GRADTILE_CPU_BLAS "auto" CACHE STRING "CPU matrix library: auto, onednn or openblas")
find_path(DNNL_INCLUDE_DIR dnnl.hpp)
find_library(DNNL_LIBRARY dnnl)
find_path(OPENBLAS_INCLUDE_DIR cblas.h PATH_SUFFIXES openblas openblas-pthread x86_64-linux-gnu x86_64-linux-gnu/openblas-pthread)
find_library(OPENBLAS_LIBRARY openblas)
if(GRADTILE_CPU_BLAS STREQUAL "auto")
  if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
    set(gradtile_blas onednn)
  else()
    set(gradtile_blas openblas)
  endif()
else()
  set(gradtile_blas ${GRADTILE_CPU_BLAS})
endif()
if(gradtile_blas STREQUAL "onednn")
  gradtile_require("oneDNN" DNNL_LIBRARY libdnnl-dev)
  find_package(OpenMP REQUIRED COMPONENTS CXX)  # only to tell oneDNN's OpenMP runtime that each of our threads works alone
else()
  gradtile_require("oneDNN or OpenBLAS" OPENBLAS_LIBRARY "libdnnl-dev (or libopenblas-dev)")
endif()

find_package(HDF5 COMPONENTS C)
gradtile_require("HDF5" HDF5_FOUND libhdf5-dev)
# Of OpenSSL only its libcrypto, which Debian's and Ubuntu's HDF5 stand on anyway.
find_package(OpenSSL COMPONENTS Crypto)
gradtile_require("OpenSSL (libcrypto)" OPENSSL_CRYPTO_LIBRARY libssl-dev)
find_path(CLI11_INCLUDE_DIR CLI/CLI.hpp)
gradtile_require("CLI11" CLI11_INCLUDE_DIR libcli11-dev)
find_path(NLOHMANN_JSON_INCLUDE_DIR nlohmann/json.hpp)
gradtile_require("nlohmann-json" NLOHMANN_JSON_INCLUDE_DIR nlohmann-json3-dev)
if(GRADTILE_TESTS)
  find_package(GTest)
  gradtile_require("GoogleTest" GTest_FOUND libgtest-dev)
endif()
if(GRADTILE_MISSING)
  message(FATAL_ERROR "gradtile: missing libraries; scripts/setup.sh installs them all:\n${GRADTILE_MISSING}")
endif()

add_library(gradtile_dependencies INTERFACE)
target_include_directories(gradtile_dependencies SYSTEM INTERFACE
  ${HDF5_INCLUDE_DIRS} ${OPENSSL_INCLUDE_DIR} ${CLI11_INCLUDE_DIR} ${NLOHMANN_JSON_INCLUDE_DIR})
target_link_libraries(gradtile_dependencies INTERFACE Threads::Threads ${HDF5_C_LIBRARIES} ${OPENSSL_CRYPTO_LIBRARY} ${CMAKE_DL_LIBS})
if(gradtile_blas STREQUAL "onednn")
  target_include_directories(gradtile_dependencies SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
  target_link_libraries(gradtile_dependencies INTERFACE ${DNNL_LIBRARY} OpenMP::OpenMP_CXX)
else()
  # Loaded at the first product, not linked: gemm_openblas.cpp says why.
  target_include_directories(gradtile_dependencies SYSTEM INTERFACE ${OPENBLAS_INCLUDE_DIR})
endif()
message(STATUS "gradtile: CPU matrix library: ${gradtile_blas}")

# Several processes on the CPU.
find_package(MPI COMPONENTS C)
if(MPI_C_FOUND)
  target_link_libraries(gradtile_dependencies INTERFACE ${MPI_C_LIBRARIES})
  message(STATUS "gradtile: MPI ${MPI_C_VERSION} at ${MPI_C_LIBRARIES}")
else()
  message(STATUS "gradtile: no MPI; one process a run on the CPU")
endif()

include(GradtileCuda)
