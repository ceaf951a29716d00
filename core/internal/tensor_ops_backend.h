#pragma once
/// The CPU and CUDA implementations behind tensor_ops.h.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/core/tensor.h>

namespace gradtile {
/// Calls f(TypeTag<T>) with the element type, which may be int32.
template <class F>
void visit_any(DType type, F&& f) {
    if (type == DType::i32) {
        f(TypeTag<std::int32_t>{});
    } else {
        visit_floating(type, f);
    }
}
}  // namespace gradtile

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
