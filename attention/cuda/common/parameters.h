#pragma once
/// INTERNAL. Parameters that the 16-bit GPU kernels of all generations share.
#include <cstdint>

#include <cuda_runtime_api.h>

#include <gradtile/attention/cuda/common/bias_gradients.h>
#include <gradtile/attention/cuda/common/exact_lse.h>
#include <gradtile/attention/cuda/common/few_queries.h>
#include <gradtile/attention/cuda/common/packed_tasks.h>
#include <gradtile/attention/cuda/common/row_ranges.h>
#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/mask.cuh>
#include <gradtile/attention/cuda/common/task_order.cuh>

namespace gradtile::attention::cuda {

struct Bits16ForwardParameters {
    device::TensorView<const std::uint16_t> q, k, v;  ///< bfloat16 or float16 bits
    device::TensorView<std::uint16_t> o;
    float* lse;            ///< [B, Hq, Sq], natural log
    float* lse_remainder;  ///< [B, Hq, Sq], or null
    int* non_finite;       ///< set if O is not finite; null without biases and row ranges
    int batch_size;
    device::Sizes sizes;
    device::DeviceMask mask;
    float scale_log2;  ///< log2(e) * scale if the scale is positive, else log2(e)
    float prescale;  ///< 1 if the scale is positive, else the scale: multiplies S before the maximum is taken
    ScoreOptions scores;
    RuleKind rule;  ///< pair_bias or any: prescale is the scale and scale_log2 is log2(e)
    PackedOffsets packed;
    PackedTasks row_tasks;  ///< row blocks if packed; at launch only its memory
    DeviceRowRanges row_ranges;
};

struct Bits16BackwardParameters {
    device::TensorView<const std::uint16_t> q, k, v, o, d_o;
    device::TensorView<std::uint16_t> d_q, d_k, d_v;
    const float* lse;            ///< [B, Hq, Sq], natural log
    const float* lse_remainder;  ///< [B, Hq, Sq]; null: 0
    const float* d_lse;          ///< [B, Hq, Sq]; null: 0
    float* lse_log2;  ///< [B, Hq, padded rows]: log2(e) * LSE - p_exponent; +inf for rows that see no key
    float* delta;  ///< [B, Hq, padded rows]: D / (p_factor * dropout_scale), where D = rowsum(dO * O) - dLSE
    int* non_finite;      ///< set if dQ or dK is not finite; null without biases and row ranges
    int* has_large_lse;   ///< whether an LSE is large (see large_lse); null: no, because there are no biases
    float* d_q_sums;      ///< dQ / scale in float32, in DqSums order; points to batch 0, even if that is not
                          ///< among this launch's batches and so has no memory
    std::int32_t* turns;  ///< [B, Hq, row blocks, warps] if deterministic, else null
    std::int32_t* next_task;       ///< number of started tasks if deterministic or for Hopper, else null
    bool last_keys_first = false;  ///< turn order
    int first_batch, batch_size;   ///< this launch's batches
    device::Sizes sizes;
    int padded_rows;  ///< per batch; a multiple of every kernel's row block
    device::DeviceMask mask;
    device::TaskOrder order;  ///< task order: (batch, key head) and key block
    float scale_log2;         ///< log2(e) * scale
    float scale;
    float dropout_scale;  ///< 1 without dropout. The kernels compute P, dP and dS without this factor.
    ScoreOptions scores;
    RuleKind rule;
    PackedOffsets packed;
    PackedTasks key_tasks;     ///< key blocks if packed; at launch only its memory
    PackedTasks padded_tasks;  ///< the same for blocks of backward_row_padding rows
    DeviceRowRanges row_ranges;
};

/// Float32 partial sums for a bias gradient, each over a part of the batches and heads that share it, so that
/// enough thread blocks work on it: [count, B, H, Sq, Sk], where B and H are the gradient's.
struct BiasGradientParts {
    int count = 1;          ///< 1: no parts
    float* sums = nullptr;  ///< unused by one part
};

/// The block sizes that determine a kernel's turn counters. Each warp has its own counters.
struct TurnTiles {
    int rows;
    int pairs;      ///< warp pairs
    int pair_keys;  ///< keys per pair

    constexpr int keys() const { return pairs * pair_keys; }
    constexpr int warps() const { return 2 * pairs; }
};

/// The backward pass computes with p_factor * P, p_factor = 2^p_exponent: the stored LSE contains this
/// factor, and the stored D is divided by it. sm80/key_block.cuh gives the reason.
constexpr float p_exponent = 15, p_factor = 32768;

}  // namespace gradtile::attention::cuda
