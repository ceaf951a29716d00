#pragma once
/// Rotary position embedding (Su et al. 2021, "RoFormer", eq. 34; pairs as in Llama checkpoints).
#include <memory>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// Rotates each pair (x[i], x[i + D/2]) of a head at position t by the angle t * base^(-2i/D). x [B,S,H,D],
/// any float dtype, the last axis contiguous; batch, position and head axes may be strided, so that the query
/// and key heads of a packed projection are rotated where they lie, in one call.
class Rope {
  public:
    /// Angles for positions 0 .. max_positions-1 are computed once, in float64. D must be even. A GPU gets
    /// its copy of them when it first rotates, which allocates memory beside ctx's and waits.
    Rope(std::int64_t head_dim, std::int64_t max_positions, double base = 10000.0);

    /// x is rotated in place; its first token stands at position `start`. Nothing needs saving.
    void forward(const Context& ctx, const Tensor& x, std::int64_t start = 0) const;
    /// dx = the gradient with respect to the unrotated x, in place: the inverse rotation.
    void backward(const Context& ctx, const Tensor& dx, std::int64_t start = 0) const;

    std::int64_t head_dim() const;
    std::int64_t max_positions() const;

  private:
    class Tables;
    void rotate(const Context& ctx, const Tensor& x, std::int64_t start, bool inverse) const;
    std::shared_ptr<Tables> tables_;  // copies of a Rope share them
};

}  // namespace gradtile
