#pragma once
/// Column sums of a gradient dy [.., C], which are the gradient for a bias [C] that was added to every row.
/// The operator that computes dy can sum its columns in the same pass at almost no cost; a separate pass
/// would read dy again. So an operator can attach partial column sums to dy.
#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// A gradient, and its column sums if the operator that computed the gradient also computed them.
struct SummedGradient {
    Tensor dy;                ///< [.., C]
    Tensor column_sums = {};  ///< partial sums [parts, C] in accumulator_of(dy.dtype()), or undefined

    SummedGradient() = default;
    SummedGradient(Tensor gradient, Tensor sums = {})
        : dy(std::move(gradient)), column_sums(std::move(sums)) {}
};

/// Whether an operator should compute its result's column sums.
enum class ColumnSums { skip, compute };

/// Rows per partial sum, in a separate pass or in an activation's backward pass.
inline constexpr std::int64_t column_sum_rows = 128;

/// Allocates x's partial column sums, in accumulator_of(x.dtype()).
Tensor empty_column_sums(const Context& ctx, const Tensor& x /*[.., C]*/);
/// Writes dy's column sums to total.grad [C], or adds them, as `total` says. Computes the sums unless they
/// are attached to dy.
void add_column_sums(const Context& ctx, const GradientTarget& total, const SummedGradient& dy);

}  // namespace gradtile
