// How large each head's numbers are, for kernels that scale them into binary16's range.
#include <algorithm>

#include <gradtile/core/cuda/internal/cuda_check.h>
#include <gradtile/attention/cuda/device/head_rows.cuh>
#include <gradtile/attention/cuda/device/magnitude.cuh>

namespace gradtile::attention::cuda::device {
namespace {

/// Tensors [B, S, heads, columns] of one batch whose numbers are measured.
struct Measured {
    static constexpr int most = 4;
    struct One {
        HeadRows<const float> x;
        int rows, heads, columns;
        bool vectors;  ///< has_vector_rows
    } tensors[most];
    int batches, key_heads;
    std::uint32_t* largest;  ///< [tensors, B, key_heads], zeros before; query heads of a group count as one
};

constexpr int measure_lanes = 16, measure_rows_at_once = 16;

/// Blocks: (B * heads, rows, tensors). An infinity or NaN says nothing about the other numbers.
__global__ void __launch_bounds__(measure_lanes* measure_rows_at_once)
    measure_kernel(const __grid_constant__ Measured p) {
    const Measured::One& t = p.tensors[blockIdx.z];
    const int batch = static_cast<int>(blockIdx.x) / t.heads, head = static_cast<int>(blockIdx.x) % t.heads;
    if (batch >= p.batches) return;
    const int lane = static_cast<int>(threadIdx.x) % measure_lanes;
    const Rows<const float> rows = t.x.of(batch, head);
    std::uint32_t largest = 0;
    const auto measure = [&](float x) {
        const std::uint32_t bits = __float_as_uint(fabsf(x));
        if (bits < 0x7f800000u) largest = max(largest, bits);
    };
    const int thread_row = static_cast<int>(blockIdx.y * measure_rows_at_once + threadIdx.x / measure_lanes);
#pragma unroll 8
    for (int row = thread_row; row < t.rows; row += static_cast<int>(gridDim.y) * measure_rows_at_once) {
        const float* const x = rows.row(row);
        if (t.vectors) {
            for (int c = lane * 4; c < t.columns; c += measure_lanes * 4) {
                const float4 four = *reinterpret_cast<const float4*>(x + c);
                measure(four.x);
                measure(four.y);
                measure(four.z);
                measure(four.w);
            }
        } else {
            for (int c = lane; c < t.columns; c += measure_lanes) measure(x[c]);
        }
    }
    largest = __reduce_max_sync(~0u, largest);
    if (threadIdx.x % 32 == 0)
        atomicMax(p.largest + (static_cast<std::int64_t>(blockIdx.z) * p.batches + batch) * p.key_heads +
                      head / (t.heads / p.key_heads),
                  largest);
}

}  // namespace

void measure(const Context& ctx, const Tensor& magnitudes, std::initializer_list<const Tensor*> tensors) {
    fill(ctx, magnitudes, 0.0);
    Measured p{.tensors = {},
               .batches = static_cast<int>(magnitudes.size(1)),
               .key_heads = static_cast<int>(magnitudes.size(2)),
               .largest = largest_of(magnitudes)};
    std::int64_t most_heads = 0, most_rows = 0;
    Measured::One* one = p.tensors;
    for (const Tensor* x : tensors) {
        *one++ = {head_rows<const float>(*x), static_cast<int>(x->size(1)), static_cast<int>(x->size(2)),
                  static_cast<int>(x->size(3)), has_vector_rows(*x)};
        most_heads = std::max(most_heads, x->size(2));
        most_rows = std::max(most_rows, x->size(1));
    }
    if (magnitudes.elements() == 0 || most_heads == 0 || most_rows == 0) return;
    constexpr std::int64_t rows_per_block = 8 * measure_rows_at_once, most_blocks = 1024;
    const dim3 blocks(
        static_cast<unsigned>(magnitudes.size(1) * most_heads),
        static_cast<unsigned>(std::min((most_rows + rows_per_block - 1) / rows_per_block, most_blocks)),
        static_cast<unsigned>(tensors.size()));
    gradtile::cuda::use_device(ctx.device());
    measure_kernel<<<blocks, measure_lanes * measure_rows_at_once, 0,
                     static_cast<cudaStream_t>(ctx.stream())>>>(p);
    gradtile::cuda::cuda_check(cudaGetLastError());
}

}  // namespace gradtile::attention::cuda::device
