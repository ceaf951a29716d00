#pragma once
/// Marks functions that both the host and kernels call.

#if defined(__CUDACC__)
#define GRADTILE_HOST_DEVICE __host__ __device__
#else
#define GRADTILE_HOST_DEVICE
#endif
