#pragma once
/// The CPU and CUDA implementations behind cross_entropy_head.h.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/core/tensor.h>
#include <gradtile/layers/cross_entropy_head.h>
#include <gradtile/layers/vocabulary.h>

namespace gradtile {

namespace cpu {
/// count [1] float64 = the number of targets that are not ignored. Targets outside [0, vocabulary) throw
/// Error on the CPU. On the GPU they are counted, and cross_entropy_rows makes their loss and gradients NaN.
void count_targets(const Context& ctx, const Tensor& count, const Tensor& targets, std::int64_t vocabulary);
/// Computes losses [n] float64 from logits [n,V]; an ignored target's loss is 0. If d_logits [n,V] is
/// defined, computes d_logits = (softmax(logits) - one_hot(target)) * scale / count; an ignored target's row
/// is 0. d_logits must be in the logits' memory, which it overwrites, and must have the same dtype (on the
/// CPU, also a narrower dtype). A softcap is applied first: losses and gradients are those of the capped
/// logits and of the logits given. The CPU overwrites the logits in any case.
void cross_entropy_rows(const Context& ctx, const Tensor& losses, const Tensor& d_logits,
                        const Tensor& logits, const Tensor& targets, const Tensor& count, double scale,
                        const LogitSoftcap& softcap);
/// Replaces contiguous logits by their capped values; softcap.limit > 0.
void cap_logits(const Context& ctx, const Tensor& logits, const LogitSoftcap& softcap);
/// If total is [1]: total = sum(losses) / count (0 when count is 0). If total is [2]: total = {sum(losses),
/// count}.
void sum_losses(const Context& ctx, const Tensor& total, const Tensor& losses, const Tensor& count);
}  // namespace cpu
namespace cuda {
GRADTILE_CUDA_TWIN(count_targets);
GRADTILE_CUDA_TWIN(cross_entropy_rows);
GRADTILE_CUDA_TWIN(cap_logits);
GRADTILE_CUDA_TWIN(sum_losses);
}  // namespace cuda

}  // namespace gradtile
