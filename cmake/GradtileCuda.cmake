#With a CUDA toolkit the CUDA side is built; \
    the driver is never linked, so the binary starts on a machine without one.
set(GRADTILE_HAVE_CUDA OFF) set(GRADTILE_HAVE_NCCL OFF) if (GRADTILE_CUDA) include(CheckLanguage)
    check_language(CUDA) if (CMAKE_CUDA_COMPILER) if (NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        set(CMAKE_CUDA_ARCHITECTURES 90a - real) endif() enable_language(CUDA)
#CMake 3.25 predates C++ 20 support for nvcc 13.
            set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION - std = c++ 20)
                set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION - std = c++ 20) set(CMAKE_CUDA_STANDARD 20)
                    set(CMAKE_CUDA_RUNTIME_LIBRARY Static) find_package(CUDAToolkit REQUIRED)
                        set(GRADTILE_HAVE_CUDA ON) endif() endif() if (GRADTILE_HAVE_CUDA)
#cuBLAS is loaded when the first product on a GPU needs it(core / cublas.cpp), \
    so only its header is used here.
                            target_link_libraries(gradtile_dependencies INTERFACE CUDA::cudart_static ${
                                CMAKE_DL_LIBS})
#Loaded when several GPUs first need it, like cuBLAS.
                                find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
                                    find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR}) if (
                                        NCCL_INCLUDE_DIR AND NCCL_LIBRARY) set(GRADTILE_HAVE_NCCL ON)
                                        message(STATUS "gradtile: NCCL at ${NCCL_LIBRARY}") else()
                                            message(STATUS "gradtile: no NCCL; one GPU a run") endif()
                                                message(STATUS
                                                        "gradtile: CUDA ${CUDAToolkit_VERSION}, "
                                                        "architectures ${CMAKE_CUDA_ARCHITECTURES}") else()
                                                    message(STATUS "gradtile: no CUDA; CPU only") endif()
