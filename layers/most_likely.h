#pragma once
/// The most likely token of each row of logits, on the device: only the tokens go to the host.
#include <gradtile/core/tensor.h>

namespace gradtile {

/// tokens [R] int32, contiguous, receives for each row of logits [R,V] float32 the index of its largest
/// element, the smallest index among equal ones; -1 if an element is not finite. V is at least 1; rows are
/// contiguous. Throws Error on other shapes or dtypes.
void most_likely_tokens(const Context& ctx, const Tensor& tokens, const Tensor& logits);

}  // namespace gradtile
