#pragma once
/// INTERNAL. The CPU and CUDA implementations behind most_likely.h.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/core/tensor.h>

namespace gradtile::cpu {
void most_likely_tokens(const Context& ctx, const Tensor& tokens, const Tensor& logits);
}
namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(most_likely_tokens);
}
