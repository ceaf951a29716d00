#pragma once
/// What the writer and the reader of a checkpoint's HDF5 part agree on.
#include <array>
#include <string_view>

#include <gradtile/core/dtype.h>
#include <gradtile/train/hdf5_library.h>

namespace gradtile::checkpoint_schema {

inline constexpr std::array<std::string_view, 3> tensor_groups = {"params", "master", "optimizer"};
inline constexpr std::array<std::string_view, 4> json_groups = {"config", "data", "rng", "meta"};
/// The dataset that holds a JSON group's text.
inline constexpr const char* json_dataset = "json";
/// Attribute of every dataset: CRC-32C of its elements.
inline constexpr const char* crc_attribute = "crc32c";
/// A limit only hostile files meet.
inline constexpr int max_depth = 16;

inline constexpr std::array all_dtypes = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32};

/// The HDF5 type of a dtype's elements in the file, little-endian; the same in memory, so that libhdf5
/// converts nothing. bfloat16 is declared as the float it is (8 exponent bits, 7 mantissa bits): h5py reads
/// it as float32.
Hdf5Type file_type(DType dtype);

/// True for a path that may name a tensor: printable ASCII parts between single slashes, neither "." nor
/// "..".
bool is_tensor_name(std::string_view name);

}  // namespace gradtile::checkpoint_schema
