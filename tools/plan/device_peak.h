#pragma once
/// A device's peak speed: the denominator of MFU (model FLOPs utilisation).
#include <gradtile/core/allocator.h>
#include <gradtile/core/dtype.h>

namespace gradtile {

/// The GPU properties that the peak depends on; clock_hz is the highest clock.
struct GpuKind {
    std::string_view name;
    int major = 0, minor = 0;  ///< compute capability
    int multiprocessors = 0;
    double clock_hz = 0.0;
};

/// Returns the dense floating-point operations per second for `dtype` matrix products. 16-bit types use
/// tensor cores with float32 sums; float32 operands are rounded to TF32 if `tf32` (see Context::with_tf32).
/// Uses the maker's figure for known names, else the operations per cycle of that compute capability; returns
/// 0 if neither is known.
double peak_flops(const GpuKind& gpu, DType dtype, bool tf32 = false);
/// Returns the operations per second for a device in this machine; 0 for the CPU.
double peak_flops(Device device, DType dtype, bool tf32 = false);

}  // namespace gradtile
