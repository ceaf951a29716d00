#pragma once
/// INTERNAL. The elements of optional tensors.
#include <gradtile/core/tensor.h>

namespace gradtile {

/// The address of a tensor's elements; null if the tensor is undefined.
template <class T>
T* data_or_null(const Tensor& x) {
    return x.defined() ? x.data<T>() : nullptr;
}

}  // namespace gradtile
