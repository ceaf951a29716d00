#pragma once
/// The CPU and CUDA implementations behind the rows of the token before in documents.h. x and y [B,T,H,D]
/// have a contiguous last axis and rows in at most two groups (rows.h), and nothing is empty.
#include <gradtile/core/host_device.h>
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/core/internal/data_or_null.h>
#include <gradtile/layers/documents.h>

namespace gradtile {

struct RowsOfTokens {
    Tensor y, x;
    PreviousTokens previous;
};
struct RowsOfStep {
    Tensor y, x, cache, positions, slots, table;
};

namespace cpu {
/// Writes PreviousTokens for positions [B,T]; `sibling` contains zeros.
void find_previous_tokens(const Context& ctx, const PreviousTokens& previous, const Tensor& positions);
void copy_previous_rows(const Context& ctx, const RowsOfTokens& op);
void differentiate_previous_rows(const Context& ctx, const RowsOfTokens& op);
void exchange_rows_of_step(const Context& ctx, const RowsOfStep& op);
}  // namespace cpu
namespace cuda {
GRADTILE_CUDA_TWIN(find_previous_tokens);
GRADTILE_CUDA_TWIN(copy_previous_rows);
GRADTILE_CUDA_TWIN(differentiate_previous_rows);
GRADTILE_CUDA_TWIN(exchange_rows_of_step);
}  // namespace cuda

/// A token's neighbours in its row of `tokens` tokens, on CPU and GPU.
struct TokenNeighbours {
    const std::int32_t *place = nullptr, *sibling = nullptr;  ///< PreviousTokens, or null
    std::int64_t tokens = 0;

    explicit TokenNeighbours(const PreviousTokens& previous, const Tensor& x)
        : place(data_or_null<std::int32_t>(previous.place)),
          sibling(data_or_null<std::int32_t>(previous.sibling)),
          tokens(x.size(1)) {}

    /// The predecessor of `token`, counted over the batch, or -1.
    GRADTILE_HOST_DEVICE std::int64_t previous(std::int64_t token) const {
        const std::int64_t in_row = token % tokens;
        const std::int64_t found = place != nullptr ? place[token] : in_row - 1;
        return found < 0 ? -1 : token - in_row + found;
    }
    /// The first token whose predecessor is `token`, or -1.
    GRADTILE_HOST_DEVICE std::int64_t first_next(std::int64_t token) const {
        return token % tokens + 1 < tokens && previous(token + 1) == token ? token + 1 : -1;
    }
    /// The next token with the same predecessor as `token`, or -1.
    GRADTILE_HOST_DEVICE std::int64_t next_sibling(std::int64_t token) const {
        const std::int64_t found = sibling != nullptr ? sibling[token] : 0;
        return found == 0 ? -1 : token - token % tokens + found;
    }
};

}  // namespace gradtile
