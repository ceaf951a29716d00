#pragma once
/// The most likely token for each logit row, computed on the device: only the tokens go to the host.
#include <gradtile/core/tensor.h>

namespace gradtile {

/// For each row of logits [R,V] float32, writes the index of the largest element to tokens [R] int32. Among
/// equal elements, the smallest index is written; if an element is not finite, -1. tokens and the rows of
/// logits are contiguous; V is at least 1. Throws Error on other shapes or dtypes.
void most_likely_tokens(const Context& ctx, const Tensor& tokens, const Tensor& logits);

}  // namespace gradtile
