#include <algorithm>

#include <gradtile/core/internal/block_table.h>
#include <gradtile/layers/internal/previous_token_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {

void find_previous_tokens(const Context& ctx, const PreviousTokens& previous, const Tensor& positions) {
    const std::int64_t tokens = positions.size(1);
    for_rows(ctx, positions.size(0), tokens, [&](std::int64_t row) {
        const std::int32_t* const position = positions.data<std::int32_t>() + row * tokens;
        std::int32_t* const place = previous.place.data<std::int32_t>() + row * tokens;
        std::int32_t* const sibling = previous.sibling.data<std::int32_t>() + row * tokens;
        for (std::int64_t t = 0; t < tokens; ++t) {
            const std::int32_t wanted = position[t] - 1;
            std::int64_t found = wanted < 0 ? -1 : t - 1, twin = -1;
            for (; found >= 0 && position[found] != wanted; --found)
                if (twin < 0 && position[found] == position[t]) twin = found;
            place[t] = static_cast<std::int32_t>(found);
            if (found >= 0 && twin >= 0) sibling[twin] = static_cast<std::int32_t>(t);
        }
    });
}

void copy_previous_rows(const Context& ctx, const RowsOfTokens& op) {
    visit_floating(op.x.dtype(), [&]<class T>(TypeTag<T>) {
        const TensorRows<T> xs(op.x, "previous_token"), ys(op.y, "previous_token");
        const TokenNeighbours neighbours(op.previous, op.x);
        const std::int64_t heads = op.x.size(2);
        for_rows(ctx, xs.count(), xs.width(), [&](std::int64_t r) {
            const std::int64_t from = neighbours.previous(r / heads);
            std::copy_n(xs[from < 0 ? r : from * heads + r % heads], xs.width(), ys[r]);
        });
    });
}

void differentiate_previous_rows(const Context& ctx, const RowsOfTokens& op) {
    visit_floating(op.x.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        const TensorRows<T> dys(op.x, "previous_token"), dxs(op.y, "previous_token");
        const TokenNeighbours neighbours(op.previous, op.x);
        const std::int64_t heads = op.x.size(2);
        for_rows(ctx, dys.count(), dys.width(), [&](std::int64_t r) {
            const std::int64_t token = r / heads;
            const bool adds_itself = neighbours.previous(token) < 0;
            for (std::int64_t i = 0; i < dys.width(); ++i) {
                S sum = adds_itself ? convert<S>(dys[r][i]) : S{0};
                for (std::int64_t next = neighbours.first_next(token); next >= 0;
                     next = neighbours.next_sibling(next))
                    sum += convert<S>(dys[next * heads + r % heads][i]);
                dxs[r][i] = convert<T>(sum);
            }
        });
    });
}

void exchange_rows_of_step(const Context& ctx, const RowsOfStep& op) {
    visit_floating(op.x.dtype(), [&]<class T>(TypeTag<T>) {
        const TensorRows<T> xs(op.x, "previous_token"), ys(op.y, "previous_token");
        const std::int64_t heads = op.x.size(2);
        const BlockTable blocks(op.cache, op.table);
        for_rows(ctx, xs.count(), xs.width(), [&](std::int64_t r) {
            const std::int64_t text = r / heads;
            const std::int32_t position = op.positions.data<std::int32_t>()[text],
                               slot = op.slots.data<std::int32_t>()[text];
            const auto cached = [&](std::int32_t row) {
                return op.cache.data<T>() + blocks.block_of(slot, row) * op.cache.stride(0) +
                       blocks.row_in_block(row) * op.cache.stride(1) + r % heads * op.cache.stride(2);
            };
            std::copy_n(position == 0 ? xs[r] : cached(position), xs.width(), ys[r]);
            std::copy_n(xs[r], xs.width(), cached(position + 1));
        });
    });
}

}  // namespace gradtile::cpu
