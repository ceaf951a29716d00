#include <gradtile/layers/documents.h>

#include <numeric>
#include <vector>

#include <gradtile/attention/row_ranges.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {

Documents prefix_documents(const Context& ctx, std::span<const std::int64_t> prompts, std::int64_t tokens) {
    const std::int64_t rows = std::ssize(prompts);
    Documents documents{.positions = empty(ctx, {rows, tokens}, DType::i32),
                        .row_ranges = empty(ctx, {rows, 1, tokens, 4}, DType::i32)};
    std::vector<std::int32_t> positions(static_cast<std::size_t>(tokens));
    std::iota(positions.begin(), positions.end(), 0);
    for (std::int64_t row = 0; row < rows; ++row) {
        copy(ctx, documents.positions.slice(0, row, 1), from_host(ctx, positions, {1, tokens}));
        copy(ctx, documents.row_ranges.slice(0, row, 1),
             attention::masks::prefix(ctx, tokens, prompts[static_cast<std::size_t>(row)]));
    }
    return documents;
}

}  // namespace gradtile
