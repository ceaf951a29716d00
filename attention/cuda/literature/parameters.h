#pragma once
/// INTERNAL. Parameters for the memory_efficient and flash1 GPU kernels, and the functions that launch them.
/// Each instantiation of these functions is compiled in its own source file.
#include <cuda_runtime_api.h>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/mask.cuh>

namespace gradtile::attention::cuda::tiled {

/// memory_efficient's forward pass keeps O in registers up to this many V columns.
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
    int splits = 1;  ///< flash1: thread blocks that divide a head's rows; set at launch
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
    /// for rows that see no key), and `row_sum` is exp(LSE remainder), or null, which stands for 1. flash1: m
    /// and l.
    const A *reference, *row_sum;
    const A* delta;                ///< [B, Hq, Sq]: D = rowsum(dO * O) - dLSE
    std::int64_t d_q_part_stride;  ///< elements between dQ parts; 0: one part
    int batch_size;
    /// Thread blocks for each (batch, K/V head). memory_efficient: they divide the row blocks and add to dK
    /// and dV. flash1: they divide the key blocks, and each has its own part of dQ.
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
/// Return the block sizes that the functions above use for a call. They depend only on the sizes and score
/// options in `parameters`.
template <class T>
BlockSizes memory_efficient_forward_blocks(const TiledForwardParameters<T>& parameters);
template <class T>
BlockSizes flash1_forward_blocks(const TiledForwardParameters<T>& parameters);
template <class T>
BlockSizes memory_efficient_backward_blocks(const TiledBackwardParameters<T>& parameters);
template <class T>
BlockSizes flash1_backward_blocks(const TiledBackwardParameters<T>& parameters);

}  // namespace gradtile::attention::cuda::tiled
