#pragma once
/// Marks the functions that kernels call as well as the host.

#if defined(__CUDACC__)
#define GRADTILE_HOST_DEVICE __host__ __device__
#else
#define GRADTILE_HOST_DEVICE
#endif
