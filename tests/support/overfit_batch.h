#pragma once
/// One batch that a small model can only memorise.
#include <vector>

#include <gradtile/core/tensor_ops.h>

namespace gradtile::test {

/// Four 16-token windows with vocabulary 64. The first token identifies the window. The targets look random:
/// each target is a fixed function of its position.
struct OverfitBatch {
    static constexpr std::int32_t windows = 4, context = 16, vocabulary = 64;
    Tensor tokens, targets;  ///< int32 [4, 16]

    explicit OverfitBatch(const Context& ctx) {
        std::vector<std::int32_t> ids, next;
        for (std::int32_t i = 0; i < windows * context; ++i) {
            ids.push_back(37 * i % vocabulary);
            next.push_back((29 * i * i + 11 * i + 5) % vocabulary);
        }
        tokens = from_host(ctx, ids, {windows, context});
        targets = from_host(ctx, next, {windows, context});
    }
};

}  // namespace gradtile::test
