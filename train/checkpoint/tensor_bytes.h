#pragma once
/// Elements as bytes, for files and staging memory.
#include <cstddef>
#include <cstdint>

#include <gradtile/core/tensor.h>

namespace gradtile {

/// Copies elements [begin, end), counted in row-major order, from a CPU tensor with any strides to `out`.
void copy_row_major(const Tensor& x, std::int64_t begin, std::int64_t end, std::byte* out);

/// Returns true unless one of `elements` floating-point values at `data` is infinite or NaN. int32 values are
/// always finite.
bool all_finite(DType dtype, const std::byte* data, std::size_t elements);

/// Returns a contiguous, uninitialised tensor on the CPU that owns its memory.
Tensor empty_on_host(const Shape& shape, DType dtype);

}  // namespace gradtile
