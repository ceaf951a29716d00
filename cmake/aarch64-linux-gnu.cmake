# Cross-compiles for aarch64 Linux against a sysroot of Debian packages, which scripts/cross_aarch64.sh makes.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
get_filename_component(sysroot ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64-sysroot ABSOLUTE)
set(GRADTILE_SYSROOT ${sysroot} CACHE PATH "Folder of the target's packages")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES GRADTILE_SYSROOT)
set(CMAKE_SYSROOT ${GRADTILE_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# Debian keeps the HDF5 library without MPI in a folder of its own.
set(HDF5_ROOT ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/hdf5/serial)
# ctest runs the tests with qemu-user, on a processor with every extension that qemu knows.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-cpu;max;-L;${CMAKE_SYSROOT};-E;LD_LIBRARY_PATH=${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/openblas-pthread)
