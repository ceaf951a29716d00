// Token and position embeddings on the GPU.
#include <limits>

#include <gradtile/layers/internal/embedding_backend.h>
#include <gradtile/layers/device/map_rows.cuh>
#include <gradtile/layers/device/token_runs.cuh>

namespace gradtile::cuda {
namespace {

using device::Place;
template <class T>
using Output = device::DeviceRows<T>;
template <class T>
using Input = device::DeviceRows<const T>;

// ---- Token embedding, forward ----

constexpr int gather_threads = 256;
constexpr int gather_unroll = 2;  // vectors that a thread loads at the same time

/// y[i] = weight[ids[i]], n columns per vector. A token outside the vocabulary gives a NaN row. Rows of y are
/// stored with store_streaming, because only weight rows are read again.
template <int n, class T>
__global__ void __launch_bounds__(gather_threads)
    gather_kernel(T* y, const T* weight, const std::int32_t* ids, std::int64_t vocabulary,
                  device::Divisor vectors_per_row, std::int64_t vectors) {
    const std::int64_t begin = blockIdx.x * std::int64_t{gather_threads * gather_unroll} + threadIdx.x;
    std::int64_t rows[gather_unroll];
    std::int32_t ids_of_rows[gather_unroll];
    device::Fetched<n, T> fetched[gather_unroll];
    device::await_predecessor();
#pragma unroll
    for (int u = 0; u < gather_unroll; ++u) {
        const std::int64_t index = begin + u * gather_threads;
        rows[u] = vectors_per_row.quotient_of(index);
        ids_of_rows[u] = index < vectors ? ids[rows[u]] : -1;
    }
#pragma unroll
    for (int u = 0; u < gather_unroll; ++u) {
        const std::int64_t id = ids_of_rows[u];
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
        if (ids_of_rows[u] >= 0 && ids_of_rows[u] < vocabulary) {
            fetched[u].values(values);
        } else {
#pragma unroll
            for (int i = 0; i < n; ++i) values[i] = std::numeric_limits<S>::quiet_NaN();
        }
        device::store_streaming<n>(y + index * n, values);
    }
}

// ---- Token embedding, backward ----
// The rows of each token are added in position order, in runs whose borders depend only on the tokens. A warp
// adds 32 vectors per row; the grid's second axis divides wider rows. Threads use few registers, so that many
// warps can load at the same time. Half as many warps, each loading more rows at a time, were slower.

constexpr int add_threads = 128, add_warps = add_threads / 32;
constexpr int add_unroll = 4;  // rows that a warp loads at the same time

template <class T>
struct EmbeddingGradient {
    Accumulator<T>* weight;  // [V,C]
    Input<T> dy;
    device::TokenRuns runs;
    int width;
    Accumulator<T>* partials;  // [slots, C]: partial sums over long-run pieces
    int piece_blocks;          // the first blocks add pieces in turn; the others add windows
};

/// sums += the rows at places [begin, end). The warp holds the positions for 64 places, two per lane.
template <int n, class T, class S = Accumulator<T>>
__device__ __forceinline__ void add_rows(S (&sums)[n], const EmbeddingGradient<T>& g, int begin, int end,
                                         const std::int32_t (&positions)[2], int column) {
    for (int first = begin; first < end; first += add_unroll) {
        device::Fetched<n, T> fetched[add_unroll];
#pragma unroll
        for (int u = 0; u < add_unroll; ++u) {
            if (first + u >= end) break;
            const std::int64_t row =
                __shfl_sync(0xffffffffu, first + u < 32 ? positions[0] : positions[1], (first + u) % 32);
            if (column < g.width) fetched[u].read(g.dy[row] + column);
        }
#pragma unroll
        for (int u = 0; u < add_unroll; ++u) {
            if (first + u >= end) break;
            S values[n];
            fetched[u].values(values);
#pragma unroll
            for (int i = 0; i < n; ++i) sums[i] += values[i];
        }
    }
}

/// The short runs of equal tokens that begin in a window. A warp holds 64 neighbouring entries of the sorted
/// list, two per lane, from the window's first entry on. The runs are entries [begin, end) of these 64.
struct WindowRuns {
    std::int32_t tokens[2], positions[2];
    std::uint64_t begins;  ///< bit i is set if a run begins at place i
    int begin, end;

    __device__ __forceinline__ WindowRuns(const device::TokenRuns& runs, std::int64_t window) {
        constexpr unsigned warp = 0xffffffffu;
        const std::int64_t lane = threadIdx.x % 32, first = window * device::run_window;
        const auto token_at = [&](std::int64_t i) {
            return i >= 0 && i < runs.count ? runs.sorted.keys[i] : -1;
        };
        unsigned begins_of[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const std::int64_t i = first + 32 * half + lane;
            tokens[half] = token_at(i);
            positions[half] = i < runs.count ? runs.sorted.positions[i] : 0;
            begins_of[half] = __ballot_sync(warp, token_at(i - 1) != tokens[half]);
        }
        begins = begins_of[0] | std::uint64_t{begins_of[1]} << 32;
        const bool is_known = tokens[0] >= 0 && tokens[0] < runs.vocabulary;
        const unsigned known_begins =
            begins_of[0] & __ballot_sync(warp, lane < device::run_window && is_known);
        begin = known_begins == 0 ? 0 : __ffs(static_cast<int>(known_begins)) - 1;
        end = begin;
        if (known_begins == 0) return;
        const int last = 31 - __clz(static_cast<int>(known_begins));
        const int length = next_begin(last) - last;
        end = length <= device::short_run ? last + length : last;
    }
    /// The place after `place` where the next run begins; 64 if there is none.
    __device__ __forceinline__ int next_begin(int place) const {
        const std::uint64_t later = begins >> (place + 1);
        return later == 0 ? 64 : place + __ffsll(static_cast<long long>(later));
    }
    __device__ __forceinline__ std::int32_t token(int place) const {
        return __shfl_sync(0xffffffffu, place < 32 ? tokens[0] : tokens[1], place % 32);
    }
    __device__ __forceinline__ std::int32_t position(int place) const {
        return __shfl_sync(0xffffffffu, place < 32 ? positions[0] : positions[1], place % 32);
    }
};

/// A warp adds the short runs that begin in a window. While it adds one run, it loads the next run's gradient
/// and first row.
template <int n, class T>
__device__ __forceinline__ void add_short_runs(const EmbeddingGradient<T>& g, int window) {
    using S = Accumulator<T>;
    if (window >= g.runs.counts->windows) return;
    const WindowRuns runs(g.runs, g.runs.windows[window]);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int group = static_cast<int>(blockIdx.y); group * 32 * n < g.width; group += gridDim.y) {
        const int column = (group * 32 + lane) * n;
        const bool inside = column < g.width;
        S* next_gradient = nullptr;
        device::Fetched<n, S> before;
        device::Fetched<n, T> first_row;
        const auto fetch_run = [&](int place) {
            next_gradient = g.weight + runs.token(place) * std::int64_t{g.width} + column;
            const T* const row = g.dy[runs.position(place)] + column;
            if (!inside) return;
            before.read(next_gradient);
            first_row.read(row);
        };
        if (runs.begin < runs.end) fetch_run(runs.begin);
        for (int place = runs.begin, next; place < runs.end; place = next) {
            S* const gradient = next_gradient;
            S sums[n], values[n];
            before.values(sums);
            first_row.values(values);
#pragma unroll
            for (int i = 0; i < n; ++i) sums[i] += values[i];
            next = runs.next_begin(place);
            if (next < runs.end) fetch_run(next);
            add_rows(sums, g, place + 1, next, runs.positions, column);
            if (inside) device::store<n>(gradient, sums);
        }
    }
}

/// Adds the run's `pieces` partial sums to its gradient.
template <int n, class S>
__device__ __forceinline__ void add_partials(S* gradient, const S* partials, int pieces, int width) {
    S sums[n] = {};
    for (int first = 0; first < pieces; first += add_unroll) {
        device::Fetched<n, S> fetched[add_unroll];
#pragma unroll
        for (int u = 0; u < add_unroll; ++u)
            if (first + u < pieces) fetched[u].read(partials + (first + u) * std::int64_t{width});
#pragma unroll
        for (int u = 0; u < add_unroll; ++u) {
            if (first + u >= pieces) break;
            S values[n];
            fetched[u].values(values);
#pragma unroll
            for (int i = 0; i < n; ++i) sums[i] += values[i];
        }
    }
    device::accumulate<n>(gradient, sums);
}

/// A block adds a piece's rows. If the run has only this piece, the sum is added to the gradient. Otherwise
/// it is stored as a partial sum, and the last block to finish adds the run's partial sums to the gradient.
template <int n, class T>
__device__ __forceinline__ void add_piece(const EmbeddingGradient<T>& g, const device::RunPiece& piece) {
    using S = Accumulator<T>;
    constexpr int m = n == 1 ? 1 : device::vector_length<S>, columns = 32 * n;
    static_assert(columns <= m * add_threads && device::run_piece == 32 * add_warps);
    __shared__ alignas(16) S warp_sums[add_warps][columns];
    __shared__ bool is_last;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    // This thread's column in a group, for adding up the warp sums.
    const int own = static_cast<int>(threadIdx.x) * m;
    S* const gradient = g.weight + g.runs.sorted.keys[piece.begin] * std::int64_t{g.width};
    S* const partials = g.partials + piece.slot * std::int64_t{g.width};
    const int pieces = piece.pieces();

    const int begin = piece.begin + piece.index * device::run_piece + warp * 32;
    const int rows = min(max(piece.end - begin, 0), 32);
    const std::int32_t positions[2] = {lane < rows ? g.runs.sorted.positions[begin + lane] : 0, 0};
    for (int group = static_cast<int>(blockIdx.y); group * columns < g.width; group += gridDim.y) {
        S sums[n] = {};
        add_rows(sums, g, 0, rows, positions, group * columns + lane * n);
        device::store<n>(warp_sums[warp] + lane * n, sums);
        __syncthreads();
        const int column = group * columns + own;
        if (own < columns && column < g.width) {
            S total[m] = {};
#pragma unroll
            for (int w = 0; w < add_warps; ++w)
#pragma unroll
                for (int i = 0; i < m; ++i) total[i] += warp_sums[w][own + i];
            if (pieces == 1) {
                device::accumulate<m>(gradient + column, total);
            } else {
                device::store<m>(partials + piece.index * std::int64_t{g.width} + column, total);
            }
        }
        __syncthreads();
    }
    if (pieces == 1) return;
    __threadfence();
    __syncthreads();
    std::int32_t* const arrived = g.runs.arrivals + piece.slot * device::arrival_lanes + blockIdx.y;
    if (threadIdx.x == 0) is_last = atomicAdd(arrived, 1) == pieces - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) *arrived = 0;
    for (int group = static_cast<int>(blockIdx.y); group * columns < g.width; group += gridDim.y)
        if (const int column = group * columns + own; own < columns && column < g.width)
            add_partials<m>(gradient + column, partials + column, pieces, g.width);
}

template <int n, class T>
__global__ void __launch_bounds__(add_threads, 8) add_by_token_kernel(const EmbeddingGradient<T> g) {
    device::await_predecessor();
    const int block = static_cast<int>(blockIdx.x);
    if (block >= g.piece_blocks) {
        add_short_runs<n>(g, (block - g.piece_blocks) * add_warps + static_cast<int>(threadIdx.x) / 32);
        return;
    }
    const int pieces = g.runs.counts->pieces;
    for (int i = block; i < pieces; i += g.piece_blocks) add_piece<n>(g, g.runs.pieces[i]);
}

// ---- Position embedding ----

template <class T>
struct AddPosition {
    const T* weight;
    device::Divisor positions;
    std::int64_t width;

    template <class S, int n>
    __device__ void operator()(S (&y)[1][n], const S (&x)[1][n], Place place) const {
        const std::int64_t position = place.row - positions.quotient_of(place.row) * positions.value;
        S values[n];
        device::load<n>(values, weight + position * width + place.column);
#pragma unroll
        for (int i = 0; i < n; ++i) y[0][i] = x[0][i] + values[i];
    }
};

constexpr int sample_threads = 256;
constexpr int sample_unroll = 8;  // samples that a thread loads at the same time
constexpr int max_sample_lanes = 8;

/// weight_grad[t] += sum over samples of dy[sample, t]. `lanes` threads share n columns; each adds every
/// lanes-th sample. With one lane, a block reads 4 KiB of neighbouring elements at a time.
template <int n, class T>
__global__ void __launch_bounds__(sample_threads, 3)
    add_samples_kernel(Accumulator<T>* weight_grad, Input<T> dy, std::int64_t samples, std::int64_t positions,
                       device::Divisor vectors_per_row, int lanes) {
    using S = Accumulator<T>;
    __shared__ S shared[sample_threads][n];
    const int vectors = sample_threads / lanes, lane_x = static_cast<int>(threadIdx.x) % vectors,
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

/// How many threads share a sum over samples: the smallest number that gives enough threads for a large GPU.
/// It is the same for every GPU, so that results do not depend on the GPU.
int sample_lanes(std::int64_t vectors, std::int64_t samples) {
    constexpr std::int64_t enough_threads = 96 << 10;
    int lanes = 1;
    while (lanes < max_sample_lanes && 2 * lanes <= samples && vectors * lanes < enough_threads) lanes *= 2;
    return lanes;
}

/// Calls f with vector_length<T> if vectors are possible, else with 1.
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

std::int64_t token_order_elements(std::int64_t positions) {
    return token_runs_elements(positions);
}

void order_by_token(const Context& ctx, const Tensor& order, const Tensor& tokens, std::int64_t vocabulary) {
    const std::int64_t count = tokens.elements();
    if (count == 0) return;
    check(count < std::numeric_limits<std::int32_t>::max(), "embedding: ", count,
          " positions are too many for one pass");
    find_token_runs(ctx, order.data<std::int32_t>(), tokens.data<std::int32_t>(), count,
                    static_cast<std::int32_t>(vocabulary));
}

Shape embedding_backward_scratch(std::int64_t positions, std::int64_t width) {
    return {device::TokenRuns{.count = positions}.max_slots(), width};
}

void embedding_backward(const Context& ctx, const Tensor& weight_grad, const Tensor& dy, const Tensor& order,
                        const Tensor& scratch) {
    const std::int64_t vocabulary = weight_grad.size(0), width = weight_grad.size(1);
    if (dy.elements() == 0) return;
    const std::int64_t count = dy.elements() / width;
    check(width <= std::int64_t{1} << 30, "embedding: ", width, " columns; expected at most 2^30");
    visit_floating(dy.dtype(), [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        EmbeddingGradient<T> gradient{
            .weight = weight_grad.data<S>(),
            .dy = Input<T>(dy, "embedding"),
            .runs = token_runs(order.data<std::int32_t>(), count, static_cast<std::int32_t>(vocabulary)),
            .width = static_cast<int>(width),
            .partials = scratch.data<S>(),
            .piece_blocks = 0};
        // Only the device knows the piece count, which is rarely larger than enough_blocks.
        constexpr std::int64_t enough_blocks = 512;
        gradient.piece_blocks = static_cast<int>(std::min(gradient.runs.max_pieces(), enough_blocks));
        const bool vectors = gradient.dy.in_vectors() && device::on_vector_boundary(weight_grad) &&
                             device::on_vector_boundary(scratch);
        with_vectors<T>(vectors, [&]<int n>(std::integral_constant<int, n>) {
            dim3 blocks = blocks_for(gradient.runs.max_windows(), add_warps);
            blocks.x += static_cast<unsigned>(gradient.piece_blocks);
            blocks.y =
                static_cast<unsigned>(std::min<std::int64_t>(ceil_div(width, 32 * n), device::arrival_lanes));
            launch(ctx, add_by_token_kernel<n, T>, blocks,
                   Block{.threads = add_threads, .starts_early = true}, gradient);
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
            launch(ctx, add_samples_kernel<n, T>, blocks_for(pieces, sample_threads / lanes),
                   Block{.threads = sample_threads, .starts_early = true}, weight_grad.data<Accumulator<T>>(),
                   rows, dy.size(0), positions, device::Divisor(width / n), lanes);
        });
    });
}

}  // namespace gradtile::cuda
