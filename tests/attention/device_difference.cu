#include "device_difference.h"

#include <bit>

#include <gradtile/core/check.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::test {
namespace {

/// Counts for one pair of tensors. The floats are not negative, so comparing their bits compares their
/// values.
struct Counts {
    unsigned different_bits, difference, largest;
};
constexpr std::int64_t numbers = sizeof(Counts) / sizeof(std::int32_t);

template <class T>
__device__ bool has_equal_bits(const T& a, const T& b) {
    const auto* const bytes_a = reinterpret_cast<const unsigned char*>(&a);
    const auto* const bytes_b = reinterpret_cast<const unsigned char*>(&b);
    for (std::size_t i = 0; i < sizeof(T); ++i)
        if (bytes_a[i] != bytes_b[i]) return false;
    return true;
}

template <class T>
__global__ void count_differences(const T* a, const T* b, std::int64_t elements, Counts* total) {
    namespace cuda = gradtile::cuda::device;
    Counts counts{};
    for (std::int64_t i = blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; i < elements;
         i += std::int64_t{gridDim.x} * blockDim.x) {
        const auto x = cuda::convert<double>(a[i]), y = cuda::convert<double>(b[i]);
        if (isfinite(x)) counts.largest = max(counts.largest, __float_as_uint(static_cast<float>(fabs(x))));
        if (has_equal_bits(a[i], b[i])) continue;
        ++counts.different_bits;
        const auto difference = static_cast<float>(fabs(x - y));
        counts.difference =
            max(counts.difference, __float_as_uint(isfinite(difference) ? difference : INFINITY));
    }
    constexpr unsigned all_lanes = ~0u;
    counts = {__reduce_add_sync(all_lanes, counts.different_bits),
              __reduce_max_sync(all_lanes, counts.difference), __reduce_max_sync(all_lanes, counts.largest)};
    if (threadIdx.x % 32 != 0) return;
    if (counts.different_bits > 0) atomicAdd(&total->different_bits, counts.different_bits);
    atomicMax(&total->difference, counts.difference);
    atomicMax(&total->largest, counts.largest);
}

template <class T>
void enqueue(const Context& ctx, const Tensor& a, const Tensor& b, Counts* counts) {
    constexpr std::int64_t threads = 256, max_blocks = 256;
    const dim3 grid = gradtile::cuda::blocks_for(std::min(a.elements(), threads * max_blocks), threads);
    gradtile::cuda::launch(ctx, count_differences<T>, grid, {.threads = threads}, a.data<T>(), b.data<T>(),
                           a.elements(), counts);
}

}  // namespace

std::vector<DeviceDifference> device_differences(const Context& ctx, const std::vector<Tensor>& a,
                                                 const std::vector<Tensor>& b) {
    const auto count = static_cast<std::int64_t>(a.size());
    check(a.size() == b.size(), "device_differences: ", a.size(), " tensors and ", b.size());
    const Tensor counts = empty(ctx, {count, numbers}, DType::i32);
    fill(ctx, counts, 0);
    for (std::size_t n = 0; n < a.size(); ++n) {
        check(a[n].defined() == b[n].defined(), "device_differences: only one of the tensors ", n, " exists");
        if (!a[n].defined()) continue;
        check(a[n].shape() == b[n].shape() && a[n].dtype() == b[n].dtype() && a[n].is_contiguous() &&
                  b[n].is_contiguous(),
              "device_differences: the tensors ", n, " differ in shape or dtype, or are not contiguous");
        auto* const into = reinterpret_cast<Counts*>(counts.data<std::int32_t>()) + n;
        visit_floating(a[n].dtype(),
                       [&](auto type) { enqueue<typename decltype(type)::type>(ctx, a[n], b[n], into); });
    }
    const std::vector<double> words = to_host(ctx, counts);
    const auto word = [&](std::size_t n, std::size_t i) {
        return static_cast<std::int32_t>(words[n * numbers + i]);
    };
    std::vector<DeviceDifference> differences;
    for (std::size_t n = 0; n < a.size(); ++n)
        differences.push_back({.different_bits = word(n, 0),
                               .largest_difference = std::bit_cast<float>(word(n, 1)),
                               .largest = std::bit_cast<float>(word(n, 2))});
    return differences;
}

}  // namespace gradtile::attention::test
