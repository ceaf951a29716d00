#pragma once
/// INTERNAL. Ends a switch over an enumeration, on the host and in kernels.
#include <gradtile/core/check.h>
#include <gradtile/core/host_device.h>

namespace gradtile {

/// Follows a switch that returns for every enumerator. On the host the call throws Error(message). In a
/// kernel it stops the kernel, because a result for an enumerator that the switch does not know would be
/// wrong.
[[noreturn]] GRADTILE_HOST_DEVICE inline void refuse_unknown(const char* message) {
#ifdef __CUDA_ARCH__
    static_cast<void>(message);
    __trap();
#else
    throw Error(message);
#endif
}

}  // namespace gradtile
