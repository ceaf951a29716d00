#pragma once
/// Copies lists to a device once, because a step cannot wait for a copy.
#include <cstring>
#include <type_traits>
#include <vector>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {

/// Returns a copy of plain structs on ctx's device, as int32.
template <class Row>
Tensor uploaded(const Context& ctx, const std::vector<Row>& rows) {
    static_assert(std::is_trivially_copyable_v<Row> && sizeof(Row) % sizeof(std::int32_t) == 0);
    std::vector<std::int32_t> words(rows.size() * sizeof(Row) / sizeof(std::int32_t));
    if (!rows.empty()) std::memcpy(words.data(), rows.data(), rows.size() * sizeof(Row));
    return from_host(ctx, words, {std::ssize(words)});
}

}  // namespace gradtile
