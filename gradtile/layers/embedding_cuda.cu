// Token and position embeddings on the GPU.
#include <limits>

#include <gradtile/layers/embedding_backend.h>
#include <gradtile/layers/device/map_rows.cuh>
#include <gradtile/layers/device/token_sort.cuh>

namespace gradtile::cuda {
namespace {

using device::Place;
template <class T>
using Output = device::Rows<T>;
template <class T>
using Input = device::Rows<const T>;

// ---- Token embedding, forward ----

constexpr int gather_threads = 256;
constexpr int gather_unroll = 4;  // pieces of one thread that are on their way together

/// y[i] = weight[ids[i]], n columns at a time; a token outside the vocabulary gives a row of NaN.
template <int n, class T>
__global__ void __launch_bounds__(gather_threads)
    gather_kernel(T* y, const T* weight, const std::int32_t* ids, std::int64_t vocabulary,
                  device::Divisor vectors_per_row, std::int64_t vectors) {
    const std::int64_t begin = blockIdx.x * std::int64_t{gather_threads * gather_unroll} + threadIdx.x;
    std::int64_t rows[gather_unroll];
    std::int32_t its_ids[gather_unroll];
    device::Fetched<n, T> fetched[gather_unroll];
    device::await_predecessor();
#pragma unroll
    for (int u = 0; u < gather_unroll; ++u) {
        const std::int64_t index = begin + u * gather_threads;
        rows[u] = vectors_per_row.quotient_of(index);
        its_ids[u] = index < vectors ? ids[rows[u]] : -1;
    }
#pragma unroll
    for (int u = 0; u < gather_unroll; ++u) {
        const std::int64_t id = its_ids[u];
        if (id < 0 || id >= vocabulary) continue;
        const std::int64_t in_row = begin + u * gather_threads - rows[u] * vectors_per_row.value;
        fetched[u].read(weight + (id * vectors_per_row.value + in_row) * n);
    }
#pragma unroll
    for (int u = 0; u < gather_unroll; ++u) {
        using S = Accumulator<T>;
        const std::int64_t index = begin + u * gather_threads;
        if (index >= vectors) break;
        S values[n];
        if (its_ids[u] >= 0 && its_ids[u] < vocabulary) {
            fetched[u].values(values);
        } else {
#pragma unroll
            for (int i = 0; i < n; ++i) values[i] = std::numeric_limits<S>::quiet_NaN();
        }
        device::store<n>(y + index * n, values);
    }
}

// ---- Token embedding, backward: positions are sorted by token, and every token's rows are added in order
// ----

constexpr int add_threads = 256;
constexpr int longest_short_run = 32;                 // what one warp adds alone
constexpr int run_columns = 8;                        // vectors of columns of a long run that a block takes,
constexpr int run_lanes = add_threads / run_columns;  // and threads that share each

/// A token with many positions: sorted[begin .. begin + length).
struct LongRun {
    std::int32_t begin, length;
};

template <class T>
struct EmbeddingGradient {
    Accumulator<T>* weight;  // [V,C]
    Input<T> dy;
    SortedTokens sorted;
    std::int64_t count, vocabulary, width;
    std::int32_t* long_runs;  // their number, then the LongRuns
};

/// The token of sorted place i; a run ends where it changes.
template <class T>
__device__ __forceinline__ std::int32_t token_at(const EmbeddingGradient<T>& g, std::int64_t i) {
    return i >= 0 && i < g.count ? g.sorted.keys[i] : -1;
}

/// First place after the run that place i belongs to, when that is further than `reach` away.
template <class T>
__device__ std::int64_t end_of_run(const EmbeddingGradient<T>& g, std::int64_t i, std::int64_t reach) {
    std::int64_t inside = i + reach, outside = g.count;
    const std::int32_t token = g.sorted.keys[i];
    while (outside - inside > 1) {
        const std::int64_t middle = (inside + outside) / 2;
        (g.sorted.keys[middle] == token ? inside : outside) = middle;
    }
    return outside;
}

/// One warp for each place: the first place of a short run adds the run's rows, that of a long one lists it.
template <int n, class T>
__global__ void __launch_bounds__(add_threads) add_short_runs_kernel(const EmbeddingGradient<T> g) {
    using S = Accumulator<T>;
    device::await_predecessor();
    const int lane = threadIdx.x % 32;
    const std::int64_t first = (blockIdx.x * std::int64_t{add_threads} + threadIdx.x) / 32;
    if (first >= g.count) return;
    const std::int32_t token = g.sorted.keys[first];
    if (token == token_at(g, first - 1) || token >= g.vocabulary) return;
    const unsigned differ = __ballot_sync(0xffffffffu, token_at(g, first + 1 + lane) != token);
    if (differ == 0) {
        if (lane != 0) return;
        const std::int64_t end = end_of_run(g, first, longest_short_run);
        const int slot = atomicAdd(g.long_runs, 1);  // the order of this list changes no result
        reinterpret_cast<LongRun*>(g.long_runs + 2)[slot] = {static_cast<std::int32_t>(first),
                                                             static_cast<std::int32_t>(end - first)};
        return;
    }
    const int length = __ffs(static_cast<int>(differ));
    const std::int64_t position = lane < length ? g.sorted.positions[first + lane] : 0;
    S* to = g.weight + token * g.width;
    for (std::int64_t begin = 0; begin < g.width; begin += 32 * n) {
        const std::int64_t column = begin + lane * n;
        const bool inside = column < g.width;
        S sums[n] = {}, values[n];
#pragma unroll 4
        for (int r = 0; r < length; ++r) {
            const std::int64_t row = __shfl_sync(0xffffffffu, position, r);
            if (!inside) continue;
            device::load<n>(values, g.dy[row] + column);
#pragma unroll
            for (int i = 0; i < n; ++i) sums[i] += values[i];
        }
        if (inside) device::accumulate<n>(to + column, sums);
    }
}

/// Blocks take (long run, group of columns) in turn.
template <int n, class T>
__global__ void __launch_bounds__(add_threads) add_long_runs_kernel(const EmbeddingGradient<T> g) {
    using S = Accumulator<T>;
    __shared__ S shared[run_lanes][run_columns][n];
    const int lane_x = threadIdx.x % run_columns, lane_y = threadIdx.x / run_columns;
    const std::int64_t groups = (g.width + run_columns * n - 1) / (run_columns * n);
    device::await_predecessor();
    const LongRun* runs = reinterpret_cast<const LongRun*>(g.long_runs + 2);
    const std::int64_t pieces = *g.long_runs * groups;
    for (std::int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        const LongRun run = runs[piece / groups];
        const std::int64_t column = (piece % groups * run_columns + lane_x) * n;
        const bool inside = column < g.width;
        S sums[n] = {}, values[n];
        if (inside) {
#pragma unroll 4
            for (int r = lane_y; r < run.length; r += run_lanes) {
                device::load<n>(values, g.dy[g.sorted.positions[run.begin + r]] + column);
#pragma unroll
                for (int i = 0; i < n; ++i) sums[i] += values[i];
            }
        }
#pragma unroll
        for (int i = 0; i < n; ++i) shared[lane_y][lane_x][i] = sums[i];
        __syncthreads();
        if (lane_y == 0 && inside) {
            for (int lane = 1; lane < run_lanes; ++lane)
#pragma unroll
                for (int i = 0; i < n; ++i) sums[i] += shared[lane][lane_x][i];
            device::accumulate<n>(g.weight + g.sorted.keys[run.begin] * g.width + column, sums);
        }
        __syncthreads();
    }
}

/// Tokens outside the vocabulary become the one after its last, so that nothing is added for them.
__global__ void __launch_bounds__(add_threads)
    copy_tokens_kernel(std::int32_t* to, const std::int32_t* from, std::int64_t count,
                       std::int32_t vocabulary, std::int32_t* long_runs) {
    device::await_predecessor();
    const std::int64_t i = blockIdx.x * std::int64_t{add_threads} + threadIdx.x;
    if (i == 0) *long_runs = 0;
    if (i < count) to[i] = from[i] >= 0 && from[i] < vocabulary ? from[i] : vocabulary;
}

/// Scratch: room for the list of long runs, the tokens, and what sorting takes.
std::int64_t long_run_words(std::int64_t positions) {
    return 2 + 2 * (positions / (longest_short_run + 1));
}

// ---- Position embedding ----

template <class T>
struct AddPosition {
    const T* weight;
    device::Divisor positions;
    std::int64_t width;

    template <class S, int n>
    __device__ void operator()(S (&y)[1][n], const S (&x)[1][n], Place at) const {
        const std::int64_t position = at.row - positions.quotient_of(at.row) * positions.value;
        S values[n];
        device::load<n>(values, weight + position * width + at.column);
#pragma unroll
        for (int i = 0; i < n; ++i) y[0][i] = x[0][i] + values[i];
    }
};

constexpr int sample_unroll = 8;  // samples of one thread that are on their way together
constexpr int most_sample_lanes = 8;

/// weight_grad[t] += sum over samples of dy[sample, t], n columns a thread; `lanes` threads share them, each
/// with every lanes-th sample. One thread for all samples reads 4 KiB in a row with its block.
template <int n, class T>
__global__ void __launch_bounds__(add_threads, 3)
    add_samples_kernel(Accumulator<T>* weight_grad, Input<T> dy, std::int64_t samples, std::int64_t positions,
                       device::Divisor vectors_per_row, int lanes) {
    using S = Accumulator<T>;
    __shared__ S shared[add_threads][n];
    const int vectors = add_threads / lanes, lane_x = static_cast<int>(threadIdx.x) % vectors,
              lane_y = static_cast<int>(threadIdx.x) / vectors;
    const std::int64_t index = blockIdx.x * std::int64_t{vectors} + lane_x;
    const std::int64_t position = vectors_per_row.quotient_of(index);
    const bool inside = position < positions;
    const std::int64_t column = (index - position * vectors_per_row.value) * n;
    S sums[n] = {};
    device::await_predecessor();
    if (inside) {
        if (lane_y == 0) device::load<n>(sums, weight_grad + index * n);
        for (std::int64_t first = lane_y; first < samples; first += sample_unroll * lanes) {
            device::Fetched<n, T> fetched[sample_unroll];
#pragma unroll
            for (int u = 0; u < sample_unroll; ++u) {
                const std::int64_t sample = first + u * lanes;
                if (sample < samples) fetched[u].read(dy[sample * positions + position] + column);
            }
#pragma unroll
            for (int u = 0; u < sample_unroll; ++u) {
                if (first + u * lanes >= samples) break;
                S values[n];
                fetched[u].values(values);
#pragma unroll
                for (int i = 0; i < n; ++i) sums[i] += values[i];
            }
        }
    }
    if (lanes > 1) {
#pragma unroll
        for (int i = 0; i < n; ++i) shared[threadIdx.x][i] = sums[i];
        __syncthreads();
        if (lane_y != 0) return;
        for (int lane = 1; lane < lanes; ++lane)
#pragma unroll
            for (int i = 0; i < n; ++i) sums[i] += shared[lane * vectors + lane_x][i];
    }
    if (inside) device::store<n>(weight_grad + index * n, sums);
}

/// Threads that share a sum over the samples: as few as keep a GPU's processors in work, whatever the GPU, so
/// that the bits are the same.
int sample_lanes(std::int64_t vectors, std::int64_t samples) {
    constexpr std::int64_t enough_threads = 96 << 10;
    int lanes = 1;
    while (lanes < most_sample_lanes && 2 * lanes <= samples && vectors * lanes < enough_threads) lanes *= 2;
    return lanes;
}

/// Calls f with the vector length of T when the condition holds, else with 1.
template <class T, class F>
void with_vectors(bool possible, F&& f) {
    if (possible) {
        f(std::integral_constant<int, device::vector_length<T>>{});
    } else {
        f(std::integral_constant<int, 1>{});
    }
}

}  // namespace

void embedding_forward(const Context& ctx, const Tensor& y, const Tensor& tokens, const Tensor& weight) {
    if (y.elements() == 0) return;
    const std::int64_t width = weight.size(1);
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        const bool vectors = width % device::vector_length<T> == 0 && device::on_vector_boundary(y) &&
                             device::on_vector_boundary(weight);
        with_vectors<T>(vectors, [&]<int n>(std::integral_constant<int, n>) {
            launch(ctx, gather_kernel<n, T>, blocks_for(y.elements() / n, gather_threads * gather_unroll),
                   Block{.threads = gather_threads, .starts_early = true}, y.data<T>(), weight.data<T>(),
                   tokens.data<std::int32_t>(), weight.size(0), device::Divisor(width / n), y.elements() / n);
        });
    });
}

std::int64_t embedding_backward_scratch(std::int64_t positions) {
    return long_run_words(positions) + positions + sort_scratch(positions);
}

void embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy, const Tensor& tokens,
                        const Tensor& scratch) {
    const std::int64_t count = tokens.elements(), vocabulary = weight_grad.size(0),
                       width = weight_grad.size(1);
    if (count == 0 || width == 0) return;
    check(count < std::numeric_limits<std::int32_t>::max(), "embedding: ", count, " positions at once");
    std::int32_t* long_runs = scratch.data<std::int32_t>();
    std::int32_t* keys = long_runs + long_run_words(count);
    const Block block{.threads = add_threads, .starts_early = true};
    launch(ctx, copy_tokens_kernel, blocks_for(count, add_threads), block, keys, tokens.data<std::int32_t>(),
           count, static_cast<std::int32_t>(vocabulary), long_runs);
    int bits = 1;
    while (vocabulary >> bits != 0) ++bits;
    const SortedTokens sorted = sort_tokens(ctx, keys + count, keys, count, bits);

    visit_floating(dy.dtype(), [&]<class T>(TypeTag<T>) {
        const EmbeddingGradient<T> gradient{weight_grad.data<Accumulator<T>>(),
                                            Input<T>(dy, "embedding"),
                                            sorted,
                                            count,
                                            vocabulary,
                                            width,
                                            long_runs};
        const bool vectors = gradient.dy.in_vectors() && device::on_vector_boundary(weight_grad);
        with_vectors<T>(vectors, [&]<int n>(std::integral_constant<int, n>) {
            launch(ctx, add_short_runs_kernel<n, T>, blocks_for(count, add_threads / 32), block, gradient);
            // Every block strides over the list, whose length only the device knows.
            const dim3 blocks = blocks_for(
                std::min<std::int64_t>(count / longest_short_run + 1, 64) * ceil_div(width, run_columns * n),
                1);
            launch(ctx, add_long_runs_kernel<n, T>, blocks, block, gradient);
        });
    });
}

void position_embedding_forward(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& weight) {
    if (y.elements() == 0) return;
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        const AddPosition<T> add{weight.data<T>(), device::Divisor(weight.size(0)), weight.size(1)};
        map_rows<device::vector_length<T>, T, 1, 1>(ctx, {Output<T>(y, "position_embedding")},
                                                    {Input<T>(x, "position_embedding")}, add,
                                                    device::on_vector_boundary(weight));
    });
}

void position_embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy) {
    if (dy.elements() == 0) return;
    const std::int64_t positions = weight_grad.size(0), width = weight_grad.size(1);
    visit_floating(dy.dtype(), [&]<class T>(TypeTag<T>) {
        const Input<T> rows(dy, "position_embedding");
        const bool vectors = rows.in_vectors() && device::on_vector_boundary(weight_grad);
        with_vectors<T>(vectors, [&]<int n>(std::integral_constant<int, n>) {
            const std::int64_t pieces = positions * (width / n);
            const int lanes = sample_lanes(pieces, dy.size(0));
            launch(ctx, add_samples_kernel<n, T>, blocks_for(pieces, add_threads / lanes),
                   Block{.threads = add_threads, .starts_early = true}, weight_grad.data<Accumulator<T>>(),
                   rows, dy.size(0), positions, device::Divisor(width / n), lanes);
        });
    });
}

}  // namespace gradtile::cuda
