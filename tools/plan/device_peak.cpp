#include <gradtile/tools/plan/device_peak.h>

#include <array>

#include <gradtile/core/cuda_runtime.h>

namespace gradtile {
namespace {

struct Peaks {
    double peak_16_bit, peak_f32, peak_f64;
    double of(DType dtype, bool tf32) const {
        if (is_16_bit(dtype)) return peak_16_bit;
        if (dtype == DType::f64) return peak_f64;
        return tf32 ? peak_16_bit / 2 : peak_f32;  // every GPU with TF32 has half the 16-bit rate
    }
};

/// The dense peak rates that data sheets state. The clock under load is lower than the highest clock, so
/// these figures are more accurate than highest clock times operations per cycle.
struct NamedPeaks {
    std::string_view part_of_name;
    Peaks peaks;
};
constexpr std::array by_name{
    NamedPeaks{"H200", {989e12, 67e12, 67e12}},      NamedPeaks{"H100 PCIe", {756e12, 51e12, 51e12}},
    NamedPeaks{"H100 NVL", {835e12, 60e12, 60e12}},  NamedPeaks{"H100", {989e12, 67e12, 67e12}},
    NamedPeaks{"A100-", {312e12, 19.5e12, 19.5e12}}, NamedPeaks{"A100 ", {312e12, 19.5e12, 19.5e12}},
    NamedPeaks{"L40S", {362e12, 91.6e12, 1.4e12}}};

/// Operations per multiprocessor and cycle; a fused multiply-add counts as two (CUDA C++ Programming Guide,
/// "Arithmetic Instructions"; architecture white papers).
Peaks per_cycle(int major, int minor) {
    switch (10 * major + minor) {
        case 80:
            return {2048, 128, 128};
        case 86:
        case 89:
            return {1024, 256, 4};
        case 90:
            return {4096, 256, 256};
        case 100:
        case 103:
            return {8192, 256, 256};
        default:
            return {0, 0, 0};
    }
}

}  // namespace

double peak_flops(const GpuKind& gpu, DType dtype, bool tf32) {
    for (const NamedPeaks& known : by_name)
        if (gpu.name.find(known.part_of_name) != std::string_view::npos) return known.peaks.of(dtype, tf32);
    return per_cycle(gpu.major, gpu.minor).of(dtype, tf32) * gpu.multiprocessors * gpu.clock_hz;
}

double peak_flops(Device device, DType dtype, bool tf32) {
    if (device.is_cpu()) return 0.0;
    const cuda::DeviceProperties gpu = cuda::device_properties(device);
    return peak_flops({gpu.name, gpu.major, gpu.minor, gpu.multiprocessors, gpu.clock_hz}, dtype, tf32);
}

}  // namespace gradtile
