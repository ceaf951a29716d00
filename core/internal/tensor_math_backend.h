#pragma once
/// What the two devices implement for tensor_math.h. y is contiguous.
#include <gradtile/core/tensor.h>

namespace gradtile {

enum class Arithmetic { add, subtract, multiply, divide };
enum class MathFunction { exp, log };
enum class Reduction { sum, max };

namespace cpu {
/// y = a op b; all of one shape and dtype.
void combine(const Context& ctx, const Tensor& y, const Tensor& a, const Tensor& b, Arithmetic op);
void scale(const Context& ctx, const Tensor& y, const Tensor& x, double factor);
void apply(const Context& ctx, const Tensor& y, const Tensor& x, MathFunction function);
/// y [R] from x [R, N], contiguous; y has x's dtype for max, its accumulator's for sum.
void reduce_rows(const Context& ctx, const Tensor& y, const Tensor& x, Reduction reduction);
}  // namespace cpu

namespace cuda {
void combine(const Context& ctx, const Tensor& y, const Tensor& a, const Tensor& b, Arithmetic op);
void scale(const Context& ctx, const Tensor& y, const Tensor& x, double factor);
void apply(const Context& ctx, const Tensor& y, const Tensor& x, MathFunction function);
void reduce_rows(const Context& ctx, const Tensor& y, const Tensor& x, Reduction reduction);
}  // namespace cuda

}  // namespace gradtile
