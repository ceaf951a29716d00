#pragma once
/// Descriptions of tensors in global memory, with which kernels copy boxes by TMA: see
/// device/tensor_copy.cuh. A map is a kernel parameter (const __grid_constant__), so that captured graphs
/// hold it.
#include <cuda.h>

#include <gradtile/core/tensor.h>

namespace gradtile::cuda {

using TensorMap = CUtensorMap;

/// How the 16-byte pieces of each row of a box are permuted in shared memory, so that pieces of one column
/// are in different banks. The name gives the length of a row of the box.
enum class Swizzle : std::uint8_t { of_64_bytes, of_128_bytes };

/// Whether TMA can address the rows of a [B, S, H, D] tensor of 16-bit or float32 elements: elements of a row
/// adjacent, address and other strides multiples of 16 bytes and, unless their axis has length 1, positive.
bool has_tensor_map(const Tensor& x);

/// The map of a [B, S, H, D] tensor of 16-bit or float32 elements for boxes of `rows` rows of one head. A row
/// of a box has the bytes that the swizzle names: 64 or 128, which are 32 or 64 columns of 16 bits.
/// has_tensor_map(x) must hold, and no axis may have length 0.
TensorMap tensor_map(const Tensor& x, int rows, Swizzle swizzle);

/// The map of packed sequences in a [1, S, H, D] tensor of 16-bit elements, for boxes that end at the end of
/// a sequence: elements of a box beyond the sequence are read as zeros and are not written. For the sequence
/// that has `length` rows and begins at row `first` of the tensor, the map's coordinates of row r are row S -
/// length + r and batch first + length: see device::packed_box(). has_packed_tensor_map(x) must hold, and no
/// axis may have length 0.
TensorMap packed_tensor_map(const Tensor& x, int rows, Swizzle swizzle);

/// Whether x has a tensor_map() and a packed_tensor_map(): the map's address is S rows before the tensor's,
/// and must not be negative.
bool has_packed_tensor_map(const Tensor& x);

}  // namespace gradtile::cuda
