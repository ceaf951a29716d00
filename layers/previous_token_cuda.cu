// Rows of the token before on the GPU. A thread writes one vector of a row.
#include <gradtile/core/internal/block_table.h>
#include <gradtile/layers/internal/previous_token_backend.h>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/layers/device/place.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace {

using namespace device;

constexpr int row_threads = 256;

/// One thread per token. Only the first tokens of answers to a shared prompt search for more than one step.
__global__ void __launch_bounds__(row_threads)
    find_previous_kernel(std::int32_t* place, std::int32_t* sibling, const std::int32_t* positions,
                         std::int64_t tokens, std::int64_t count) {
    await_predecessor();
    const std::int64_t token = blockIdx.x * std::int64_t{row_threads} + threadIdx.x;
    if (token >= count) return;
    const std::int64_t t = token % tokens;
    const std::int32_t* const position = positions + (token - t);
    const std::int32_t wanted = position[t] - 1;
    std::int64_t found = wanted < 0 ? -1 : t - 1, twin = -1;
    for (; found >= 0 && position[found] != wanted; --found)
        if (twin < 0 && position[found] == position[t]) twin = found;
    place[token] = static_cast<std::int32_t>(found);
    if (found >= 0 && twin >= 0) sibling[token - t + twin] = static_cast<std::int32_t>(t);
}

template <class T>
struct TokenRows {
    DeviceRows<T> y;
    DeviceRows<const T> x;
    TokenNeighbours neighbours;
    Divisor vectors_per_row, heads;
    std::int64_t vectors;
};

template <int n, class T, bool is_gradient>
__global__ void __launch_bounds__(row_threads) previous_rows_kernel(const TokenRows<T> p) {
    using S = Accumulator<T>;
    await_predecessor();
    const std::int64_t index = blockIdx.x * std::int64_t{row_threads} + threadIdx.x;
    if (index >= p.vectors) return;
    const std::int64_t row = p.vectors_per_row.quotient_of(index);
    const std::int64_t column = (index - row * p.vectors_per_row.value) * n;
    const std::int64_t token = p.heads.quotient_of(row), head = row - token * p.heads.value;
    const std::int64_t previous = p.neighbours.previous(token);
    S values[n] = {};
    if constexpr (is_gradient) {
        if (previous < 0) load<n>(values, p.x[row] + column);
        for (std::int64_t next = p.neighbours.first_next(token); next >= 0;
             next = p.neighbours.next_sibling(next)) {
            S more[n];
            load<n>(more, p.x[next * p.heads.value + head] + column);
#pragma unroll
            for (int i = 0; i < n; ++i) values[i] += more[i];
        }
    } else {
        load<n>(values, p.x[previous < 0 ? row : previous * p.heads.value + head] + column);
    }
    store<n>(p.y[row] + column, values);
}

template <bool is_gradient>
void run_rows(const Context& ctx, const RowsOfTokens& op) {
    visit_floating(op.x.dtype(), [&]<class T>(TypeTag<T>) {
        const DeviceRows<T> y(op.y, "previous_token");
        const DeviceRows<const T> x(op.x, "previous_token");
        const auto run = [&]<int n>(std::integral_constant<int, n>) {
            const TokenRows<T> p{.y = y,
                                 .x = x,
                                 .neighbours = TokenNeighbours(op.previous, op.x),
                                 .vectors_per_row = Divisor(x.layout.width / n),
                                 .heads = Divisor(op.x.size(2)),
                                 .vectors = x.layout.rows * (x.layout.width / n)};
            launch(ctx, previous_rows_kernel<n, T, is_gradient>, blocks_for(p.vectors, row_threads),
                   Block{.threads = row_threads, .starts_early = true}, p);
        };
        x.in_vectors() && y.in_vectors() ? run(std::integral_constant<int, vector_length<T>>{})
                                         : run(std::integral_constant<int, 1>{});
    });
}

template <class T>
struct StepRows {
    DeviceRows<T> y;
    DeviceRows<const T> x;
    T* cache;
    BlockTable blocks;
    std::int64_t capacity, block_stride, token_stride, head_stride;
    const std::int32_t *positions, *slots;
    std::int64_t heads, elements;
};

/// One thread per element: a step has few rows.
template <class T>
__global__ void __launch_bounds__(row_threads) step_rows_kernel(const StepRows<T> p) {
    await_predecessor();
    const std::int64_t index = blockIdx.x * std::int64_t{row_threads} + threadIdx.x;
    if (index >= p.elements) return;
    const std::int64_t row = index / p.x.layout.width, column = index % p.x.layout.width;
    const std::int64_t text = row / p.heads, head = row % p.heads;
    const std::int32_t position = p.positions[text], slot = p.slots[text];
    const T own = p.x[row][column];
    T previous{};
    if (position >= 0 && position < p.capacity && slot >= 0 && slot < p.blocks.slots) {
        const int last_block = p.blocks.block_of(slot, position),
                  new_block = p.blocks.block_of(slot, position + 1);
        if (p.blocks.in_cache(last_block) && p.blocks.in_cache(new_block)) {
            const auto cached = [&](int block, std::int32_t row_of_text) -> T& {
                return p.cache[block * p.block_stride + p.blocks.row_in_block(row_of_text) * p.token_stride +
                               head * p.head_stride + column];
            };
            previous = position == 0 ? own : cached(last_block, position);
            cached(new_block, position + 1) = own;
        }
    }
    p.y[row][column] = previous;
}

}  // namespace

void find_previous_tokens(const Context& ctx, const PreviousTokens& previous, const Tensor& positions) {
    launch(ctx, find_previous_kernel, blocks_for(positions.elements(), row_threads),
           Block{.threads = row_threads, .starts_early = true}, previous.place.data<std::int32_t>(),
           previous.sibling.data<std::int32_t>(), positions.data<std::int32_t>(), positions.size(1),
           positions.elements());
}

void copy_previous_rows(const Context& ctx, const RowsOfTokens& op) {
    run_rows<false>(ctx, op);
}

void differentiate_previous_rows(const Context& ctx, const RowsOfTokens& op) {
    run_rows<true>(ctx, op);
}

void exchange_rows_of_step(const Context& ctx, const RowsOfStep& op) {
    visit_floating(op.x.dtype(), [&]<class T>(TypeTag<T>) {
        const StepRows<T> p{.y = DeviceRows<T>(op.y, "previous_token"),
                            .x = DeviceRows<const T>(op.x, "previous_token"),
                            .cache = op.cache.data<T>(),
                            .blocks = BlockTable(op.cache, op.table),
                            .capacity = rows_of_slot(op.cache, op.table) - 1,
                            .block_stride = op.cache.stride(0),
                            .token_stride = op.cache.stride(1),
                            .head_stride = op.cache.stride(2),
                            .positions = op.positions.data<std::int32_t>(),
                            .slots = op.slots.data<std::int32_t>(),
                            .heads = op.x.size(2),
                            .elements = op.x.elements()};
        launch(ctx, step_rows_kernel<T>, blocks_for(p.elements, row_threads),
               Block{.threads = row_threads, .starts_early = true}, p);
    });
}

}  // namespace gradtile::cuda
