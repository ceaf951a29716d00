#pragma once
/// The objects in a checkpoint file: their names, types and limits. See docs/checkpoint_format.md.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <gradtile/core/dtype.h>

namespace gradtile::checkpoint_schema {

inline constexpr std::array<std::string_view, 3> tensor_groups = {"params", "master", "optimizer"};
/// The datasets that hold a JSON text, in name order.
inline constexpr std::array<std::string_view, 4> json_names = {"config/json", "data/json", "meta/json",
                                                               "rng/json"};
/// The attribute that holds the CRC-32C over a dataset's elements; every dataset has it.
inline constexpr const char* crc_attribute = "crc32c";
/// How many tensors and texts one file may hold. Only a file made to do harm reaches this limit.
inline constexpr std::size_t max_objects = 100'000;
/// Largest size for one JSON text, which may hold a tokenizer.json of half this size as a string.
inline constexpr std::uint64_t max_text_bytes = std::uint64_t{64} << 20;

/// Returns true for a path that may name a tensor: parts of printable ASCII between single slashes, neither
/// "." nor "..".
bool is_tensor_name(std::string_view name);

/// Returns a name's part before its first slash.
std::string_view group_of(std::string_view name);

/// Returns true for GROUP/NAME with a known tensor group and a valid tensor name.
bool is_stored_tensor_name(std::string_view name);

}  // namespace gradtile::checkpoint_schema
