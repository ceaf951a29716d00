#pragma once
/// Sums that are kept in bfloat16. Rounded to nearest, a sum of many micro-steps' gradients would lose each
/// one that is smaller than 1/512 of it, always in the same direction where the gradients agree. So sums are
/// rounded stochastically, as the moments are: the mean over the draws is the sum without rounding.
#include <gradtile/core/dropout_key.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile {

/// The purpose that a step's key is mixed with for sums of gradients, and then with the micro-step's number.
inline constexpr std::uint64_t sum_rounding = 0x73756d73;  // "sums"

/// sums += x, for bfloat16 [n] and float32 [n], both contiguous; each sum is computed in float32. `element`
/// is the first element's offset in the store, a multiple of 64: an element's random bits depend on the key
/// and its offset, so they are equal on every device and for any division into shards. A key with a seed
/// tensor can be used in a CUDA graph.
void add_rounded(const Context& ctx, const Tensor& sums, const Tensor& x, const DropoutKey& key,
                 std::int64_t element);

namespace cpu {
void add_rounded(const Context& ctx, const Tensor& sums, const Tensor& x, const DropoutDraws& draws,
                 std::int64_t element);
}  // namespace cpu

namespace cuda {
GRADTILE_CUDA_TWIN(add_rounded);
}  // namespace cuda

}  // namespace gradtile
