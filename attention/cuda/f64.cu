// FlashAttention-2 in float64 on the GPU, for gradient checks. It uses plain square tiles and is not
// optimised. One thread computes each sum in a fixed order, so results are equal to the bit in every run.
#include <cmath>
#include <cstdint>

#include <gradtile/attention/cuda/bias_gradients.h>
#include <gradtile/attention/cuda/kernels.h>
#include <gradtile/attention/cuda/shared_memory_limits.h>
#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/attention/cuda/device/block_sequence.cuh>
#include <gradtile/attention/cuda/device/head_rows.cuh>
#include <gradtile/attention/cuda/device/row_statistics.cuh>
#include <gradtile/attention/cuda/device/score_rule.cuh>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::attention::cuda {
namespace {

using namespace device;

constexpr int max_head_dim = 256;

/// Chooses the side length of the square tiles. A thread block has one thread for each element of a tile of
/// S.
struct F64Choice {
    static constexpr int tiles(int shared_limit) {
        return shared_bytes(16, max_head_dim, max_head_dim) <= shared_limit ? 16 : 8;
    }
    /// Bytes of `tile` rows of q, k, v and d_o, and of two tiles of pairs (P and dS).
    static constexpr int shared_bytes(int tile, int qk_dim, int v_dim) {
        return static_cast<int>(sizeof(double)) * tile * (2 * padded(qk_dim) + 2 * padded(v_dim) + 2 * tile);
    }
    /// Row length of a tile in shared memory. It is odd, so that threads that read a column use different
    /// banks.
    __host__ __device__ static constexpr int padded(int d) { return d | 1; }
};
__device__ constexpr int padded(int d) {
    return F64Choice::padded(d);
}

/// staged [tile, padded(d)] = rows first .. first + tile - 1 of x; rows from `end` on become 0.
template <int tile>
__device__ void load(double* staged, StridedRows<const double> x, std::int64_t first, std::int64_t end,
                     int d) {
    for (int e = threadIdx.x; e < tile * d; e += tile * tile) {
        const int r = e / d, c = e % d;
        staged[r * padded(d) + c] = first + r < end ? x.row(first + r)[c] : 0.0;
    }
}

__device__ double dot(const double* a, const double* b, int n) {
    double sum = 0;
    for (int c = 0; c < n; ++c) sum += a[c] * b[c];
    return sum;
}

/// Reductions of `value` over the threads of one row of a tile.
template <int tile>
__device__ double row_max(double value) {
    for (int distance = tile / 2; distance > 0; distance /= 2)
        value = fmax(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}
template <int tile>
__device__ double row_sum(double value) {
    for (int distance = tile / 2; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

/// Sums for one row of a result. A thread keeps columns y, y + tile, ..
template <int tile>
struct RowSums {
    static constexpr int columns_per_thread = max_head_dim / tile;
    double value[columns_per_thread] = {};

    /// Adds weights [tile] (`step` elements apart) times staged [tile, padded(d)]. A weight of 0 belongs to a
    /// pair that may be of two packed sequences: a NaN of one must not reach the other.
    __device__ void add_product(const double* weights, int step, const double* staged, int d, int y) {
#pragma unroll
        for (int n = 0; n < columns_per_thread; ++n) {
            const int c = y + n * tile;
            if (c < d)
                for (int j = 0; j < tile; ++j)
                    if (const double weight = weights[j * step]; weight != 0)
                        value[n] = fma(weight, staged[j * padded(d) + c], value[n]);
        }
    }
    __device__ void multiply(double factor) {
#pragma unroll
        for (int n = 0; n < columns_per_thread; ++n) value[n] *= factor;
    }
    __device__ void store(double* row, double factor, int d, int y) const {
#pragma unroll
        for (int n = 0; n < columns_per_thread; ++n)
            if (y + n * tile < d) row[y + n * tile] = factor * value[n];
    }
};

struct F64Problem {
    Sizes sizes;
    Mask mask;
    double scale;
    TensorView<const double> q, k, v;
    ScoreOptions scores;
    PackedOffsets packed;

    __device__ SequenceOfPair sequence_of_query(std::int64_t batch, std::int64_t i) const {
        return SequenceOfPair::of_query(mask, packed, batch, i);
    }
    /// The keys that at least one of the rows [first, end) sees: both ends grow with the row.
    __device__ IndexRange visible_keys(std::int64_t batch, std::int64_t first, std::int64_t end) const {
        return {sequence_of_query(batch, first).visible_keys(first).begin,
                sequence_of_query(batch, end - 1).visible_keys(end - 1).end};
    }
    /// Contains the rows that see at least one of the keys [first, end).
    __device__ IndexRange seeing_rows(std::int64_t batch, std::int64_t first, std::int64_t end) const {
        if (!packed) return mask.seeing_rows({first, end});
        return {SequenceOfPair::of_key(mask, packed, batch, first).queries().begin,
                SequenceOfPair::of_key(mask, packed, batch, end - 1).queries().end};
    }
};

/// Each thread block takes `tile` query rows of one (batch, head). Grid: (row blocks, batch * heads).
template <int tile>
__global__ void __launch_bounds__(tile* tile)
    forward_kernel(F64Problem p, TensorView<double> o_out, double* lse_out, double* remainder_out) {
    extern __shared__ double shared[];
    double* const q = shared;
    double* const k = q + tile * padded(p.sizes.qk_dim);
    double* const v = k + tile * padded(p.sizes.qk_dim);
    double* const probabilities = v + tile * padded(p.sizes.v_dim);
    const int x = threadIdx.x / tile, y = threadIdx.x % tile;  // x: row of the tile; y: key, or column of O
    const std::int64_t batch = blockIdx.y / p.sizes.heads, head = blockIdx.y % p.sizes.heads;
    const std::int64_t first_row = std::int64_t{blockIdx.x} * tile, i = first_row + x;
    const StridedRows<const double> k_rows = p.k.head(batch, head / p.sizes.group);
    const StridedRows<const double> v_rows = p.v.head(batch, head / p.sizes.group);
    const double infinity = HUGE_VAL;
    const std::int64_t end_row = min(first_row + tile, p.mask.queries);
    const SequenceOfPair sequence = p.sequence_of_query(batch, min(i, end_row - 1));
    const ScoreRule<double> rule = sequence.rule_of<double>(p.scores, head);

    load<tile>(q, p.q.head(batch, head), first_row, p.mask.queries, p.sizes.qk_dim);
    const IndexRange visible = i < p.mask.queries ? sequence.visible_keys(i) : IndexRange{0, 0};
    const IndexRange keys = p.visible_keys(batch, first_row, end_row);
    const int row = static_cast<int>(i - sequence.first_query);
    double maximum = -infinity, sum = 0;
    RowSums<tile> o;
    for (std::int64_t first_key = keys.begin; first_key < keys.end; first_key += tile) {
        __syncthreads();  // all threads have read the last block's K, V and P
        load<tile>(k, k_rows, first_key, p.mask.keys, p.sizes.qk_dim);
        load<tile>(v, v_rows, first_key, p.mask.keys, p.sizes.v_dim);
        __syncthreads();
        const std::int64_t j = first_key + y;
        const int key = static_cast<int>(j - sequence.first_key);
        const bool is_visible = j >= visible.begin && j < visible.end;
        double s = -infinity;
        if (is_visible) {
            const double product =
                p.scale * dot(q + x * padded(p.sizes.qk_dim), k + y * padded(p.sizes.qk_dim), p.sizes.qk_dim);
            s = score_of<double>(rule, product, row, key).value;
        }
        const double new_maximum = fmax(maximum, row_max<tile>(s));
        const double reference = new_maximum == -infinity ? 0.0 : new_maximum;  // no key was visible so far
        const double probability = exp(s - reference);
        const double rescale = exp(maximum - reference);
        maximum = new_maximum;
        sum = sum * rescale + row_sum<tile>(probability);
        probabilities[x * tile + y] = is_visible ? probability * kept(rule, row, key) : 0.0;
        __syncthreads();
        o.multiply(rescale);
        o.add_product(probabilities + x * tile, 1, v, p.sizes.v_dim, y);
    }
    if (i >= p.mask.queries) return;
    if (rule.sink > -infinity) {
        const double with_sink = fmax(maximum, rule.sink), rescale = exp(maximum - with_sink);
        o.multiply(rescale);
        sum = sum * rescale + exp(rule.sink - with_sink);
        maximum = with_sink;
    }
    o.store(o_out.head(batch, head).row(i), sum == 0 ? 0.0 : rule.dropout_scale / sum, p.sizes.v_dim, y);
    if (y != 0) return;
    const double lse = sum == 0 ? -infinity : maximum + log(sum);
    lse_out[blockIdx.y * p.mask.queries + i] = lse;
    if (remainder_out != nullptr)
        remainder_out[blockIdx.y * p.mask.queries + i] = sum == 0 ? 0.0 : maximum - lse + log(sum);
}

/// Inputs of the backward kernels.
struct F64BackwardProblem {
    F64Problem forward;
    TensorView<const double> d_o;
    const double* lse;            ///< +inf for rows that see no key
    const double* lse_remainder;  ///< null: 0
    const double* delta;          ///< D = rowsum(dO * O) - dLSE
};

/// The two factors of one pair in the gradients. The first multiplies dO in dV: P without dropped elements.
/// The second multiplies K in dQ and Q in dK. pair_of() computes both from rows in shared memory;
/// `statistics` is the row's index in lse and delta.
struct Pair {
    double p, d_s;
};
__device__ Pair pair_of(const F64BackwardProblem& b, const SequenceOfPair& sequence,
                        const ScoreRule<double>& rule, std::int64_t i, std::int64_t j,
                        std::int64_t statistics, const double* q, const double* k, const double* d_o,
                        const double* v) {
    const F64Problem& f = b.forward;
    const IndexRange visible = i < f.mask.queries ? sequence.visible_keys(i) : IndexRange{0, 0};
    if (j < visible.begin || j >= visible.end) return {0.0, 0.0};
    const int row = static_cast<int>(i - sequence.first_query),
              key = static_cast<int>(j - sequence.first_key);
    const Score<double> score = score_of<double>(rule, f.scale * dot(q, k, f.sizes.qk_dim), row, key);
    const double remainder = b.lse_remainder == nullptr ? 0.0 : b.lse_remainder[statistics];
    const double p = exp(score.value - b.lse[statistics] - remainder);
    if (p == 0) return {0.0, 0.0};  // dO, V and D of a hidden pair may be NaN
    const double factor = kept(rule, row, key) * rule.dropout_scale;
    const double d_s = p * (factor * dot(d_o, v, f.sizes.v_dim) - b.delta[statistics]);
    return {p * factor, d_s * score.derivative};
}

/// Computes dK and dV. Each thread block takes `tile` keys of one (batch, K/V head). Grid: (key blocks, batch
/// * K/V heads).
template <int tile>
__global__ void __launch_bounds__(tile* tile)
    backward_keys_kernel(F64BackwardProblem b, TensorView<double> d_k_out, TensorView<double> d_v_out) {
    extern __shared__ double shared[];
    const F64Problem& f = b.forward;
    const int qk_dim = f.sizes.qk_dim, v_dim = f.sizes.v_dim, key_heads = f.sizes.heads / f.sizes.group;
    double* const k = shared;
    double* const v = k + tile * padded(qk_dim);
    double* const q = v + tile * padded(v_dim);
    double* const d_o = q + tile * padded(qk_dim);
    double* const p = d_o + tile * padded(v_dim);
    double* const d_s = p + tile * tile;
    const int x = threadIdx.x / tile,
              y = threadIdx.x % tile;  // x: key of the tile; y: row, or column of dK and dV
    const std::int64_t batch = blockIdx.y / key_heads, key_head = blockIdx.y % key_heads;
    const std::int64_t first_key = std::int64_t{blockIdx.x} * tile, j = first_key + x;
    load<tile>(k, f.k.head(batch, key_head), first_key, f.mask.keys, qk_dim);
    load<tile>(v, f.v.head(batch, key_head), first_key, f.mask.keys, v_dim);
    const std::int64_t end_key = min(first_key + tile, f.mask.keys);
    const IndexRange rows = f.seeing_rows(batch, first_key, end_key);
    const SequenceOfPair sequence = SequenceOfPair::of_key(f.mask, f.packed, batch, min(j, end_key - 1));
    RowSums<tile> d_k_sums, d_v_sums;
    for (std::int64_t head = key_head * f.sizes.group; head < (key_head + 1) * f.sizes.group; ++head) {
        const ScoreRule<double> rule = sequence.rule_of<double>(f.scores, head);
        for (std::int64_t first_row = rows.begin; first_row < rows.end; first_row += tile) {
            const std::int64_t i = first_row + y;
            __syncthreads();
            load<tile>(q, f.q.head(batch, head), first_row, f.mask.queries, qk_dim);
            load<tile>(d_o, b.d_o.head(batch, head), first_row, f.mask.queries, v_dim);
            __syncthreads();
            const Pair pair =
                pair_of(b, sequence, rule, i, j, (batch * f.sizes.heads + head) * f.mask.queries + i,
                        q + y * padded(qk_dim), k + x * padded(qk_dim), d_o + y * padded(v_dim),
                        v + x * padded(v_dim));
            p[x * tile + y] = pair.p;
            d_s[x * tile + y] = pair.d_s;
            __syncthreads();
            d_v_sums.add_product(p + x * tile, 1, d_o, v_dim, y);
            d_k_sums.add_product(d_s + x * tile, 1, q, qk_dim, y);
        }
    }
    if (j >= f.mask.keys) return;
    d_k_sums.store(d_k_out.head(batch, key_head).row(j), f.scale, qk_dim, y);
    d_v_sums.store(d_v_out.head(batch, key_head).row(j), 1.0, v_dim, y);
}

/// Computes dQ. It recomputes P and dS, so that each element of dQ is one sum instead of additions from every
/// block of keys. The grid is that of forward_kernel.
template <int tile>
__global__ void __launch_bounds__(tile* tile)
    backward_rows_kernel(F64BackwardProblem b, TensorView<double> d_q_out) {
    extern __shared__ double shared[];
    const F64Problem& f = b.forward;
    const int qk_dim = f.sizes.qk_dim, v_dim = f.sizes.v_dim;
    double* const q = shared;
    double* const d_o = q + tile * padded(qk_dim);
    double* const k = d_o + tile * padded(v_dim);
    double* const v = k + tile * padded(qk_dim);
    double* const d_s = v + tile * padded(v_dim);
    const int x = threadIdx.x / tile, y = threadIdx.x % tile;  // x: row of the tile; y: key, or column of dQ
    const std::int64_t batch = blockIdx.y / f.sizes.heads, head = blockIdx.y % f.sizes.heads;
    const std::int64_t first_row = std::int64_t{blockIdx.x} * tile, i = first_row + x;
    load<tile>(q, f.q.head(batch, head), first_row, f.mask.queries, qk_dim);
    load<tile>(d_o, b.d_o.head(batch, head), first_row, f.mask.queries, v_dim);
    const std::int64_t end_row = min(first_row + tile, f.mask.queries);
    const IndexRange keys = f.visible_keys(batch, first_row, end_row);
    const SequenceOfPair sequence = f.sequence_of_query(batch, min(i, end_row - 1));
    const ScoreRule<double> rule = sequence.rule_of<double>(f.scores, head);
    RowSums<tile> d_q_sums;
    for (std::int64_t first_key = keys.begin; first_key < keys.end; first_key += tile) {
        const std::int64_t j = first_key + y;
        __syncthreads();
        load<tile>(k, f.k.head(batch, head / f.sizes.group), first_key, f.mask.keys, qk_dim);
        load<tile>(v, f.v.head(batch, head / f.sizes.group), first_key, f.mask.keys, v_dim);
        __syncthreads();
        d_s[x * tile + y] =
            pair_of(b, sequence, rule, i, j, blockIdx.y * f.mask.queries + i, q + x * padded(qk_dim),
                    k + y * padded(qk_dim), d_o + x * padded(v_dim), v + y * padded(v_dim))
                .d_s;
        __syncthreads();
        d_q_sums.add_product(d_s + x * tile, 1, k, qk_dim, y);
    }
    if (i < f.mask.queries) d_q_sums.store(d_q_out.head(batch, head).row(i), f.scale, qk_dim, y);
}

/// Launches a kernel with the grid (tiles of the sequence, batch_heads). kernel_of(SharedMemory<limit>{})
/// returns the kernel with the tiles of that limit.
template <class KernelOf, class... Arguments>
void launch(const Context& ctx, KernelOf&& kernel_of, std::int64_t length, std::int64_t batch_heads,
            const Sizes& sizes, const Arguments&... arguments) {
    if (length == 0 || batch_heads == 0) return;
    check(batch_heads <= 65535, "attention: float64 on CUDA takes at most 65535 batch * heads, not ",
          batch_heads);
    gradtile::cuda::use_device(ctx.device());
    visit_shared_memory<F64Choice>(gradtile::cuda::shared_memory_of_a_block(), [&](auto limit) {
        const auto [kernel, tile] = kernel_of(limit);
        const int bytes = F64Choice::shared_bytes(tile, sizes.qk_dim, sizes.v_dim);
        gradtile::cuda::launch(
            ctx, kernel,
            dim3(static_cast<unsigned>((length + tile - 1) / tile), static_cast<unsigned>(batch_heads)),
            {.threads = static_cast<unsigned>(tile * tile), .shared_bytes = static_cast<std::size_t>(bytes)},
            arguments...);
    });
}

template <class Kernel>
struct Tiled {
    Kernel kernel;
    int tile;
};
constexpr auto tiled_forward = []<int limit>(SharedMemory<limit>) {
    constexpr int tile = F64Choice::tiles(limit);
    return Tiled{&forward_kernel<tile>, tile};
};
constexpr auto tiled_backward_keys = []<int limit>(SharedMemory<limit>) {
    constexpr int tile = F64Choice::tiles(limit);
    return Tiled{&backward_keys_kernel<tile>, tile};
};
constexpr auto tiled_backward_rows = []<int limit>(SharedMemory<limit>) {
    constexpr int tile = F64Choice::tiles(limit);
    return Tiled{&backward_rows_kernel<tile>, tile};
};

F64Problem problem_of(const ResolvedOptions& options, const Tensor& q, const Tensor& k, const Tensor& v) {
    return {.sizes = sizes_of(q, k, v),
            .mask = options.mask,
            .scale = options.scale,
            .q = tensor_view<const double>(q),
            .k = tensor_view<const double>(k),
            .v = tensor_view<const double>(v),
            .scores = options.scores,
            .packed = PackedOffsets(options)};
}

}  // namespace

void flash_f64_forward(const Context& ctx, const ResolvedOptions& options, const Saved& saved) {
    const Tensor &q_in = saved.q, &k_in = saved.k, &v_in = saved.v, &o_out = saved.o, &lse = saved.lse;
    const Readable q(ctx, q_in), k(ctx, k_in), v(ctx, v_in);
    const Writable o(ctx, o_out, DType::f64);
    if (ctx.is_planning()) return;
    for (const Readable* x : {&q, &k, &v}) x->load(ctx);
    const F64Problem problem = problem_of(options, q.tensor(), k.tensor(), v.tensor());
    launch(ctx, tiled_forward, options.mask.queries, q_in.size(0) * q_in.size(2), problem.sizes, problem,
           tensor_view<double>(o.tensor()), lse.data<double>(), data_or_null<double>(saved.lse_remainder));
    o.store(ctx);
}

void flash_f64_backward(const Context& ctx, const ResolvedOptions& options, const Saved& saved,
                        const OutputGradients& d_out, const Gradients& into) {
    const Readable q(ctx, saved.q), k(ctx, saved.k), v(ctx, saved.v), o(ctx, saved.o), d_o(ctx, d_out.o);
    const Writable d_q(ctx, into.q, DType::f64), d_k(ctx, into.k, DType::f64), d_v(ctx, into.v, DType::f64);
    const Tensor lse = empty_like(ctx, saved.lse), delta = empty_like(ctx, saved.lse);
    const Readable d_lse = contiguous(ctx, d_out.lse);
    if (ctx.is_planning()) return;
    for (const Readable* x : {&q, &k, &v, &o, &d_o, &d_lse}) x->load(ctx);
    const F64Problem problem = problem_of(options, q.tensor(), k.tensor(), v.tensor());
    launch_row_statistics<double>(ctx, delta, lse, saved.lse, 1.0, o.tensor(), d_o.tensor(),
                                  /*cleared=*/{}, d_lse.tensor(), /*delta_factor=*/1.0);
    const F64BackwardProblem backward{.forward = problem,
                                      .d_o = tensor_view<const double>(d_o.tensor()),
                                      .lse = lse.data<double>(),
                                      .lse_remainder = data_or_null<double>(saved.lse_remainder),
                                      .delta = delta.data<double>()};
    const std::int64_t batch = saved.q.size(0);
    launch(ctx, tiled_backward_keys, options.mask.keys, batch * saved.k.size(2), problem.sizes, backward,
           tensor_view<double>(d_k.tensor()), tensor_view<double>(d_v.tensor()));
    launch(ctx, tiled_backward_rows, options.mask.queries, batch * saved.q.size(2), problem.sizes, backward,
           tensor_view<double>(d_q.tensor()));
    for (const Writable* x : {&d_q, &d_k, &d_v}) x->store(ctx);
    launch_bias_gradients<double>(
        ctx, options,
        {q.tensor(), k.tensor(), v.tensor(), d_o.tensor(), saved.lse.data<double>(),
         data_or_null<double>(saved.lse_remainder), delta.data<double>(), /*delta_factor=*/1.0},
        into);
    if (into.sink.defined())
        launch_sink_gradient(ctx, options.scores, saved.lse, delta.data<double>(), saved.q.size(1), 1.0,
                             into.sink);
}

}  // namespace gradtile::attention::cuda
