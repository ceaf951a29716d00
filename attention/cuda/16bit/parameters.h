#pragma once
/// INTERNAL. What the 16-bit flash kernels of the GPU are launched with, and their launchers, each compiled
/// in a file of its own.
#include <cstdint>

#include <cuda_runtime_api.h>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/attention/cuda/device/head_rows.cuh>
#include <gradtile/attention/cuda/device/mask.cuh>
#include <gradtile/attention/cuda/device/task_order.cuh>

namespace gradtile::attention::cuda {

struct Bits16ForwardParameters {
    device::TensorView<const std::uint16_t> q, k, v;  ///< bits of bfloat16 or float16
    device::TensorView<std::uint16_t> o;
    float* lse;  ///< [B, Hq, Sq], natural log
    int batch_size;
    device::Sizes sizes;
    device::DeviceMask mask;
    float scale_log2;  ///< log2(e) * scale, unless that is not positive
    float prescale;  ///< the scale, when it is not positive: S takes it before its maximum is sought; else 1
};

struct Bits16BackwardParameters {
    device::TensorView<const std::uint16_t> q, k, v, o, d_o;
    device::TensorView<std::uint16_t> d_q, d_k, d_v;
    const float* lse;     ///< [B, Hq, Sq], natural log
    float* lse_log2;      ///< [B, Hq, padded rows]: LSE in base 2 as backward_kernel takes it
    float* delta;         ///< [B, Hq, padded rows]: D = rowsum(dO * O), likewise
    float* d_q_sums;      ///< dQ / scale in float32, in the order of the accumulators (see DqSums)
    std::int32_t* turns;  ///< [B, Hq, row blocks, warps] when deterministic, else null
    std::int32_t*
        next_task;  ///< when deterministic: how many blocks of backward_kernel have started; else null
    int batch_size;
    device::Sizes sizes;
    int padded_rows;  ///< a multiple of every kernel's row block
    device::DeviceMask mask;
    device::TaskOrder order;  ///< of (batch, key head) and block of keys
    float scale_log2;         ///< log2(e) * scale
    float scale;
};

/// Enqueue the passes of T for head dims up to the instantiation's. Throw on launch failures.
template <class T>
void launch_forward(const Bits16ForwardParameters& parameters, cudaStream_t stream);
template <class T>
void launch_backward(const Bits16BackwardParameters& parameters, cudaStream_t stream);

/// The backward pass works on padded rows, a multiple of every block of rows.
constexpr int backward_row_padding = 128;
/// Pieces of dQ per padded rows that are added to in turns: most warps, least rows a block.
constexpr int backward_turns = 8 * backward_row_padding / 32;

}  // namespace gradtile::attention::cuda
