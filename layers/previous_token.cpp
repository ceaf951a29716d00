// Rows of the token before: checks, allocation, and backend choice.
#include <gradtile/layers/documents.h>

#include <gradtile/core/internal/block_table.h>
#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/internal/embedding_backend.h>
#include <gradtile/layers/internal/previous_token_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile {
namespace {

constexpr const char* op_name = "previous_token";

RowsOfTokens rows_of_tokens(const Context& ctx, const Tensor& x, const PreviousTokens& previous) {
    check(x.rank() == 4, op_name, ": rows ", x, "; expected [B, T, H, D]");
    row_layout(x, op_name);
    for (const Tensor* table : {&previous.place, &previous.sibling})
        check(table->defined() == previous.place.defined() &&
                  (!table->defined() || (table->dtype() == DType::i32 && table->is_contiguous() &&
                                         table->shape() == Shape{x.size(0), x.size(1)})),
              op_name, ": predecessors ", *table, " for rows ", x, "; expected contiguous int32 [B, T]");
    return {.y = empty(ctx, x.shape(), x.dtype()), .x = x, .previous = previous};
}

/// On a CPU, throws Error unless each text has the blocks of its last row and of its new row. Nothing else is
/// known to the host on a GPU.
void check_blocks(const Context& ctx, const Tensor& cache, const Tensor& table, const Tensor& positions,
                  const Tensor& slots) {
    if (!ctx.device().is_cpu() || ctx.is_planning()) return;
    const BlockTable blocks(cache, table);
    for (std::int64_t text = 0; text < slots.elements(); ++text) {
        const std::int32_t position = positions.data<std::int32_t>()[text];
        for (const std::int32_t row : {position, position + 1}) {
            const int block = blocks.block_of(slots.data<std::int32_t>()[text], row);
            check(blocks.in_cache(block), op_name, ": text ", text, " has row ", row, " in block ", block,
                  "; the cache is ", cache);
        }
    }
}

}  // namespace

PreviousTokens::PreviousTokens(const Context& ctx, const Documents& documents) {
    if (!documents) return;
    check(documents.ring == nullptr, op_name, ": several processes share the sequences; expected whole ones");
    const Tensor& positions = documents.positions;
    check(positions.rank() == 2 && positions.dtype() == DType::i32 && positions.is_contiguous(), op_name,
          ": positions ", positions, "; expected contiguous int32 [B, T]");
    place = empty(ctx, positions.shape(), DType::i32);
    sibling = zeros(ctx, positions.shape(), DType::i32);
    if (positions.elements() > 0)
        on_device(ctx, cpu::find_previous_tokens, cuda::find_previous_tokens, *this, positions);
}

Tensor previous_rows(const Context& ctx, const Tensor& x, const PreviousTokens& previous) {
    const RowsOfTokens op = rows_of_tokens(ctx, x, previous);
    if (x.elements() > 0) on_device(ctx, cpu::copy_previous_rows, cuda::copy_previous_rows, op);
    return op.y;
}

Tensor previous_rows_backward(const Context& ctx, const Tensor& dy, const PreviousTokens& previous) {
    const RowsOfTokens op = rows_of_tokens(ctx, dy, previous);
    if (dy.elements() > 0)
        on_device(ctx, cpu::differentiate_previous_rows, cuda::differentiate_previous_rows, op);
    return op.y;
}

Tensor previous_rows_of_step(const Context& ctx, const Tensor& x, const Tensor& cache,
                             const Tensor& positions, const Tensor& slots, const Tensor& table) {
    check(x.rank() == 4 && x.size(0) == 1, op_name, ": rows ", x, "; expected [1, R, H, D]");
    row_layout(x, op_name);
    check(cache.rank() == 4 && cache.dtype() == x.dtype() && cache.size(1) >= 2 &&
              cache.size(2) == x.size(2) && cache.size(3) == x.size(3) && cache.stride(3) == 1,
          op_name, ": a cache ", cache, " for rows ", x, "; expected [slots, N + 1, H, D]");
    check_block_table(op_name, cache, table);
    for (const Tensor* indices : {&positions, &slots})
        check(indices->dtype() == DType::i32 && indices->is_contiguous() &&
                  indices->shape() == Shape{x.size(1)},
              op_name, ": positions or slots ", *indices, " for rows ", x, "; expected contiguous int32 [R]");
    check_sharing(ctx, op_name, {"the cache", cache},
                  {{"rows", x}, {"positions", positions}, {"slots", slots}, {"table", table}});
    check_indices(ctx, "previous_token: position", positions, rows_of_slot(cache, table) - 1);
    check_indices(ctx, "previous_token: slot", slots, (table.defined() ? table : cache).size(0));
    if (table.defined()) check_blocks(ctx, cache, table, positions, slots);
    const RowsOfStep op{.y = empty(ctx, x.shape(), x.dtype()),
                        .x = x,
                        .cache = cache,
                        .positions = positions,
                        .slots = slots,
                        .table = table};
    if (x.elements() > 0) on_device(ctx, cpu::exchange_rows_of_step, cuda::exchange_rows_of_step, op);
    return op.y;
}

}  // namespace gradtile
