#pragma once
/// The CPU and CUDA implementations behind tensor_ops.h.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/core/tensor.h>

namespace gradtile::cpu {
void fill(const Context& ctx, const Tensor& x, double value);
void copy(const Context& ctx, const Tensor& destination, const Tensor& source);
void axpy(const Context& ctx, const Tensor& y, double alpha, const Tensor& x);
}  // namespace gradtile::cpu

namespace gradtile::cuda {
GRADTILE_CUDA_TWIN(fill);
GRADTILE_CUDA_TWIN(copy);
GRADTILE_CUDA_TWIN(axpy);
}  // namespace gradtile::cuda
