#pragma once
/// The masks of `gradtile bench attention --mask`.
#include <cstdint>
#include <span>
#include <string_view>

#include <gradtile/core/context.h>
#include <gradtile/core/tensor.h>

namespace gradtile::cli {

/// A mask from row_ranges.h, for one sequence of `tokens` tokens.
struct NamedMask {
    std::string_view name;
    const char* help;
    Tensor (*ranges)(const Context& ctx, std::int64_t tokens);
};
std::span<const NamedMask> named_masks();
/// Throws UsageError, with all names, for an unknown one.
const NamedMask& mask_named(std::string_view name);

}  // namespace gradtile::cli
