#pragma once
/// The CPU and CUDA implementations behind column_sums.h. x [rows, columns] may have strided rows. parts
/// [.., columns] and total.grad [columns] are contiguous and float32 (float64 for float64 x).
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/layers/column_sums.h>

namespace gradtile::cpu {
/// parts[i] = column sums over the i-th block of column_sum_rows rows in x.
void sum_columns(const Context& ctx, const Tensor& parts, const Tensor& x);
/// Adds the parts in their order, and writes or adds the sum to `total`.
void add_parts(const Context& ctx, const GradientTarget& total, const Tensor& parts);
}  // namespace gradtile::cpu
namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(sum_columns);
GRADTILE_CUDA_TWIN(add_parts);
}  // namespace gradtile::cuda
