#pragma once
/// Marks functions that both the host and kernels call.

#if defined(__CUDACC__)
#define GRADTILE_HOST_DEVICE __host__ __device__
/// Precedes a template for host and device that calls functions of its template arguments, which may exist
/// only on the host or only on the device. The compiler then does not warn about such calls.
#define GRADTILE_CALLS_EITHER_DEVICE _Pragma("nv_exec_check_disable")
#else
#define GRADTILE_HOST_DEVICE
#define GRADTILE_CALLS_EITHER_DEVICE
#endif
