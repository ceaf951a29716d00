#pragma once
/// Weights that are rounded to another dtype, in an import or an export.
#include <string>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// Throws Error if a value of `x`, which is finite, became an infinity in `rounded`: x in another dtype, and
/// contiguous. The error begins with `tensor` ("model.safetensors: tensor 'wte.weight'"), and names the value
/// and the dtypes that hold it. Both tensors are on the CPU.
void check_rounded(const Tensor& x, const Tensor& rounded, const std::string& tensor);

}  // namespace gradtile
