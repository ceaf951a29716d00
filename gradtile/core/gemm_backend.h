#pragma once
/// What the two devices implement for gemm.h: operands checked, rows contiguous.
#include <gradtile/core/gemm.h>

namespace gradtile::cpu {
void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options);
}
namespace gradtile::cuda {
void gemm(const Context& ctx, const Tensor& c, const Tensor& a, const Tensor& b, const GemmOptions& options);
}
