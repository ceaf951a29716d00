#pragma once
/// A norm, a linear layer, an activation and an addition as one operator, for passes of few rows. With few
/// rows on a GPU, starting and ending a separate kernel for each part would take longer than the part's work.
/// And the product takes as long as reading the weights, which the kernel can begin to read before its input
/// rows are computed.
#include <optional>

#include <gradtile/core/tensor.h>
#include <gradtile/layers/activation.h>
#include <gradtile/layers/norm.h>

namespace gradtile {

/// y = f(norm(x) W^T + b) + residual. Every part but the weight may be absent.
struct FusedLinear {
    std::optional<NormParameters> norm = {};
    Tensor weight;     ///< [out, in], or [2 out, in] with a gated activation: gate, then up
    Tensor bias = {};  ///< [out] or [2 out]
    std::optional<Activation> activation = {};
    Tensor residual = {};  ///< [rows, out]
};

/// Writes y [.., out] from x [.., in] and returns true if the device has one kernel for it: a GPU, for up to
/// 8 rows. Otherwise computes nothing and returns false. The leading axes of y, x and the residual together
/// are the rows. All tensors have one floating dtype; y may also have its accumulator_of(). Rows are
/// contiguous. Sums are float32, and only norm(x) and y are rounded to 16 bits. The kernel may read
/// parameters while the stream's preceding kernel still runs, so the preceding kernel must not write
/// parameters. Throws Error on other shapes or dtypes, and if y shares memory with another operand.
bool fused_linear_in_one_kernel(const Context& ctx, const Tensor& y, const Tensor& x, FusedLinear op);

/// Whether the device has kernels for fused products of x's rows [.., in]: on a GPU, at most max_fused_rows.
bool fuses_products(const Context& ctx, const Tensor& x);
inline constexpr std::int64_t max_fused_rows = 8;

}  // namespace gradtile
