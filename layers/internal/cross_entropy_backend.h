#pragma once
/// What the two devices implement for cross_entropy_head.h.
#include <gradtile/core/tensor.h>
#include <gradtile/layers/vocabulary.h>

namespace gradtile {

namespace cpu {
/// count [1] float64 = targets that are not ignored. Those outside [0, vocabulary) throw on the CPU; on the
/// GPU they count, and cross_entropy_rows makes their loss and gradients NaN.
void count_targets(const Context& ctx, const Tensor& count, const Tensor& targets, std::int64_t vocabulary);
/// losses [n] float64 of logits [n,V] (0 where ignored). With a defined d_logits [n,V], which lies over
/// the logits' memory in the same dtype (on the CPU also in a narrower one), d_logits = (softmax(logits) -
/// one_hot(target)) * scale / count, zero rows where ignored; the logits are lost then.
void cross_entropy_rows(const Context& ctx, const Tensor& losses, const Tensor& d_logits,
                        const Tensor& logits, const Tensor& targets, const Tensor& count, double scale);
/// total [1] = sum of losses / count (0 when count is 0); total [2] = {sum of losses, count}.
void sum_losses(const Context& ctx, const Tensor& total, const Tensor& losses, const Tensor& count);
}  // namespace cpu
namespace cuda {
void count_targets(const Context& ctx, const Tensor& count, const Tensor& targets, std::int64_t vocabulary);
void cross_entropy_rows(const Context& ctx, const Tensor& losses, const Tensor& d_logits,
                        const Tensor& logits, const Tensor& targets, const Tensor& count, double scale);
void sum_losses(const Context& ctx, const Tensor& total, const Tensor& losses, const Tensor& count);
}  // namespace cuda

}  // namespace gradtile
