// Finds each head's largest magnitude, for kernels that scale numbers into binary16's range.
#include <algorithm>

#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/magnitude.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda::device {
namespace {

/// The tensors to measure, each [B, S, heads, columns] with the same B, or one batch of packed sequences.
struct MeasureParameters {
    static constexpr int max_tensors = 5;
    struct Input {
        TensorView<const float> x;
        int rows, heads, columns;
        bool vectors;  ///< whether has_vector_rows() holds
        bool has_query_rows;
    } tensors[max_tensors];
    int sequences, key_heads;
    std::uint32_t* largest;  ///< [tensors, sequences, key_heads], 0 before the launch; a group's query heads
                             ///< share an element
    PackedOffsets packed;
};

constexpr int measure_lanes = 16, measure_rows_at_once = 16;

/// Grid: (sequences * heads, row blocks, tensors). Infinities and NaN are skipped, because no power of two
/// brings them into range.
__global__ void __launch_bounds__(measure_lanes* measure_rows_at_once)
    measure_kernel(const __grid_constant__ MeasureParameters p) {
    const MeasureParameters::Input& t = p.tensors[blockIdx.z];
    const int sequence = static_cast<int>(blockIdx.x) / t.heads,
              head = static_cast<int>(blockIdx.x) % t.heads;
    if (sequence >= p.sequences) return;
    PackedOffsets::Range range{0, t.rows};
    if (p.packed) range = t.has_query_rows ? p.packed.queries(sequence) : p.packed.keys(sequence);
    const int lane = static_cast<int>(threadIdx.x) % measure_lanes;
    const StridedRows<const float> rows = t.x.head(p.packed ? 0 : sequence, head);
    std::uint32_t largest = 0;
    const auto measure = [&](float x) {
        const std::uint32_t bits = __float_as_uint(fabsf(x));
        if (bits < 0x7f800000u) largest = max(largest, bits);
    };
    const int thread_row = static_cast<int>(blockIdx.y * measure_rows_at_once + threadIdx.x / measure_lanes);
#pragma unroll 8
    for (int row = range.begin + thread_row; row < range.end;
         row += static_cast<int>(gridDim.y) * measure_rows_at_once) {
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
        atomicMax(p.largest + (static_cast<std::int64_t>(blockIdx.z) * p.sequences + sequence) * p.key_heads +
                      head / (t.heads / p.key_heads),
                  largest);
}

}  // namespace

void measure(const Context& ctx, const Tensor& magnitudes, const PackedOffsets& packed,
             std::initializer_list<Measured> tensors) {
    fill(ctx, magnitudes, 0.0);
    MeasureParameters p{.tensors = {},
                        .sequences = static_cast<int>(magnitudes.size(1)),
                        .key_heads = static_cast<int>(magnitudes.size(2)),
                        .largest = largest_of(magnitudes),
                        .packed = packed};
    std::int64_t max_heads = 0, max_rows = 0;
    MeasureParameters::Input* input = p.tensors;
    for (const auto& [x, has_query_rows] : tensors) {
        *input++ = {tensor_view<const float>(x), static_cast<int>(x.size(1)), static_cast<int>(x.size(2)),
                    static_cast<int>(x.size(3)), has_vector_rows(x),          has_query_rows};
        max_heads = std::max(max_heads, x.size(2));
        max_rows = std::max(max_rows, x.size(1));
    }
    if (magnitudes.elements() == 0 || max_heads == 0 || max_rows == 0) return;
    constexpr std::int64_t rows_per_block = 8 * measure_rows_at_once, max_blocks = 1024;
    // For packed sequences, the row count is an average, because the host does not know their lengths.
    const std::int64_t rows = packed ? ceil_div(max_rows, magnitudes.size(1)) : max_rows;
    const dim3 blocks(static_cast<unsigned>(magnitudes.size(1) * max_heads),
                      static_cast<unsigned>(std::min(ceil_div(rows, rows_per_block), max_blocks)),
                      static_cast<unsigned>(tensors.size()));
    gradtile::cuda::launch(ctx, measure_kernel, blocks, {.threads = measure_lanes * measure_rows_at_once}, p);
}

}  // namespace gradtile::attention::cuda::device
