// Softmax cross-entropy on the GPU.
#include <limits>

#include <gradtile/layers/cross_entropy_backend.h>
#include <gradtile/core/device/convert.cuh>
#include <gradtile/layers/device/activation_math.cuh>
#include <gradtile/layers/device/launch.cuh>
#include <gradtile/layers/device/reduce.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace {

constexpr int count_threads = 1024;

/// count = targets that are not ignored.
__global__ void __launch_bounds__(count_threads)
    count_kernel(double* count, const std::int32_t* targets, std::int64_t n) {
    int counted = 0;
#pragma unroll 8
    for (std::int64_t i = threadIdx.x; i < n; i += count_threads) counted += targets[i] != ignored_target;
    counted = device::reduce_team<count_threads>(counted, device::Sum{});
    if (threadIdx.x == 0) *count = counted;
}

__global__ void __launch_bounds__(count_threads)
    sum_kernel(double* total, bool mean, const double* losses, const double* count, std::int64_t n) {
    double sum = 0;
#pragma unroll 8
    for (std::int64_t i = threadIdx.x; i < n; i += count_threads) sum += losses[i];
    sum = device::reduce_team<count_threads>(sum, device::Sum{});
    if (threadIdx.x != 0) return;
    if (mean) {
        *total = *count > 0 ? sum / *count : 0.0;
    } else {
        total[0] = sum;
        total[1] = *count;
    }
}

template <class Out, class S>
struct CrossEntropy {
    double* losses;
    Out* d_logits;  // null when only the losses are wanted
    std::int64_t d_stride;
    const S* logits;
    std::int64_t stride, rows;
    int width;
    const std::int32_t* targets;
    const double* count;
    double scale;
    bool keep_row;  // the block has shared memory for it
};

/// Logits in flight of one thread.
template <class S>
inline constexpr int items = sizeof(S) == 4 ? 16 : 4;

// ---- Softmax of a row, by a team of threads ----
// Its largest logit and the sum of exponentials are found together (online: Milakov and Gimelshein 2018).

/// Of some logits: the largest, and the sum of e^(logit - largest).
template <class S>
struct Softmax {
    S largest = -std::numeric_limits<S>::infinity();
    S sum = 0;

    /// What to subtract: while there are only -infinities, their difference would not be a number.
    __device__ S base() const { return largest == -std::numeric_limits<S>::infinity() ? S(0) : largest; }

    template <int n>
    __device__ __forceinline__ void add(const S (&logits)[n]) {
        const S before = largest;
#pragma unroll
        for (int i = 0; i < n; ++i) largest = largest < logits[i] ? logits[i] : largest;
        const S from = base();
        sum *= device::exponential(before - from);
#pragma unroll
        for (int i = 0; i < n; ++i) sum += device::exponential(logits[i] - from);
    }
};

struct Larger {
    template <class S>
    __device__ S operator()(S a, S b) const {
        return a < b ? b : a;
    }
};

template <int team, class S>
__device__ Softmax<S> combined(const Softmax<S>& own) {
    Softmax<S> all;
    all.largest = device::reduce_team<team>(own.largest, Larger{});
    const S scale = device::exponential(own.base() - all.base());
    all.sum = device::reduce_team<team>(own.largest == own.base() ? own.sum * scale : own.sum, device::Sum{});
    return all;
}

/// The gradient of a row's loss with respect to its logits.
template <class S>
struct RowGradient {
    S largest, share, factor;
    int target;

    __device__ __forceinline__ S operator()(S logit, int i) const {
        const S p = device::exponential(logit - largest) * share;
        return (i == target ? p - 1 : p) * factor;
    }
};

/// Writes the loss; returns how to make the gradient.
template <class Out, class S>
__device__ RowGradient<S> finish_loss(const CrossEntropy<Out, S>& c, std::int64_t row, int target,
                                      const Softmax<S>& all, S target_logit, bool writes) {
    if (writes)
        c.losses[row] = log(static_cast<double>(all.sum)) +
                        (static_cast<double>(all.largest) - static_cast<double>(target_logit));
    return {all.largest, 1 / all.sum, *c.count > 0 ? static_cast<S>(c.scale / *c.count) : S(0), target};
}

/// A row that is ignored has loss and gradient 0; one whose target is none, NaN.
template <int team, class Out, class S>
__device__ void write_row_without_target(const CrossEntropy<Out, S>& c, std::int64_t row, int thread,
                                         bool ignored) {
    if (thread == 0) c.losses[row] = ignored ? 0.0 : std::numeric_limits<double>::quiet_NaN();
    if (c.d_logits == nullptr) return;
    const S value = ignored ? S(0) : std::numeric_limits<S>::quiet_NaN();
    for (int i = thread; i < c.width; i += team)
        c.d_logits[row * c.d_stride + i] = device::convert<Out>(value);
}

// ---- Narrow rows: a warp each ----

constexpr int narrow_threads = 256;

/// The widest row a warp holds: read once, so that the gradient may overwrite it.
template <class S>
inline constexpr int narrow = 32 * items<S>;

template <class Out, class S>
__global__ void __launch_bounds__(narrow_threads) narrow_kernel(const CrossEntropy<Out, S> c) {
    const std::int64_t row = blockIdx.x * std::int64_t{narrow_threads / 32} + threadIdx.x / 32;
    if (row >= c.rows) return;  // a warp leaves as a whole
    const int lane = threadIdx.x % 32, target = c.targets[row];
    if (target < 0 || target >= c.width) {
        write_row_without_target<32>(c, row, lane, target == ignored_target);
        return;
    }
    const S* logits = c.logits + row * c.stride;
    S values[items<S>];
#pragma unroll
    for (int k = 0; k < items<S>; ++k)
        values[k] = lane + k * 32 < c.width ? logits[lane + k * 32] : -std::numeric_limits<S>::infinity();
    const S target_logit = logits[target];
    Softmax<S> own;
    own.add(values);
    const RowGradient<S> gradient = finish_loss(c, row, target, combined<32>(own), target_logit, lane == 0);
    if (c.d_logits == nullptr) return;
    __syncwarp();  // all of the row has been read
    Out* to = c.d_logits + row * c.d_stride;
#pragma unroll
    for (int k = 0; k < items<S>; ++k) {
        const int i = lane + k * 32;
        if (i < c.width) to[i] = device::convert<Out>(gradient(values[k], i));
    }
}

// ---- Wide rows: a block each ----
// A block walks a row twice: for the softmax and for the gradient. A row that fits shared memory is kept
// there in between; a longer one is read again. Blocks go from row to row, so that the next one's first
// logits are on their way while this one's gradient is written.

constexpr int wide_threads = 512;                   // few, so that each has registers for many logits
constexpr std::size_t most_kept_bytes = 224 << 10;  // of the 227 KiB a block may have; the rest is for sums

/// A row as the 16-byte vectors that memory has, and up to n - 1 elements on either side of them.
template <class S>
struct WideRow {
    static constexpr int n = device::vector_length<S>, held = 2 * items<S> / n, step = held * wide_threads;
    const S* data;
    int width, head, vectors;

    __device__ WideRow(const S* row, int elements) : data(row), width(elements) {
        const int past = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) / sizeof(S) % n);
        head = (n - past) % n;
        vectors = (width - head) / n;
    }
    __device__ int edges() const { return width - vectors * n; }
    /// The element before or after the vectors that thread i < edges() takes.
    __device__ int edge(int i) const { return i < head ? i : i + vectors * n; }

    /// The thread's vectors of a chunk, -infinity past the last.
    __device__ __forceinline__ void load(S (&values)[held][n], int begin) const {
#pragma unroll
        for (int k = 0; k < held; ++k) {
            const int vector = begin + static_cast<int>(threadIdx.x) + k * wide_threads;
            if (vector < vectors) {
                device::load<n>(values[k], data + head + vector * n);
            } else {
#pragma unroll
                for (int i = 0; i < n; ++i) values[k][i] = -std::numeric_limits<S>::infinity();
            }
        }
    }
    /// The same of shared memory, where element i stands at i - head + n: vectors stay vectors.
    __device__ __forceinline__ void keep(S* kept, const S (&values)[held][n], int begin) const {
#pragma unroll
        for (int k = 0; k < held; ++k) {
            const int vector = begin + static_cast<int>(threadIdx.x) + k * wide_threads;
            if (vector < vectors) device::store<n>(kept + (vector + 1) * n, values[k]);
        }
    }
};

/// What the thread sees of the row; values are those of the first chunk.
template <class S>
__device__ __forceinline__ Softmax<S> softmax_of(const WideRow<S>& row,
                                                 S (&values)[WideRow<S>::held][WideRow<S>::n], S* kept) {
    Softmax<S> own;
    if (static_cast<int>(threadIdx.x) < row.edges()) {
        const int i = row.edge(static_cast<int>(threadIdx.x));
        const S edge[1] = {row.data[i]};
        if (kept != nullptr) kept[i - row.head + row.n] = edge[0];
        own.add(edge);
    }
    for (int begin = 0;;) {
        if (kept != nullptr) row.keep(kept, values, begin);
        own.add(reinterpret_cast<const S(&)[row.held * row.n]>(values));
        begin += row.step;
        if (begin >= row.vectors) return own;
        row.load(values, begin);
    }
}

/// to[i] = gradient(from[i], i), `together` neighbours of a thread at a time. Where `to` lies over `from` and
/// is narrower, a chunk's results lie at or before its logits, and are written after all of them were read.
template <int together, class Out, class S>
__device__ __forceinline__ void write_gradient(Out* to, const S* from, int width, bool overlaid,
                                               const RowGradient<S>& gradient) {
    constexpr int groups = 2 * items<S> / together, step = wide_threads * together;
    for (int begin = static_cast<int>(threadIdx.x) * together;; begin += groups * step) {
        const int first = begin - static_cast<int>(threadIdx.x) * together;
        if (first >= width) return;
        S values[groups][together];
#pragma unroll
        for (int k = 0; k < groups; ++k)
#pragma unroll
            for (int j = 0; j < together; ++j)
                values[k][j] = begin + k * step + j < width ? from[begin + k * step + j] : S(0);
        if (overlaid) __syncthreads();
#pragma unroll
        for (int k = 0; k < groups; ++k) {
            const int i = begin + k * step;
            Out results[together];
#pragma unroll
            for (int j = 0; j < together; ++j)
                results[j] = device::convert<Out>(gradient(values[k][j], i + j));
            if constexpr (together == 2) {
                if (i + 1 < width) {
                    *reinterpret_cast<unsigned*>(to + i) = results[0].bits | unsigned{results[1].bits} << 16;
                    continue;
                }
            }
            if (i < width) to[i] = results[0];
        }
    }
}

template <int together, class Out, class S>
__global__ void __launch_bounds__(wide_threads) wide_kernel(const CrossEntropy<Out, S> c) {
    extern __shared__ double shared_row[];
    S* kept = c.keep_row ? reinterpret_cast<S*>(shared_row) : nullptr;
    const auto row_at = [&](std::int64_t row) { return WideRow<S>(c.logits + row * c.stride, c.width); };
    S values[WideRow<S>::held][WideRow<S>::n];
    row_at(blockIdx.x).load(values, 0);
    int target = c.targets[blockIdx.x];
    for (std::int64_t row = blockIdx.x; row < c.rows; row += gridDim.x) {
        const WideRow<S> logits = row_at(row);
        const bool valid = target >= 0 && target < c.width;
        const S target_logit = valid ? logits.data[target] : S(0);
        RowGradient<S> gradient{};
        if (valid) {
            const Softmax<S> all = combined<wide_threads>(softmax_of(logits, values, kept));
            gradient = finish_loss(c, row, target, all, target_logit, threadIdx.x == 0);
        } else {
            write_row_without_target<wide_threads>(c, row, threadIdx.x, target == ignored_target);
        }
        if (row + gridDim.x < c.rows) {
            row_at(row + gridDim.x).load(values, 0);
            target = c.targets[row + gridDim.x];
        }
        if (!valid || c.d_logits == nullptr) continue;
        Out* to = c.d_logits + row * c.d_stride;
        if (kept != nullptr) {
            write_gradient<together>(to, kept + (logits.n - logits.head), c.width, false, gradient);
            __syncthreads();  // the next row is kept in the same place
        } else {
            write_gradient<together>(to, logits.data, c.width, true, gradient);
        }
    }
}

template <class Out, class S>
void launch_wide(const Context& ctx, CrossEntropy<Out, S> c) {
    const std::size_t row_bytes =
        (static_cast<std::size_t>(c.width) + 2 * device::vector_length<S>)*sizeof(S);
    c.keep_row = c.d_logits != nullptr && row_bytes <= most_kept_bytes;
    int processors = 0;
    cuda_check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, ctx.device().index()));
    const dim3 blocks = blocks_for(std::min<std::int64_t>(c.rows, processors), 1);
    const Block block{wide_threads, c.keep_row ? row_bytes : 0};
    if constexpr (sizeof(Out) == 2) {
        if (reinterpret_cast<std::uintptr_t>(c.d_logits) % 4 == 0 && c.d_stride % 2 == 0) {
            launch(ctx, wide_kernel<2, Out, S>, blocks, block, c);
            return;
        }
    }
    launch(ctx, wide_kernel<1, Out, S>, blocks, block, c);
}

}  // namespace

void count_targets(const Context& ctx, const Tensor& count, const Tensor& targets, std::int64_t) {
    launch(ctx, count_kernel, dim3(1), Block{count_threads}, count.data<double>(),
           targets.data<std::int32_t>(), targets.elements());
}

void cross_entropy_rows(const Context& ctx, const Tensor& losses, const Tensor& d_logits,
                        const Tensor& logits, const Tensor& targets, const Tensor& count, double scale) {
    const std::int64_t rows = logits.size(0), width = logits.size(1);
    if (rows == 0) return;
    check(width < std::numeric_limits<int>::max() / 2, "cross_entropy: a vocabulary of ", width);
    visit_floating(logits.dtype(), [&]<class S>(TypeTag<S>) {
        visit_floating(d_logits.defined() ? d_logits.dtype() : logits.dtype(), [&]<class Out>(TypeTag<Out>) {
            if constexpr (sizeof(Out) <= sizeof(S) && std::is_same_v<Accumulator<Out>, S>) {
                CrossEntropy<Out, S> arguments{.losses = losses.data<double>(),
                                               .d_logits = nullptr,
                                               .d_stride = 0,
                                               .logits = logits.data<S>(),
                                               .stride = logits.stride(0),
                                               .rows = rows,
                                               .width = static_cast<int>(width),
                                               .targets = targets.data<std::int32_t>(),
                                               .count = count.data<double>(),
                                               .scale = scale,
                                               .keep_row = false};
                if (d_logits.defined()) {
                    arguments.d_logits = d_logits.data<Out>();
                    arguments.d_stride = d_logits.stride(0);
                }
                if (width <= narrow<S>) {
                    launch(ctx, narrow_kernel<Out, S>, blocks_for(rows, narrow_threads / 32),
                           Block{narrow_threads}, arguments);
                } else {
                    launch_wide(ctx, arguments);
                }
            } else {
                throw Error(concat("cross_entropy: gradients in ", d_logits.dtype(), " of logits in ",
                                   logits.dtype()));
            }
        });
    });
}

void sum_losses(const Context& ctx, const Tensor& total, const Tensor& losses, const Tensor& count) {
    launch(ctx, sum_kernel, dim3(1), Block{count_threads}, total.data<double>(), total.elements() == 1,
           losses.data<double>(), count.data<double>(), losses.elements());
}

}  // namespace gradtile::cuda
