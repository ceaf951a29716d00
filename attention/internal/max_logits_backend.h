#pragma once
/// INTERNAL. Each head's largest logit, for attention.h.
#include <gradtile/attention/internal/attention_backend.h>

namespace gradtile::attention {

/// Writes to max_logits, float32 [Hq], the largest scale * q.k over all visible pairs of q [B, Sq, Hq, Dqk]
/// and k [B, Sk, Hkv, Dqk]; -inf for a head without a visible pair, and NaN if one product is NaN.
using MaxLogitsFunction = void(const Context& ctx, const ResolvedOptions& options, const Tensor& q,
                               const Tensor& k, const Tensor& max_logits);
namespace cpu {
MaxLogitsFunction max_logits;
}
namespace cuda {
GRADTILE_CUDA_TWIN(max_logits);
}

}  // namespace gradtile::attention
