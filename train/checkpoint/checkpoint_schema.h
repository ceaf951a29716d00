#pragma once
/// The objects of a checkpoint file: their names, types and limits. Docs: docs/checkpoint_format.md.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <gradtile/core/dtype.h>

namespace gradtile::checkpoint_schema {

inline constexpr std::array<std::string_view, 3> tensor_groups = {"params", "master", "optimizer"};
/// The dataset of each group that holds a JSON text, in name order.
inline constexpr std::array<std::string_view, 4> json_names = {"config/json", "data/json", "meta/json",
                                                               "rng/json"};
/// Attribute of every dataset: CRC-32C of its elements.
inline constexpr const char* crc_attribute = "crc32c";
/// Tensors and texts of one file. Only hostile files reach this limit.
inline constexpr std::size_t most_objects = 100'000;
/// Largest size of one JSON text. A parsed text takes up to about forty times its bytes in memory.
inline constexpr std::uint64_t most_text_bytes = std::uint64_t{16} << 20;

inline constexpr std::array all_dtypes = {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32};

/// True for a path that may name a tensor: printable ASCII parts between single slashes, neither "." nor
/// "..".
bool is_tensor_name(std::string_view name);

/// The part of a name before its first slash.
std::string_view group_of(std::string_view name);

/// True for GROUP/NAME with one of the tensor groups and a name that a tensor may have.
bool is_stored_tensor_name(std::string_view name);

}  // namespace gradtile::checkpoint_schema
