// Merges partial attention results; see attention.h.
#include <gradtile/attention/internal/merge_backend.h>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

constexpr int warps_per_block = 4;

template <class To, class From>
__device__ __forceinline__ To as(From value) {
    return gradtile::cuda::device::convert<To>(value);
}

/// Each warp merges one row in one head.
template <class T>
__global__ void __launch_bounds__(32 * warps_per_block)
    merge_kernel(device::TensorView<T> o, Accumulator<T>* lse, device::TensorView<const T> o_a,
                 const Accumulator<T>* lse_a, device::TensorView<const T> o_b, const Accumulator<T>* lse_b,
                 std::int64_t count, std::int64_t rows, std::int64_t heads, int columns) {
    using A = Accumulator<T>;
    const std::int64_t n = std::int64_t{blockIdx.x} * warps_per_block + threadIdx.x / 32;
    if (n >= count) return;
    const std::int64_t batch = n / (heads * rows), head = n / rows % heads, i = n % rows;
    const MergedRow<A> row(lse_a[n], lse_b[n]);
    const T *const from_a = o_a.head(batch, head).row(i), *const from_b = o_b.head(batch, head).row(i);
    T* const to = o.head(batch, head).row(i);
    for (int c = static_cast<int>(threadIdx.x) % 32; c < columns; c += 32)
        to[c] = as<T>(row.element(as<A>(from_a[c]), as<A>(from_b[c])));
    __syncwarp();  // lse may be lse_a or lse_b
    if (threadIdx.x % 32 == 0) lse[n] = row.lse;
}

}  // namespace

void merge(const Context& ctx, const PartialResult& into, const PartialResult& a, const PartialResult& b) {
    const std::int64_t count = into.lse.elements(), blocks = ceil_div(count, warps_per_block);
    check(blocks <= INT32_MAX, "merge: lse ", into.lse, " has more than 2^33 - 4 elements");
    visit_floating(into.o.dtype(), [&]<class T>(TypeTag<T>) {
        using A = Accumulator<T>;
        gradtile::cuda::launch(ctx, merge_kernel<T>, dim3(static_cast<unsigned>(blocks)),
                               {.threads = 32 * warps_per_block}, device::tensor_view<T>(into.o),
                               into.lse.data<A>(), device::tensor_view<const T>(a.o),
                               static_cast<const A*>(a.lse.data<A>()), device::tensor_view<const T>(b.o),
                               static_cast<const A*>(b.lse.data<A>()), count, into.o.size(1), into.o.size(2),
                               static_cast<int>(into.o.size(3)));
    });
}

}  // namespace gradtile::attention::cuda
