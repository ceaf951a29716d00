#pragma once
/// What the two devices implement for gemm.h: operands checked, rows contiguous.
#include <functional>

#include <gradtile/core/gemm.h>

namespace gradtile::cpu {
void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options);

/// A rectangle of the matrix c.
struct GemmRegion {
    std::int64_t row, column, rows, columns;
};
/// Work on a part of c that has its final values.
using FinishRegion = std::function<void(const GemmRegion&)>;
/// The same product of matrices (rank 2). Every element of c lies in one region that `finish` is called with,
/// by the thread that has just computed it and has it in its cache; calls for different regions run at the
/// same time.
void gemm_then(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b,
               const GemmOptions& options, const FinishRegion& finish);
}  // namespace gradtile::cpu
namespace gradtile::cuda {
void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options);
}
