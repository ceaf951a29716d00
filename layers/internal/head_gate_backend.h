#pragma once
/// The CPU and CUDA implementations behind HeadGate (learned_factors.h). Heads [B,T,H,D] have a contiguous
/// last axis and rows in at most two groups (rows.h), logits [B,T,H] are contiguous, and nothing is empty.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// y = scale sigmoid(logits) x, or added to y.
struct GatedHeads {
    Tensor y, x, logits;
    double scale = 1.0;
    bool adds = false;
};
/// dx = scale s dy, d_logits = scale s (1 - s) sum over D of dy x, with s = sigmoid(logits). dx may be dy.
struct GatedHeadsGradient {
    Tensor dx, d_logits, dy, x, logits;
    double scale = 1.0;
};

namespace cpu {
void gate_heads(const Context& ctx, const GatedHeads& op);
void differentiate_gated_heads(const Context& ctx, const GatedHeadsGradient& op);
}  // namespace cpu
namespace cuda {
GRADTILE_CUDA_TWIN(gate_heads);
GRADTILE_CUDA_TWIN(differentiate_gated_heads);
}  // namespace cuda

}  // namespace gradtile
