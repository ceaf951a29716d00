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

// ---- Token embedding, backward ----
// Positions are sorted by token, and every token's rows are added in order. Two warps take 32 sorted places.
// They add the runs of equal tokens that begin in their half to the gradient, the last one to its end. Text
// has tokens with thousands of positions: of a run longer than 32 the sum of each 32 places goes to
// `partials`, and a second kernel adds these up.

constexpr int add_threads = 256;
constexpr int run_piece = 32;  // sorted places of two warps; a longer run is a long one

template <class T>
struct EmbeddingGradient {
    Accumulator<T>* weight;  // [V,C]
    Input<T> dy;
    SortedTokens sorted;
    std::int64_t count, vocabulary, width;
    // [pieces of the sorted places, 2, C]: of the long run that began before the piece, and of the one that
    // begins in it; a second cannot.
    Accumulator<T>* partials;
    std::int32_t* long_runs;  // their number, then where each begins

    __device__ __forceinline__ Accumulator<T>* partial(std::int64_t piece, bool begins) const {
        return partials + (2 * piece + begins) * width;
    }
};

/// The token of sorted place i; a run ends where it changes.
template <class T>
__device__ __forceinline__ std::int32_t token_at(const EmbeddingGradient<T>& g, std::int64_t i) {
    return i >= 0 && i < g.count ? g.sorted.keys[i] : -1;
}

/// Rows on their way to a warp together.
template <int held>
inline constexpr int run_unroll = held == 1 ? 8 : 4;

/// sums += the rows of sorted places [begin, end) of the warp's 64, whose positions its lanes have.
template <int n, int held, class T, class S = Accumulator<T>>
__device__ __forceinline__ void add_rows(S (&sums)[held][n], const EmbeddingGradient<T>& g, int begin,
                                         int end, const std::int32_t (&positions)[2], std::int64_t column) {
    const auto inside = [&](int k) { return column + k * 32 * n < g.width; };
    for (int first = begin; first < end; first += run_unroll<held>) {
        device::Fetched<n, T> fetched[run_unroll<held>][held];
#pragma unroll
        for (int u = 0; u < run_unroll<held>; ++u) {
            if (first + u >= end) break;
            const std::int64_t row =
                __shfl_sync(0xffffffffu, first + u < 32 ? positions[0] : positions[1], (first + u) % 32);
            const T* const from = g.dy[row] + column;
#pragma unroll
            for (int k = 0; k < held; ++k)
                if (inside(k)) fetched[u][k].read(from + k * 32 * n);
        }
#pragma unroll
        for (int u = 0; u < run_unroll<held>; ++u) {
            if (first + u >= end) break;
#pragma unroll
            for (int k = 0; k < held; ++k) {
                if (!inside(k)) continue;
                S values[n];
                fetched[u][k].values(values);
#pragma unroll
                for (int i = 0; i < n; ++i) sums[k][i] += values[i];
            }
        }
    }
}

/// `held` times n columns a lane; blockIdx.y says which.
template <int n, int held, class T>
__global__ void __launch_bounds__(add_threads, 2) add_runs_kernel(const EmbeddingGradient<T> g) {
    using S = Accumulator<T>;
    static_assert(run_piece == 32);
    constexpr unsigned warp = 0xffffffffu;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // From the end, where rare tokens stand together, which cost more.
    const std::int64_t task =
        (gridDim.x - blockIdx.x) * std::int64_t{add_threads / 32} - 1 - threadIdx.x / 32;
    const std::int64_t piece = task / 2;
    const int half = static_cast<int>(task % 2), half_end = (half + 1) * (run_piece / 2);
    const std::int64_t first = piece * run_piece, column = (blockIdx.y * std::int64_t{32 * held} + lane) * n;
    const auto inside = [&](int k) { return column + k * 32 * n < g.width; };
    device::await_predecessor();
    if (first >= g.count) return;
    const std::int32_t token = token_at(g, first + lane), before = token_at(g, first - 1 - lane),
                       after = token_at(g, first + run_piece + lane);
    const auto position_at = [&](std::int64_t i) { return i < g.count ? g.sorted.positions[i] : 0; };
    const std::int32_t positions[2] = {position_at(first + lane), position_at(first + run_piece + lane)};

    const auto equal_lanes = [](bool equal) {  // until the first that is not
        const unsigned differ = ~__ballot_sync(warp, equal);
        return differ == 0 ? 32 : __ffs(static_cast<int>(differ)) - 1;
    };
    const int behind = equal_lanes(before == __shfl_sync(warp, token, 0)),
              ahead = equal_lanes(after == __shfl_sync(warp, token, 31));
    const std::int32_t left = __shfl_up_sync(warp, token, 1);
    const unsigned begins = __ballot_sync(warp, lane > 0 ? token != left : behind == 0);

    const unsigned in_second_half = begins >> (run_piece / 2);
    int begin = half == 0             ? 0
                : in_second_half == 0 ? run_piece
                                      : run_piece / 2 + __ffs(static_cast<int>(in_second_half)) - 1;
    for (int end = 0; begin < half_end; begin = end) {
        const std::int32_t its_token = __shfl_sync(warp, token, begin);
        if (its_token < 0 || its_token >= g.vocabulary) return;  // all that follow likewise
        const unsigned later = begin == 31 ? 0 : begins >> (begin + 1);
        end = later == 0 ? run_piece : begin + __ffs(static_cast<int>(later));
        const bool begins_here = (begins >> begin & 1) != 0;
        const int reach = end == run_piece ? run_piece + ahead : end;
        const bool is_long = reach - begin + (begins_here ? 0 : behind) > run_piece;
        if (!begins_here && !is_long) continue;                      // added by the warp where it begins
        if (is_long && begins_here && lane == 0 && blockIdx.y == 0)  // in an order that changes no result
            g.long_runs[1 + atomicAdd(g.long_runs, 1)] = static_cast<std::int32_t>(first) + begin;

        S* const to = is_long ? g.partial(piece, begins_here) : g.weight + its_token * g.width;
        S sums[held][n] = {};
#pragma unroll
        for (int k = 0; k < held; ++k)
            if (!is_long && inside(k)) device::load<n>(sums[k], to + column + k * 32 * n);
        add_rows(sums, g, begin, is_long ? end : reach, positions, column);
#pragma unroll
        for (int k = 0; k < held; ++k)
            if (inside(k)) device::store<n>(to + column + k * 32 * n, sums[k]);
    }
}

constexpr int total_columns = 64;                         // pieces of n columns that a block takes,
constexpr int total_lanes = add_threads / total_columns;  // and threads that share each
constexpr int total_unroll = 6;                           // pieces of one thread on their way together

/// Blocks take (long run, group of columns) in turn and add its pieces to the gradient.
template <int n, class T, class S = Accumulator<T>>
__global__ void __launch_bounds__(add_threads, 4) add_long_runs_kernel(const EmbeddingGradient<T> g) {
    __shared__ S shared[total_lanes][total_columns][n];
    const int lane_x = threadIdx.x % total_columns, lane_y = threadIdx.x / total_columns;
    const std::int64_t groups = (g.width + total_columns * n - 1) / (total_columns * n);
    device::await_predecessor();
    const std::int64_t tasks = *g.long_runs * groups;
    for (std::int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
        const std::int64_t begin = g.long_runs[1 + task / groups], piece = begin / run_piece;
        const std::int32_t token = g.sorted.keys[begin];
        // The pieces behind its first: those that begin with its token.
        std::int64_t others = 0;
        for (int found = add_threads; found == add_threads; others += found)
            found = __syncthreads_count(token_at(g, (piece + 1 + others + threadIdx.x) * run_piece) == token);
        const std::int64_t column = (task % groups * total_columns + lane_x) * n;
        const bool inside = column < g.width;
        S sums[n] = {};
        if (inside) {
            for (std::int64_t i = lane_y; i <= others; i += total_lanes * total_unroll) {
                device::Fetched<n, S> fetched[total_unroll];
#pragma unroll
                for (int u = 0; u < total_unroll; ++u)
                    if (const std::int64_t at = i + u * total_lanes; at <= others)
                        fetched[u].read(g.partial(piece + at, at == 0) + column);
#pragma unroll
                for (int u = 0; u < total_unroll; ++u) {
                    if (i + u * total_lanes > others) break;
                    S values[n];
                    fetched[u].values(values);
#pragma unroll
                    for (int j = 0; j < n; ++j) sums[j] += values[j];
                }
            }
        }
#pragma unroll
        for (int i = 0; i < n; ++i) shared[lane_y][lane_x][i] = sums[i];
        __syncthreads();
        if (lane_y == 0 && inside) {
            for (int lane = 1; lane < total_lanes; ++lane)
#pragma unroll
                for (int i = 0; i < n; ++i) sums[i] += shared[lane][lane_x][i];
            device::accumulate<n>(g.weight + token * g.width + column, sums);
        }
        __syncthreads();
    }
}

/// Where in the scratch things are, in int32 elements: the partial sums come first, for their alignment.
struct EmbeddingScratch {
    std::int64_t partials, long_runs, all;

    EmbeddingScratch(std::int64_t count, std::int64_t width, DType dtype)
        : partials(2 * ceil_div(count, run_piece) * width *
                   static_cast<std::int64_t>(size_of(accumulator_of(dtype)) / sizeof(std::int32_t))),
          long_runs(1 + count / (run_piece + 1)),
          all(partials + long_runs + sort_scratch(count)) {}
};

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

std::int64_t embedding_backward_scratch(std::int64_t positions, std::int64_t width, DType dtype) {
    return EmbeddingScratch(positions, width, dtype).all;
}

void embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy, const Tensor& tokens,
                        const Tensor& scratch) {
    const std::int64_t count = tokens.elements(), vocabulary = weight_grad.size(0),
                       width = weight_grad.size(1);
    if (count == 0 || width == 0) return;
    check(count < std::numeric_limits<std::int32_t>::max(), "embedding: ", count, " positions at once");
    const EmbeddingScratch sizes(count, width, dy.dtype());
    std::int32_t* const partials = scratch.data<std::int32_t>();
    std::int32_t* const long_runs = partials + sizes.partials;
    const SortedTokens sorted = sort_tokens(ctx, long_runs + sizes.long_runs, tokens.data<std::int32_t>(),
                                            count, static_cast<std::int32_t>(vocabulary), long_runs);

    visit_floating(dy.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        const EmbeddingGradient<T> gradient{.weight = weight_grad.data<S>(),
                                            .dy = Input<T>(dy, "embedding"),
                                            .sorted = sorted,
                                            .count = count,
                                            .vocabulary = vocabulary,
                                            .width = width,
                                            .partials = reinterpret_cast<S*>(partials),
                                            .long_runs = long_runs};
        const Block block{.threads = add_threads, .starts_early = true};
        const bool vectors = gradient.dy.in_vectors() && device::on_vector_boundary(weight_grad) &&
                             device::on_vector_boundary(scratch);
        with_vectors<T>(vectors, [&]<int n>(std::integral_constant<int, n>) {
            const auto add_runs = [&]<int held>(std::integral_constant<int, held>) {
                dim3 blocks = blocks_for(2 * ceil_div(count, run_piece), add_threads / 32);
                blocks.y = static_cast<unsigned>(ceil_div(width, 32 * held * n));
                launch(ctx, add_runs_kernel<n, held, T>, blocks, block, gradient);
            };
            // Whole rows, unless there are too few of them to keep a GPU's processors in work.
            constexpr std::int64_t enough_places = 32 << 10;
            if constexpr (n == 1) {
                add_runs(std::integral_constant<int, 1>{});
            } else if (width <= 32 * n || count < enough_places) {
                add_runs(std::integral_constant<int, 1>{});
            } else if (ceil_div(width, 32 * 2 * n) * 2 < ceil_div(width, 32 * 3 * n) * 3) {
                add_runs(std::integral_constant<int, 2>{});
            } else {
                add_runs(std::integral_constant<int, 3>{});
            }
        });
        constexpr int n = device::vector_length<S>;
        const auto add_long_runs = [&]<int m>(std::integral_constant<int, m>) {
            // Every block strides over the list, whose length only the device knows.
            const std::int64_t tasks = count / (run_piece + 1) * ceil_div(width, total_columns * m);
            if (tasks == 0) return;
            launch(ctx, add_long_runs_kernel<m, T>, blocks_for(std::min<std::int64_t>(tasks, 1024), 1), block,
                   gradient);
        };
        if (width % n == 0 && device::on_vector_boundary(weight_grad) &&
            device::on_vector_boundary(scratch)) {
            add_long_runs(std::integral_constant<int, n>{});
        } else {
            add_long_runs(std::integral_constant<int, 1>{});
        }
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
