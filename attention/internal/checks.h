#pragma once
/// INTERNAL. Checks of a call's tensors.
#include <gradtile/core/check.h>
#include <gradtile/core/tensor.h>

namespace gradtile::attention {

inline void check_like(const char* name, const Tensor& x, const Shape& shape, DType dtype) {
    check(x.defined() && x.shape() == shape && x.dtype() == dtype, "attention: ", name, " is ", x,
          ", expected ", shape, ' ', dtype);
}

/// A tensor with one float32 per query head.
inline void check_per_head(const char* name, const Tensor& x, const Tensor& q) {
    check_like(name, x, {q.size(2)}, DType::f32);
    check(x.device() == q.device(), "attention: ", name, " is ", x, ", expected it on ", q.device());
}

}  // namespace gradtile::attention
