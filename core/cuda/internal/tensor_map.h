#pragma once
/// Describes tensors in global memory, so that kernels can copy boxes by TMA: see device/tensor_copy.cuh. A
/// map is a kernel parameter (const __grid_constant__), so that captured graphs hold it.
#include <cuda.h>

#include <gradtile/core/tensor.h>

namespace gradtile::cuda {

using TensorMap = CUtensorMap;

/// How the 16-byte pieces in each box row are permuted in shared memory, so that pieces in one column are in
/// different banks. The name gives the length of a box row.
enum class Swizzle : std::uint8_t { bytes_64, bytes_128 };

/// Whether TMA can address the rows of a 16-bit or float32 tensor [B, S, H, D]: its elements must be adjacent
/// in a row, its address a multiple of 16 bytes, and its other strides positive multiples of 16 bytes. The
/// stride of a length-1 axis does not matter.
bool has_tensor_map(const Tensor& x);

/// The map for a 16-bit or float32 tensor [B, S, H, D] and boxes with `rows` rows from one head. A box row
/// has as many bytes as the swizzle names: 64 or 128, which are 32 or 64 16-bit columns. has_tensor_map(x)
/// must hold, and no axis may have length 0.
TensorMap tensor_map(const Tensor& x, int rows, Swizzle swizzle);

/// The map for packed sequences in a 16-bit tensor [1, S, H, D], for boxes that end where a sequence ends:
/// box elements beyond the sequence are read as zeros and are not written. For the sequence that has `length`
/// rows and begins at tensor row `first`, row r has the map coordinates row S - length + r and batch first +
/// length: see device::packed_box(). has_packed_tensor_map(x) must hold, and no axis may have length 0.
TensorMap packed_tensor_map(const Tensor& x, int rows, Swizzle swizzle);

/// Whether x has a tensor_map() and a packed_tensor_map(): the map's address is S rows before the tensor's,
/// and must not be negative.
bool has_packed_tensor_map(const Tensor& x);

}  // namespace gradtile::cuda
