#pragma once
/// The CPU and CUDA implementations behind tensor_math.h. The result y is contiguous.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

enum class Arithmetic { add, subtract, multiply, divide };
enum class MathFunction { exp, log };
enum class Reduction { sum, max };

namespace cpu {
/// y = a op b; a, b and y have the same shape and dtype.
void combine(const Context& ctx, const Tensor& y, const Tensor& a, const Tensor& b, Arithmetic op);
void scale(const Context& ctx, const Tensor& y, const Tensor& x, double factor);
void apply(const Context& ctx, const Tensor& y, const Tensor& x, MathFunction function);
/// y [R] = reduction over each row of x [R, N], contiguous. y has x's dtype for max, and
/// accumulator_of(x.dtype()) for sum.
void reduce_rows(const Context& ctx, const Tensor& y, const Tensor& x, Reduction reduction);
}  // namespace cpu

namespace cuda {
GRADTILE_CUDA_TWIN(combine);
GRADTILE_CUDA_TWIN(scale);
GRADTILE_CUDA_TWIN(apply);
GRADTILE_CUDA_TWIN(reduce_rows);
}  // namespace cuda

}  // namespace gradtile
