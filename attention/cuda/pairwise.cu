// FlashAttention-2 on square tiles, with one thread per (row, key) pair and without tensor cores. A pair with
// P = 0 adds nothing, whatever its inputs are. These kernels compute float64, for gradient checks, and repeat
// calls in other dtypes whose hidden inputs are not finite. One thread computes each sum in a fixed order, so
// results are bitwise identical in every run.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include <gradtile/attention/cuda/common/bias_gradients.h>
#include <gradtile/attention/cuda/common/exact_lse.h>
#include <gradtile/attention/cuda/common/shared_memory_limits.h>
#include <gradtile/attention/cuda/passes.h>
#include <gradtile/attention/internal/gpu_dtypes.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/attention/cuda/common/head_rows.cuh>
#include <gradtile/attention/cuda/common/row_statistics.cuh>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>

namespace gradtile::attention::cuda {
namespace {

using namespace device;

constexpr int max_head_dim = 256;

/// Chooses the tile size; tiles are square. A thread block has one thread per element of an S tile.
struct PairwiseChoice {
    static constexpr int tiles(int shared_limit) {
        return shared_bytes(16, max_head_dim, max_head_dim) <= shared_limit ? 16 : 8;
    }
    /// Shared-memory bytes in float64: `tile` rows each for q, k, v and d_o, and two pair tiles (P and dS).
    static constexpr int shared_bytes(int tile, int qk_dim, int v_dim) {
        return static_cast<int>(sizeof(double)) * tile * (2 * padded(qk_dim) + 2 * padded(v_dim) + 2 * tile);
    }
    /// A tile's row length in shared memory. It is odd, so that threads that read a column use different
    /// banks.
    __host__ __device__ static constexpr int padded(int d) { return d | 1; }
};
__device__ constexpr int padded(int d) {
    return PairwiseChoice::padded(d);
}

/// staged [tile, padded(d)] = x rows first .. first + tile - 1; rows from `end` on become 0.
template <int tile, class T>
__device__ void load(Accumulator<T>* staged, StridedRows<const T> x, std::int64_t first, std::int64_t end,
                     int d) {
    using A = Accumulator<T>;
    for (int e = threadIdx.x; e < tile * d; e += tile * tile) {
        const int r = e / d, c = e % d;
        staged[r * padded(d) + c] =
            first + r < end ? gradtile::cuda::device::convert<A>(x.row(first + r)[c]) : A(0);
    }
}

template <class A>
__device__ A dot(const A* a, const A* b, int n) {
    A sum = 0;
    for (int c = 0; c < n; ++c) sum += a[c] * b[c];
    return sum;
}

/// Reduce `value` over the threads that share a tile row.
template <int tile, class A>
__device__ A row_max(A value) {
    return reduce_lanes<tile>(value, [](A a, A b) { return b > a ? b : a; });
}
template <int tile, class A>
__device__ A row_sum(A value) {
    return reduce_lanes<tile>(value, Sum{});
}

/// Accumulators for one result row. Each thread holds columns y, y + tile, ..
template <class A, int tile>
struct RowSums {
    static constexpr int columns_per_thread = max_head_dim / tile;
    A value[columns_per_thread] = {};

    /// Adds weights [tile] (`step` elements apart) times staged [tile, padded(d)]. Skips zero weights: the
    /// pair may be hidden, and a NaN in its row or key must not reach the sum.
    __device__ void add_product(const A* weights, int step, const A* staged, int d, int y) {
#pragma unroll
        for (int n = 0; n < columns_per_thread; ++n) {
            const int c = y + n * tile;
            if (c < d)
                for (int j = 0; j < tile; ++j)
                    if (const A weight = weights[j * step]; weight != 0)
                        value[n] = fma(weight, staged[j * padded(d) + c], value[n]);
        }
    }
    __device__ void multiply(A factor) {
#pragma unroll
        for (int n = 0; n < columns_per_thread; ++n) value[n] *= factor;
    }
    template <class T>
    __device__ void store(T* row, A factor, int d, int y) const {
#pragma unroll
        for (int n = 0; n < columns_per_thread; ++n)
            if (y + n * tile < d) row[y + n * tile] = gradtile::cuda::device::convert<T>(factor * value[n]);
    }
};

template <class T>
struct PairwiseProblem {
    using A = Accumulator<T>;
    const int* enabled;  ///< the kernels do nothing if this is 0; null: they compute
    std::int64_t batch_size;
    Sizes sizes;
    Mask mask;
    A scale;
    TensorView<const T> q, k, v;
    ScoreOptions scores;
    PackedOffsets packed;
    RowRanges row_ranges;

    __device__ bool is_enabled() const { return enabled == nullptr || *enabled != 0; }
    __device__ SequenceOfPair sequence_of_query(std::int64_t batch, std::int64_t i) const {
        return SequenceOfPair::from_query(mask, packed, batch, i);
    }
    /// The keys that at least one row in [first, end) sees. Both range ends grow with the row.
    __device__ IndexRange visible_keys(std::int64_t batch, std::int64_t first, std::int64_t end) const {
        return {sequence_of_query(batch, first).visible_keys(first).begin,
                sequence_of_query(batch, end - 1).visible_keys(end - 1).end};
    }
    /// Contains the rows that see at least one key in [first, end).
    __device__ IndexRange seeing_rows(std::int64_t batch, std::int64_t first, std::int64_t end) const {
        if (!packed) return mask.seeing_rows({first, end});
        return {SequenceOfPair::from_key(mask, packed, batch, first).queries().begin,
                SequenceOfPair::from_key(mask, packed, batch, end - 1).queries().end};
    }
};

/// One head's tile of rows or keys, from `first` on.
struct TileOfHead {
    std::int64_t batch, head, first;
};
/// Calls f(TileOfHead) for each tile that this thread block processes. A head has `length` rows or keys. All
/// threads in the block must call this function.
template <int tile, class F>
__device__ __forceinline__ void for_each_tile(std::int64_t batch_size, std::int64_t heads,
                                              std::int64_t length, F&& f) {
    const std::int64_t tiles = (length + tile - 1) / tile;
    for (std::int64_t task = blockIdx.x; task < batch_size * heads * tiles; task += gridDim.x) {
        __syncthreads();  // all threads have read the previous tile's shared memory
        const std::int64_t batch_head = task / tiles;
        f(TileOfHead{batch_head / heads, batch_head % heads, task % tiles * tile});
    }
}

template <class T>
struct PairwiseOutputs {
    TensorView<T> o;
    Accumulator<T>*lse, *lse_remainder, *row_max, *row_sum;  ///< all but lse may be null
};

/// Computes O and LSE for `tile` query rows in one head.
template <class T, int tile>
__device__ void forward_tile(const PairwiseProblem<T>& p, const PairwiseOutputs<T>& out,
                             Accumulator<T>* shared, const TileOfHead& head_tile) {
    using A = Accumulator<T>;
    A* const q = shared;
    A* const k = q + tile * padded(p.sizes.qk_dim);
    A* const v = k + tile * padded(p.sizes.qk_dim);
    A* const probabilities = v + tile * padded(p.sizes.v_dim);
    const int x = threadIdx.x / tile, y = threadIdx.x % tile;  // x: row in the tile; y: key, or O column
    const auto [batch, head, first_row] = head_tile;
    const std::int64_t i = first_row + x;
    const StridedRows<const T> k_rows = p.k.head(batch, head / p.sizes.group);
    const StridedRows<const T> v_rows = p.v.head(batch, head / p.sizes.group);
    const A infinity = static_cast<A>(HUGE_VAL);
    const std::int64_t end_row = min(first_row + tile, p.mask.queries);
    const SequenceOfPair sequence = p.sequence_of_query(batch, min(i, end_row - 1));
    const ScoreRule<A> rule = rule_of<A>(sequence, p.scores, head);

    load<tile>(q, p.q.head(batch, head), first_row, p.mask.queries, p.sizes.qk_dim);
    const IndexRange visible = i < p.mask.queries ? sequence.visible_keys(i) : IndexRange{0, 0};
    const IndexRange keys = p.visible_keys(batch, first_row, end_row);
    const int row = static_cast<int>(i - sequence.first_query);
    A maximum = -infinity, sum = 0;
    RowSums<A, tile> o;
    for (std::int64_t first_key = keys.begin; first_key < keys.end; first_key += tile) {
        __syncthreads();  // all threads have read the last block's K, V and P
        load<tile>(k, k_rows, first_key, p.mask.keys, p.sizes.qk_dim);
        load<tile>(v, v_rows, first_key, p.mask.keys, p.sizes.v_dim);
        __syncthreads();
        const std::int64_t j = first_key + y;
        const int key = static_cast<int>(j - sequence.first_key);
        const bool is_visible =
            j >= visible.begin && j < visible.end && p.row_ranges.sees(batch, head, row, j);
        A s = -infinity;
        if (is_visible) {
            const A product =
                p.scale * dot(q + x * padded(p.sizes.qk_dim), k + y * padded(p.sizes.qk_dim), p.sizes.qk_dim);
            s = score_of<T>(rule, product, row, key).value;
        }
        const A new_maximum = max(maximum, row_max<tile>(s));
        const A reference = new_maximum == -infinity ? A(0) : new_maximum;  // no key was visible so far
        const A probability = exp(s - reference);
        const A rescale = exp(maximum - reference);
        maximum = new_maximum;
        sum = sum * rescale + row_sum<tile>(probability);
        probabilities[x * tile + y] = is_visible ? probability * kept(rule, row, key) : A(0);
        __syncthreads();
        o.multiply(rescale);
        o.add_product(probabilities + x * tile, 1, v, p.sizes.v_dim, y);
    }
    if (i >= p.mask.queries) return;
    if (rule.sink > -infinity) {
        const A with_sink = max(maximum, rule.sink), rescale = exp(maximum - with_sink);
        o.multiply(rescale);
        sum = sum * rescale + exp(rule.sink - with_sink);
        maximum = with_sink;
    }
    o.store(out.o.head(batch, head).row(i), sum == 0 ? A(0) : rule.dropout_scale / sum, p.sizes.v_dim, y);
    if (y != 0) return;
    const std::int64_t number = (batch * p.sizes.heads + head) * p.mask.queries + i;
    const A lse = sum == 0 ? -infinity : maximum + log(sum);
    out.lse[number] = lse;
    if (out.lse_remainder != nullptr) out.lse_remainder[number] = sum == 0 ? A(0) : maximum - lse + log(sum);
    if (out.row_max != nullptr) {
        out.row_max[number] = maximum;
        out.row_sum[number] = sum;
    }
}

template <class T, int tile>
__global__ void __launch_bounds__(tile* tile) forward_kernel(const __grid_constant__ PairwiseProblem<T> p,
                                                             const __grid_constant__ PairwiseOutputs<T> out) {
    extern __shared__ double shared[];
    gradtile::cuda::device::await_predecessor();
    if (!p.is_enabled()) return;
    for_each_tile<tile>(p.batch_size, p.sizes.heads, p.mask.queries, [&](const TileOfHead& head_tile) {
        forward_tile<T, tile>(p, out, reinterpret_cast<Accumulator<T>*>(shared), head_tile);
    });
}

/// Inputs of the backward kernels.
template <class T>
struct PairwiseBackwardProblem {
    using A = Accumulator<T>;
    PairwiseProblem<T> forward;
    TensorView<const T> o, d_o;
    const A *lse, *lse_remainder, *d_lse;  ///< [B, H, Sq]; the latter two may be null

    /// A row's index in these arrays.
    __device__ std::int64_t number(std::int64_t batch, std::int64_t head, std::int64_t i) const {
        return (batch * forward.sizes.heads + head) * forward.mask.queries + i;
    }
};

/// The row statistics that dS needs.
template <class A>
struct RowNumbers {
    A lse, remainder, delta;  ///< delta: D = rowsum(dO * O) - dLSE
};
template <class T>
__device__ RowNumbers<Accumulator<T>> row_numbers(const PairwiseBackwardProblem<T>& b, std::int64_t number,
                                                  Accumulator<T> d_o_times_o) {
    using A = Accumulator<T>;
    const A lse = b.lse[number], infinity = static_cast<A>(HUGE_VAL);
    if (lse == -infinity) return {infinity, A(0), A(0)};  // a row that sees no key: P = exp(s - inf) = 0
    return {lse, b.lse_remainder == nullptr ? A(0) : b.lse_remainder[number],
            b.d_lse == nullptr ? d_o_times_o : d_o_times_o - b.d_lse[number]};
}

/// One pair's two gradient factors. `p` multiplies dO in dV: it is P after dropout. `d_s` multiplies K in dQ
/// and Q in dK. pair_of() computes both from rows in shared memory.
template <class A>
struct Pair {
    A p, d_s;
};
template <class T, class A>
__device__ Pair<A> pair_of(const PairwiseProblem<T>& f, const SequenceOfPair& sequence,
                           const ScoreRule<A>& rule, std::int64_t batch, std::int64_t head, std::int64_t i,
                           std::int64_t j, const RowNumbers<A>& numbers, const A* q, const A* k, const A* d_o,
                           const A* v) {
    const IndexRange visible = i < f.mask.queries ? sequence.visible_keys(i) : IndexRange{0, 0};
    if (j < visible.begin || j >= visible.end) return {A(0), A(0)};
    const int row = static_cast<int>(i - sequence.first_query),
              key = static_cast<int>(j - sequence.first_key);
    if (!f.row_ranges.sees(batch, head, row, j)) return {A(0), A(0)};
    const Score<A> score = score_of<T>(rule, f.scale * dot(q, k, f.sizes.qk_dim), row, key);
    const A p = exp(score.value - numbers.lse - numbers.remainder);
    if (p == 0) return {A(0), A(0)};  // a hidden pair's dO, V and D may be NaN
    const A factor = kept(rule, row, key) * rule.dropout_scale;
    const A d_s = p * (factor * dot(d_o, v, f.sizes.v_dim) - numbers.delta);
    return {p * factor, d_s * score.derivative};
}

/// Computes dK and dV for `tile` keys in one K/V head.
template <class T, int tile>
__device__ void backward_keys_tile(const PairwiseBackwardProblem<T>& b, const TensorView<T>& d_k_out,
                                   const TensorView<T>& d_v_out, Accumulator<T>* shared,
                                   const TileOfHead& head_tile) {
    using A = Accumulator<T>;
    const PairwiseProblem<T>& f = b.forward;
    const int qk_dim = f.sizes.qk_dim, v_dim = f.sizes.v_dim;
    A* const k = shared;
    A* const v = k + tile * padded(qk_dim);
    A* const q = v + tile * padded(v_dim);
    A* const d_o = q + tile * padded(qk_dim);
    A* const p = d_o + tile * padded(v_dim);
    A* const d_s = p + tile * tile;
    const int x = threadIdx.x / tile,
              y = threadIdx.x % tile;  // x: key in the tile; y: row, or dK/dV column
    const auto [batch, key_head, first_key] = head_tile;
    const std::int64_t j = first_key + x;
    load<tile>(k, f.k.head(batch, key_head), first_key, f.mask.keys, qk_dim);
    load<tile>(v, f.v.head(batch, key_head), first_key, f.mask.keys, v_dim);
    const std::int64_t end_key = min(first_key + tile, f.mask.keys);
    const IndexRange rows = f.seeing_rows(batch, first_key, end_key);
    const SequenceOfPair sequence = SequenceOfPair::from_key(f.mask, f.packed, batch, min(j, end_key - 1));
    RowSums<A, tile> d_k_sums, d_v_sums;
    for (std::int64_t head = key_head * f.sizes.group; head < (key_head + 1) * f.sizes.group; ++head) {
        const ScoreRule<A> rule = rule_of<A>(sequence, f.scores, head);
        const StridedRows<const T> o_rows = b.o.head(batch, head);
        for (std::int64_t first_row = rows.begin; first_row < rows.end; first_row += tile) {
            const std::int64_t i = first_row + y;
            const bool exists = i < f.mask.queries;
            __syncthreads();
            load<tile>(q, f.q.head(batch, head), first_row, f.mask.queries, qk_dim);
            load<tile>(d_o, b.d_o.head(batch, head), first_row, f.mask.queries, v_dim);
            __syncthreads();
            A part = 0;  // partial rowsum(dO * O) over columns x, x + tile, ..
            for (int c = x; exists && c < v_dim; c += tile)
                part += d_o[y * padded(v_dim) + c] * gradtile::cuda::device::convert<A>(o_rows.row(i)[c]);
            p[x * tile + y] = part;
            __syncthreads();
            A d_o_times_o = 0;
            for (int n = 0; n < tile; ++n) d_o_times_o += p[n * tile + y];
            __syncthreads();
            Pair<A> pair{A(0), A(0)};
            if (exists)
                pair = pair_of(f, sequence, rule, batch, head, i, j,
                               row_numbers(b, b.number(batch, head, i), d_o_times_o), q + y * padded(qk_dim),
                               k + x * padded(qk_dim), d_o + y * padded(v_dim), v + x * padded(v_dim));
            p[x * tile + y] = pair.p;
            d_s[x * tile + y] = pair.d_s;
            __syncthreads();
            d_v_sums.add_product(p + x * tile, 1, d_o, v_dim, y);
            d_k_sums.add_product(d_s + x * tile, 1, q, qk_dim, y);
        }
    }
    if (j >= f.mask.keys) return;
    d_k_sums.store(d_k_out.head(batch, key_head).row(j), f.scale, qk_dim, y);
    d_v_sums.store(d_v_out.head(batch, key_head).row(j), A(1), v_dim, y);
}

template <class T, int tile>
__global__ void __launch_bounds__(tile* tile)
    backward_keys_kernel(const __grid_constant__ PairwiseBackwardProblem<T> b, TensorView<T> d_k,
                         TensorView<T> d_v) {
    extern __shared__ double shared[];
    const PairwiseProblem<T>& f = b.forward;
    gradtile::cuda::device::await_predecessor();
    if (!f.is_enabled()) return;
    for_each_tile<tile>(
        f.batch_size, f.sizes.heads / f.sizes.group, f.mask.keys, [&](const TileOfHead& head_tile) {
            backward_keys_tile<T, tile>(b, d_k, d_v, reinterpret_cast<Accumulator<T>*>(shared), head_tile);
        });
}

/// Computes dQ for `tile` rows in one head. It recomputes P and dS, so that each dQ element is one sum
/// instead of additions from every key block.
template <class T, int tile>
__device__ void backward_rows_tile(const PairwiseBackwardProblem<T>& b, const TensorView<T>& d_q_out,
                                   Accumulator<T>* shared, const TileOfHead& head_tile) {
    using A = Accumulator<T>;
    const PairwiseProblem<T>& f = b.forward;
    const int qk_dim = f.sizes.qk_dim, v_dim = f.sizes.v_dim;
    A* const q = shared;
    A* const d_o = q + tile * padded(qk_dim);
    A* const k = d_o + tile * padded(v_dim);
    A* const v = k + tile * padded(qk_dim);
    A* const d_s = v + tile * padded(v_dim);
    const int x = threadIdx.x / tile, y = threadIdx.x % tile;  // x: row in the tile; y: key, or dQ column
    const auto [batch, head, first_row] = head_tile;
    const std::int64_t i = first_row + x;
    const bool exists = i < f.mask.queries;
    load<tile>(q, f.q.head(batch, head), first_row, f.mask.queries, qk_dim);
    load<tile>(d_o, b.d_o.head(batch, head), first_row, f.mask.queries, v_dim);
    __syncthreads();
    A part = 0;
    for (int c = y; exists && c < v_dim; c += tile)
        part +=
            d_o[x * padded(v_dim) + c] * gradtile::cuda::device::convert<A>(b.o.head(batch, head).row(i)[c]);
    const A d_o_times_o = row_sum<tile>(part);
    RowNumbers<A> numbers{static_cast<A>(HUGE_VAL), A(0), A(0)};
    if (exists) numbers = row_numbers(b, b.number(batch, head, i), d_o_times_o);
    const std::int64_t end_row = min(first_row + tile, f.mask.queries);
    const IndexRange keys = f.visible_keys(batch, first_row, end_row);
    const SequenceOfPair sequence = f.sequence_of_query(batch, min(i, end_row - 1));
    const ScoreRule<A> rule = rule_of<A>(sequence, f.scores, head);
    RowSums<A, tile> d_q_sums;
    for (std::int64_t first_key = keys.begin; first_key < keys.end; first_key += tile) {
        const std::int64_t j = first_key + y;
        __syncthreads();
        load<tile>(k, f.k.head(batch, head / f.sizes.group), first_key, f.mask.keys, qk_dim);
        load<tile>(v, f.v.head(batch, head / f.sizes.group), first_key, f.mask.keys, v_dim);
        __syncthreads();
        d_s[x * tile + y] = pair_of(f, sequence, rule, batch, head, i, j, numbers, q + x * padded(qk_dim),
                                    k + y * padded(qk_dim), d_o + x * padded(v_dim), v + y * padded(v_dim))
                                .d_s;
        __syncthreads();
        d_q_sums.add_product(d_s + x * tile, 1, k, qk_dim, y);
    }
    if (exists) d_q_sums.store(d_q_out.head(batch, head).row(i), f.scale, qk_dim, y);
}

template <class T, int tile>
__global__ void __launch_bounds__(tile* tile)
    backward_rows_kernel(const __grid_constant__ PairwiseBackwardProblem<T> b, TensorView<T> d_q) {
    extern __shared__ double shared[];
    const PairwiseProblem<T>& f = b.forward;
    gradtile::cuda::device::await_predecessor();
    if (!f.is_enabled()) return;
    for_each_tile<tile>(f.batch_size, f.sizes.heads, f.mask.queries, [&](const TileOfHead& head_tile) {
        backward_rows_tile<T, tile>(b, d_q, reinterpret_cast<Accumulator<T>*>(shared), head_tile);
    });
}

/// Launches a kernel over the tiles in `batch_heads` heads, each with `length` rows or keys.
/// kernel_of(SharedMemory<limit>{}) returns the kernel whose tiles fit that limit.
template <class T, class KernelOf, class... Arguments>
void launch(const Context& ctx, KernelOf&& kernel_of, std::int64_t length, std::int64_t batch_heads,
            const PairwiseProblem<T>& problem, const Arguments&... arguments) {
    if (length == 0 || batch_heads == 0) return;
    gradtile::cuda::use_device(ctx.device());
    visit_shared_memory<PairwiseChoice>(gradtile::cuda::shared_memory_of_a_block(), [&](auto limit) {
        const auto [kernel, tile] = kernel_of(limit);
        const std::int64_t bytes =
            PairwiseChoice::shared_bytes(tile, problem.sizes.qk_dim, problem.sizes.v_dim) *
            static_cast<std::int64_t>(sizeof(Accumulator<T>)) / static_cast<std::int64_t>(sizeof(double));
        // A call that is usually not enabled should end at once.
        const std::int64_t max_blocks = problem.enabled == nullptr ? 1 << 20 : 256,
                           blocks = std::min(max_blocks, (length + tile - 1) / tile * batch_heads);
        gradtile::cuda::launch(ctx, kernel, dim3(static_cast<unsigned>(blocks)),
                               {.threads = static_cast<unsigned>(tile * tile),
                                .shared_bytes = static_cast<std::size_t>(bytes),
                                .starts_early = true},
                               arguments...);
    });
}

template <class Kernel>
struct Tiled {
    Kernel kernel;
    int tile;
};
template <class T>
constexpr auto tiled_forward = []<int limit>(SharedMemory<limit>) {
    constexpr int tile = PairwiseChoice::tiles(limit);
    return Tiled{&forward_kernel<T, tile>, tile};
};
template <class T>
constexpr auto tiled_backward_keys = []<int limit>(SharedMemory<limit>) {
    constexpr int tile = PairwiseChoice::tiles(limit);
    return Tiled{&backward_keys_kernel<T, tile>, tile};
};
template <class T>
constexpr auto tiled_backward_rows = []<int limit>(SharedMemory<limit>) {
    constexpr int tile = PairwiseChoice::tiles(limit);
    return Tiled{&backward_rows_kernel<T, tile>, tile};
};

template <class T>
PairwiseProblem<T> problem_of(const ResolvedOptions& options, const Tensor& q, const Tensor& k,
                              const Tensor& v, const int* enabled) {
    return {.enabled = enabled,
            .batch_size = q.size(0),
            .sizes = sizes_of(q, k, v),
            .mask = options.mask,
            .scale = static_cast<Accumulator<T>>(options.scale),
            .q = tensor_view<const T>(q),
            .k = tensor_view<const T>(k),
            .v = tensor_view<const T>(v),
            .scores = options.scores,
            .packed = PackedOffsets(options),
            .row_ranges = options.row_ranges};
}

/// An output that keeps its values unless the kernels are enabled.
class MaybeWritten {
  public:
    MaybeWritten(const Context& ctx, const Tensor& x) : x_(x), written_(ctx, x, x.dtype()) {}
    void load(const Context& ctx) const {
        if (written_.tensor().raw_data() != x_.raw_data()) copy(ctx, written_.tensor(), x_);
    }
    void store(const Context& ctx) const { written_.store(ctx); }
    const Tensor& tensor() const { return written_.tensor(); }

  private:
    Tensor x_;
    Writable written_;
};

template <class T>
void pairwise_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                      const int* enabled) {
    using A = Accumulator<T>;
    const Readable q(ctx, saved.q), k(ctx, saved.k), v(ctx, saved.v);
    const MaybeWritten o(ctx, saved.o);
    if (ctx.is_planning()) return;
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    if (enabled != nullptr) o.load(ctx);
    const PairwiseProblem<T> problem = problem_of<T>(options, q.tensor(), k.tensor(), v.tensor(), enabled);
    const PairwiseOutputs<T> outputs{tensor_view<T>(o.tensor()), saved.lse.data<A>(),
                                     data_or_null<A>(saved.lse_remainder), data_or_null<A>(saved.row_max),
                                     data_or_null<A>(saved.row_sum)};
    launch(ctx, tiled_forward<T>, options.mask.queries, saved.q.size(0) * saved.q.size(2), problem, problem,
           outputs);
    o.store(ctx);
}

template <class T>
void pairwise_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                       const OutputGradients& d_out, const Gradients& into, const int* enabled) {
    using A = Accumulator<T>;
    const Readable q(ctx, saved.q), k(ctx, saved.k), v(ctx, saved.v), o(ctx, saved.o), d_o(ctx, d_out.o);
    const MaybeWritten d_q(ctx, into.q), d_k(ctx, into.k), d_v(ctx, into.v);
    const Readable d_lse = contiguous(ctx, d_out.lse);
    if (ctx.is_planning()) return;
    for (const Readable* x : {&q, &k, &v, &o, &d_o, &d_lse}) x->load(ctx);
    if (enabled != nullptr)
        for (const MaybeWritten* x : {&d_q, &d_k, &d_v}) x->load(ctx);
    const PairwiseProblem<T> problem = problem_of<T>(options, q.tensor(), k.tensor(), v.tensor(), enabled);
    const PairwiseBackwardProblem<T> backward{.forward = problem,
                                              .o = tensor_view<const T>(o.tensor()),
                                              .d_o = tensor_view<const T>(d_o.tensor()),
                                              .lse = saved.lse.data<A>(),
                                              .lse_remainder = data_or_null<A>(saved.lse_remainder),
                                              .d_lse = data_or_null<A>(d_lse.tensor())};
    const std::int64_t batch = saved.q.size(0);
    launch(ctx, tiled_backward_keys<T>, options.mask.keys, batch * saved.k.size(2), problem, backward,
           tensor_view<T>(d_k.tensor()), tensor_view<T>(d_v.tensor()));
    launch(ctx, tiled_backward_rows<T>, options.mask.queries, batch * saved.q.size(2), problem, backward,
           tensor_view<T>(d_q.tensor()));
    for (const MaybeWritten* x : {&d_q, &d_k, &d_v}) x->store(ctx);
    launch_bias_gradients<T>(ctx, options,
                             {.q = q.tensor(),
                              .k = k.tensor(),
                              .v = v.tensor(),
                              .o = o.tensor(),
                              .d_o = d_o.tensor(),
                              .lse = backward.lse,
                              .lse_remainder = backward.lse_remainder,
                              .d_lse = backward.d_lse,
                              .enabled = enabled},
                             into);
}

}  // namespace

void pairwise_forward(const Context& ctx, const FlashPlan&, const ResolvedOptions& options,
                      const Saved& saved) {
    pairwise_forward<double>(ctx, options, saved, nullptr);
}

void pairwise_backward(const Context& ctx, const FlashPlan& plan, const ResolvedOptions& options,
                       const Saved& saved, const OutputGradients& d_out, const Gradients& into) {
    pairwise_backward<double>(ctx, options, saved, d_out, into, nullptr);
    if (!into.sink.defined()) return;
    const Readable o(ctx, saved.o), d_o(ctx, d_out.o), d_lse = contiguous(ctx, d_out.lse);
    const Scratch scratch(ctx, plan);
    const Tensor lse = scratch[ScratchUse::lse], delta = scratch[ScratchUse::delta];
    if (ctx.is_planning()) return;
    for (const Readable* x : {&o, &d_o, &d_lse}) x->load(ctx);
    launch_row_statistics<double>(ctx, delta, lse, saved.lse, 1.0, o.tensor(), d_o.tensor(),
                                  /*cleared=*/{}, d_lse.tensor(), /*delta_factor=*/1.0);
    launch_sink_gradient(ctx, options.scores, saved.lse, delta.data<double>(), saved.q.size(1), 1.0,
                         into.sink);
}

void repair_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    visit_gpu_dtype(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        pairwise_forward<T>(ctx, options, saved, non_finite_flag(options));
    });
}

void repair_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                     const OutputGradients& d_out, const Gradients& into) {
    visit_gpu_dtype(saved.q.dtype(), [&]<class T>(TypeTag<T>) {
        pairwise_backward<T>(ctx, options, saved, d_out, into, non_finite_flag(options));
    });
}

}  // namespace gradtile::attention::cuda
