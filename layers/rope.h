#pragma once
/// Rotary position embedding (Su et al. 2021, "RoFormer", eq. 34; pairs as in Llama checkpoints).
#include <memory>

#include <gradtile/core/tensor.h>
#include <gradtile/layers/rope_scaling.h>

namespace gradtile {

/// Rotates each pair (x[i], x[i + D/2]) in a head at position t by the angle t * f_i, with f_i = base^(-2i/D)
/// or other frequencies, and multiplies it by their magnitude. x [B,S,H,D] has any floating dtype and a
/// contiguous last axis. Batch, position and head axes may be strided, so one call can rotate a packed
/// projection's query and key heads in place.
class Rope {
  public:
    /// Rotates positions 0 .. max_positions-1. D must be even. The angles are computed in float64, in a table
    /// that grows with the positions in use: its memory depends on the texts, not on max_positions. On a GPU,
    /// growth copies the table to memory from the GPU's system allocator, and waits for the copy.
    Rope(std::int64_t head_dim, std::int64_t max_positions, double base = 10000.0);
    /// The same with D/2 given frequencies.
    Rope(RopeFrequencies frequencies, std::int64_t max_positions);

    /// Cosines and sines [N, D/2] for N tokens at any positions, in one dtype.
    struct Angles {
        Tensor cosines = {}, sines = {};
    };
    /// Looks up the angles for `positions` (int32, N elements), which must all be below `end`; -1: below
    /// max_positions. On the CPU, a position outside the table throws Error; on a GPU its angles are NaN.
    Angles angles_at(const Context& ctx, const Tensor& positions, DType dtype, std::int64_t end = -1) const;
    /// Returns views of the angles for positions start .. start+length-1.
    Angles angles_from(const Context& ctx, std::int64_t start, std::int64_t length, DType dtype) const;

    /// Rotates x [B,N,H,D] in place by the given angles for N tokens.
    void forward(const Context& ctx, const Tensor& x, const Angles& angles) const;
    void backward(const Context& ctx, const Tensor& dx, const Angles& angles) const;
    /// Rotates x in place. `start` is the position of x's first token. backward needs no saved values.
    void forward(const Context& ctx, const Tensor& x, std::int64_t start = 0) const;
    /// Rotates dx back in place, which gives the gradient with respect to the unrotated x.
    void backward(const Context& ctx, const Tensor& dx, std::int64_t start = 0) const;

    std::int64_t head_dim() const;
    std::int64_t max_positions() const;

  private:
    struct Tables;
    void check_heads(const Tensor& x) const;
    void rotate(const Context& ctx, const Tensor& x, std::int64_t start, bool inverse) const;
    void rotate(const Context& ctx, const Tensor& x, const Angles& angles, bool inverse) const;
    std::shared_ptr<Tables> tables_;  // copies of a Rope share the tables
};

}  // namespace gradtile
