#pragma once
/// INTERNAL. Parameters of the kernels of memory_efficient and flash1 on the GPU, and the functions that
/// launch them. Each instantiation of these functions is compiled in a source file of its own.
#include <cuda_runtime_api.h>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/cuda/device/head_rows.cuh>
#include <gradtile/attention/cuda/device/mask.cuh>

namespace gradtile::attention::cuda::tiled {

/// Columns of V up to which the forward pass of memory_efficient keeps O in registers.
inline constexpr int max_columns_in_registers = 128;

template <class T>
struct TiledForwardParameters {
    using A = Accumulator<T>;
    device::TensorView<const T> q, k, v;
    device::TensorView<T> o;       ///< for kernels that keep O in registers
    device::TensorView<A> o_sums;  ///< for kernels that keep O in global memory, the paper's slow memory
    A* lse;                        ///< [B, Hq, Sq], natural log
    A* lse_remainder;              ///< [B, Hq, Sq], or null
    A *row_max, *row_sum;          ///< [B, Hq, Sq]: m and l; flash1 only
    int batch_size;
    int splits = 1;  ///< flash1: thread blocks that divide the rows of a head; set at launch
    device::Sizes sizes;
    device::DeviceMask mask;
    A scale;
    ScoreOptions scores;
};

template <class T>
struct TiledBackwardParameters {
    using A = Accumulator<T>;
    device::TensorView<const T> q, k, v, d_o;
    device::TensorView<A> d_q, d_k, d_v;  ///< sums; those that a kernel adds to are 0 before it starts
    /// Each [B, Hq, Sq]: P = exp(score - reference) / row_sum. memory_efficient: `reference` is the LSE (+inf
    /// for rows that see no key), and `row_sum` is exp of the LSE's remainder, or null, which stands for 1.
    /// flash1: m and l.
    const A *reference, *row_sum;
    const A* delta;                ///< [B, Hq, Sq]: D = rowsum(dO * O) - dLSE
    std::int64_t d_q_part_stride;  ///< distance in elements of the parts of dQ; 0: one part
    int batch_size;
    /// Thread blocks for each (batch, K/V head). memory_efficient: they divide the blocks of rows and add to
    /// dK and dV. flash1: they divide the blocks of keys, and each has its own part of dQ.
    int splits;
    device::Sizes sizes;
    device::DeviceMask mask;
    A scale, dropout_scale;
    ScoreOptions scores;
};

/// These functions enqueue a pass. They throw Error if a launch fails.
template <class T>
void launch_memory_efficient_forward(const Context& ctx, const TiledForwardParameters<T>& parameters);
template <class T>
void launch_flash1_forward(const Context& ctx, const TiledForwardParameters<T>& parameters);
template <class T>
void launch_memory_efficient_backward(const Context& ctx, const TiledBackwardParameters<T>& parameters);
template <class T>
void launch_flash1_backward(const Context& ctx, const TiledBackwardParameters<T>& parameters);

/// Rows and keys whose tiles a thread block has in shared memory at the same time.
struct BlockSizes {
    int rows, keys;
};
/// Return the block sizes of the functions above for a call. They depend only on the sizes and score options
/// in `parameters`.
template <class T>
BlockSizes memory_efficient_forward_blocks(const TiledForwardParameters<T>& parameters);
template <class T>
BlockSizes flash1_forward_blocks(const TiledForwardParameters<T>& parameters);
template <class T>
BlockSizes memory_efficient_backward_blocks(const TiledBackwardParameters<T>& parameters);
template <class T>
BlockSizes flash1_backward_blocks(const TiledBackwardParameters<T>& parameters);

}  // namespace gradtile::attention::cuda::tiled
