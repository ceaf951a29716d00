#pragma once
/// Column sums of a gradient dy [.., C]: the gradient of a bias [C] that was added to every row. Whoever
/// makes dy can add its columns up on the way, for next to nothing; made later they cost a pass over memory.
/// So they travel beside dy, in parts that are yet to be added.
#include <gradtile/core/parameter_store.h>

namespace gradtile {

/// A gradient and, where the pass that made it has summed its columns, those sums.
struct SummedGradient {
    Tensor dy;                ///< [.., C]
    Tensor column_sums = {};  ///< [parts, C] in accumulator_of(dy.dtype()), or undefined

    SummedGradient() = default;
    SummedGradient(Tensor gradient, Tensor its_column_sums = {})
        : dy(std::move(gradient)), column_sums(std::move(its_column_sums)) {}
};

/// Whether a pass is to sum the columns of what it makes.
enum class ColumnSums { unwanted, wanted };

/// Rows behind one part where a matrix is summed in a pass of its own, or of a GELU's.
inline constexpr std::int64_t column_sum_rows = 128;

/// Room for the parts of rows x columns of x, in the type sums are kept in.
Tensor room_for_column_sums(const Context& ctx, const Tensor& x /*[.., C]*/);
/// Writes the column sums of dy to `total` [C]; computes them unless they travel with dy.
void add_column_sums(const Context& ctx, const GradientTarget& total, const SummedGradient& dy);

}  // namespace gradtile
