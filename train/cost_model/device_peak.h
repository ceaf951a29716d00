#pragma once
/// What a device could compute at best: the denominator of MFU.
#include <gradtile/core/device.h>
#include <gradtile/core/dtype.h>

namespace gradtile {

/// A GPU as far as its peak depends on it; clock_hz is the highest.
struct GpuKind {
    std::string_view name;
    int major = 0, minor = 0;  ///< compute capability
    int multiprocessors = 0;
    double clock_hz = 0.0;
};

/// Dense floating-point operations a second of matrix products in `dtype` (16-bit: tensor cores, float32
/// sums; float32: with operands rounded to TF32 or not, see Context::with_tf32). From the maker's figure
/// where the name is known, else from what a multiprocessor of that compute capability does a cycle; 0 when
/// that is not known either.
double peak_flops(const GpuKind& gpu, DType dtype, bool tf32 = false);
/// Of a device of this machine; 0 for the CPU.
double peak_flops(Device device, DType dtype, bool tf32 = false);

}  // namespace gradtile
