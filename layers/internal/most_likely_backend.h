#pragma once
/// INTERNAL. The CPU and CUDA implementations behind most_likely.h.
#include <gradtile/core/tensor.h>

namespace gradtile::cpu {
void most_likely_tokens(const Context& ctx, const Tensor& tokens, const Tensor& logits);
}
namespace gradtile::cuda {
void most_likely_tokens(const Context& ctx, const Tensor& tokens, const Tensor& logits);
}
