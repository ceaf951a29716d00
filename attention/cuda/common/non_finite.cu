// Searches attention results for numbers that are not finite; see repair_forward().
#include <algorithm>
#include <cmath>
#include <cstdint>

#include <gradtile/attention/cuda/common/exact_lse.h>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

using namespace device;

constexpr int scan_threads = 256;

/// Sets *found to 1 if an element in x is not finite. In a flat x, element n is n * column_stride elements
/// from the first one. Otherwise x [B, S, H] holds rows with `columns` elements each.
template <class T>
__global__ void __launch_bounds__(scan_threads)
    find_non_finite_kernel(TensorView<const T> x, bool is_flat, std::int64_t column_stride,
                           std::int64_t elements, int rows, int heads, int columns, int* found) {
    bool is_found = false;
    for (std::int64_t n = std::int64_t{blockIdx.x} * scan_threads + threadIdx.x; n < elements;
         n += std::int64_t{gridDim.x} * scan_threads) {
        const T* element = x.data + n * column_stride;
        if (!is_flat) {
            const std::int64_t row = n / columns, position = row / heads;
            element = x.head(position / rows, row % heads).row(position % rows) + n % columns * column_stride;
        }
        is_found |= !isfinite(gradtile::cuda::device::convert<Accumulator<T>>(*element));
    }
    if (__syncthreads_or(is_found) && threadIdx.x == 0) *found = 1;
}

/// The distance between neighbouring elements in x if it is the same for all, else 0.
std::int64_t flat_stride(const Tensor& x) {
    const std::int64_t step = x.size(3) > 1 ? x.stride(3) : x.stride(2);
    std::int64_t stride = step;
    for (int axis = 3; axis >= 0; --axis) {
        if (x.size(axis) > 1 && x.stride(axis) != stride) return 0;
        stride *= x.size(axis);
    }
    return step;
}

}  // namespace

void find_non_finite(const Context& ctx, const ResolvedOptions& options, const Tensor& x) {
    if (!options.flags.defined() || ctx.is_planning() || x.elements() == 0) return;
    const std::int64_t flat = flat_stride(x),
                       blocks = std::min<std::int64_t>(1024, x.elements() / (8 * scan_threads) + 1);
    visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
        gradtile::cuda::launch(ctx, find_non_finite_kernel<T>, dim3(static_cast<unsigned>(blocks)),
                               {.threads = scan_threads}, tensor_view<const T>(x), flat != 0,
                               flat != 0 ? flat : x.stride(3), x.elements(), static_cast<int>(x.size(1)),
                               static_cast<int>(x.size(2)), static_cast<int>(x.size(3)),
                               non_finite_flag(options));
    });
}

}  // namespace gradtile::attention::cuda
