#pragma once
/// Elements as bytes: what files and staging memory hold.
#include <cstddef>
#include <cstdint>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// Copies elements [begin, end), counted in row-major order, of a CPU tensor with any strides to `out`.
void copy_row_major(const Tensor& x, std::int64_t begin, std::int64_t end, std::byte* out);

/// True unless one of `elements` values of a floating dtype at `data` is infinite or NaN; int32 always is.
bool all_finite(DType dtype, const std::byte* data, std::size_t elements);

/// A contiguous tensor on the CPU in memory of its own, not initialised.
Tensor empty_on_host(const Shape& shape, DType dtype);

}  // namespace gradtile
