#pragma once
/// Element addresses for elementwise kernels over tensors with any strides.
#include <algorithm>
#include <array>
#include <cstdint>

#include <gradtile/core/tensor.h>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::cuda {

/// The common axes of `count` equally shaped tensors. Neighbouring axes are merged if all tensors' strides
/// allow it; contiguous tensors have one merged axis.
template <int count>
struct Layout {
    int rank = 0;
    std::int64_t size[Shape::max_rank];
    std::int64_t step[Shape::max_rank][count];

    explicit Layout(const std::array<Tensor, count>& tensors) {
        const Tensor& first = tensors[0];
        for (int axis = 0; axis < first.rank(); ++axis) {
            if (first.size(axis) == 1) continue;
            if (rank == 0 || !continues_last_axis(tensors, axis)) {
                size[rank] = 1;
                ++rank;
            }
            size[rank - 1] *= first.size(axis);
            for (int t = 0; t < count; ++t)
                step[rank - 1][t] = tensors[static_cast<std::size_t>(t)].stride(axis);
        }
    }

  private:
    bool continues_last_axis(const std::array<Tensor, count>& tensors, int axis) const {
        for (int t = 0; t < count; ++t) {
            const Tensor& x = tensors[static_cast<std::size_t>(t)];
            if (step[rank - 1][t] != x.size(axis) * x.stride(axis)) return false;
        }
        return true;
    }
};

/// One element's offset in each tensor.
template <int count>
struct Offsets {
    std::int64_t values[count];
};
template <int count>
__device__ Offsets<count> offsets_of(const Layout<count>& layout, std::int64_t index) {
    Offsets<count> offsets{};
    for (int axis = layout.rank - 1; axis >= 0; --axis) {
        const std::int64_t next = axis > 0 ? index / layout.size[axis] : 0;
        const std::int64_t place = index - next * layout.size[axis];
        for (int t = 0; t < count; ++t) offsets.values[t] += place * layout.step[axis][t];
        index = next;
    }
    return offsets;
}

inline constexpr int strided_threads = 256;

/// Calls body(offsets) for each element that this thread processes. A kernel calls this function first.
template <int count, class Body>
__device__ void for_elements(const Layout<count>& layout, std::int64_t elements, Body&& body) {
    device::await_predecessor();
    for (std::int64_t i = blockIdx.x * std::int64_t{strided_threads} + threadIdx.x; i < elements;
         i += std::int64_t{gridDim.x} * strided_threads)
        body(offsets_of(layout, i));
}

/// Launches kernel(arguments..., layout, elements) for all elements of equally shaped tensors.
template <int count, class... Parameters, class... Arguments>
void launch_strided(const Context& ctx, void (*kernel)(Parameters...),
                    const std::array<Tensor, count>& tensors, Arguments... arguments) {
    // Enough blocks to fill the largest GPU several times. Each thread processes every (blocks * threads)-th
    // element.
    constexpr std::int64_t max_blocks = 8 * 1024;
    const std::int64_t elements = tensors[0].elements();
    if (elements == 0) return;
    const auto blocks = static_cast<unsigned>(std::min(max_blocks, ceil_div(elements, strided_threads)));
    launch(ctx, kernel, blocks, {.threads = strided_threads, .starts_early = true}, arguments...,
           Layout<count>(tensors), elements);
}

}  // namespace gradtile::cuda
