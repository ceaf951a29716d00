// Softmax cross-entropy on the GPU.
#include <limits>

#include <gradtile/layers/cross_entropy_backend.h>
#include <gradtile/core/device/convert.cuh>
#include <gradtile/layers/device/activation_math.cuh>
#include <gradtile/layers/device/launch.cuh>
#include <gradtile/layers/device/reduce.cuh>

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

// ---- One row ----
// A team of threads walks the row twice, a chunk at a time: first for the largest logit and the sum of
// exponentials, both online (Milakov and Gimelshein 2018), then for the gradients. A row that fits shared
// memory is kept there in between; of a longer one the L2 cache keeps what it can.

/// Logits in flight of one thread.
template <class S>
inline constexpr int items = sizeof(S) == 4 ? 16 : 4;

/// Of some logits: the largest, and the sum of e^(logit - largest).
template <class S>
struct Softmax {
    S largest = -std::numeric_limits<S>::infinity();
    S sum = 0;

    /// What to subtract: while there are only -infinities, their difference would not be a number.
    __device__ S base() const { return largest == -std::numeric_limits<S>::infinity() ? S(0) : largest; }

    __device__ void add(const S (&logits)[items<S>]) {
        S highest = largest;
#pragma unroll
        for (int i = 0; i < items<S>; ++i) highest = highest < logits[i] ? logits[i] : highest;
        const S before = largest;
        largest = highest;
        const S from = base();
        sum *= device::exponential(before - from);
#pragma unroll
        for (int i = 0; i < items<S>; ++i) sum += device::exponential(logits[i] - from);
    }
};

template <class S>
struct Larger {
    __device__ S operator()(S a, S b) const { return a < b ? b : a; }
};

template <int team, class S>
__device__ Softmax<S> combined(const Softmax<S>& own) {
    Softmax<S> all;
    all.largest = device::reduce_team<team>(own.largest, Larger<S>{});
    const S scale = device::exponential(own.base() - all.base());
    all.sum = device::reduce_team<team>(own.largest == own.base() ? own.sum * scale : own.sum, device::Sum{});
    return all;
}

/// logits[i] of a chunk, i = begin + thread + k * team; -infinity past the end.
template <int team, class S>
__device__ __forceinline__ void load_chunk(S (&values)[items<S>], const S* logits, std::int64_t begin,
                                           std::int64_t width, int thread) {
#pragma unroll
    for (int k = 0; k < items<S>; ++k) {
        const std::int64_t i = begin + thread + k * team;
        values[k] = i < width ? logits[i] : -std::numeric_limits<S>::infinity();
    }
}

template <int team, class S>
__device__ __forceinline__ void keep_chunk(S* kept, const S (&values)[items<S>], std::int64_t begin,
                                           std::int64_t width, int thread) {
#pragma unroll
    for (int k = 0; k < items<S>; ++k) {
        const std::int64_t i = begin + thread + k * team;
        if (i < width) kept[i] = values[k];
    }
}

template <int team>
__device__ __forceinline__ void synchronize_team() {
    if constexpr (team == 32) {
        __syncwarp();
    } else {
        __syncthreads();
    }
}

/// Writes value(logit, index) for every logit. The output may start where the logits do and be narrower: a
/// chunk's results lie at or before its logits, and are written after all of them were read.
template <int team, class Out, class S, class Value>
__device__ void write_row(Out* to, const S* logits, std::int64_t width, int thread, Value&& value) {
    for (std::int64_t begin = 0; begin < width; begin += team * items<S>) {
        S values[items<S>];
        load_chunk<team>(values, logits, begin, width, thread);
        synchronize_team<team>();
#pragma unroll
        for (int k = 0; k < items<S>; ++k) {
            const std::int64_t i = begin + thread + k * team;
            if (i < width) to[i] = device::convert<Out>(value(values[k], i));
        }
    }
}

template <class Out, class S>
struct CrossEntropy {
    double* losses;
    Out* d_logits;  // null when only the losses are wanted
    std::int64_t d_stride;
    const S* logits;
    std::int64_t stride, rows, width;
    const std::int32_t* targets;
    const double* count;
    double scale;
    bool keep_row;  // the block has shared memory for it
};

constexpr int row_threads = 1024;
constexpr std::size_t most_kept_bytes = 224 << 10;  // of the 227 KiB a block may have; the rest is for sums

/// A warp takes a row of up to so many logits.
template <class S>
inline constexpr std::int64_t narrow = 4 * 32 * items<S>;

template <int team, class Out, class S>
__global__ void __launch_bounds__(row_threads) cross_entropy_kernel(const CrossEntropy<Out, S> c) {
    const std::int64_t row = blockIdx.x * std::int64_t{row_threads / team} + threadIdx.x / team;
    if (row >= c.rows) return;  // a team leaves as a whole
    const int thread = threadIdx.x % team;
    const S* logits = c.logits + row * c.stride;
    Out* d_logits = c.d_logits + row * c.d_stride;
    const std::int32_t target = c.targets[row];
    const bool valid = target >= 0 && target < c.width;
    if (!valid) {
        const bool ignored = target == ignored_target;
        if (thread == 0) c.losses[row] = ignored ? 0.0 : std::numeric_limits<double>::quiet_NaN();
        const S value = ignored ? S(0) : std::numeric_limits<S>::quiet_NaN();
        if (c.d_logits != nullptr)
            for (std::int64_t i = thread; i < c.width; i += team) d_logits[i] = device::convert<Out>(value);
        return;
    }
    extern __shared__ double shared_row[];
    S* kept = reinterpret_cast<S*>(shared_row);
    const S target_logit = logits[target];
    Softmax<S> own;
    for (std::int64_t begin = 0; begin < c.width; begin += team * items<S>) {
        S values[items<S>];
        load_chunk<team>(values, logits, begin, c.width, thread);
        if (c.keep_row) keep_chunk<team>(kept, values, begin, c.width, thread);
        own.add(values);
    }
    const Softmax<S> all = combined<team>(own);
    if (thread == 0)
        c.losses[row] = log(static_cast<double>(all.sum)) +
                        (static_cast<double>(all.largest) - static_cast<double>(target_logit));
    if (c.d_logits == nullptr) return;
    const S factor = *c.count > 0 ? static_cast<S>(c.scale / *c.count) : S(0), share = 1 / all.sum;
    write_row<team>(d_logits, c.keep_row ? kept : logits, c.width, thread, [&](S logit, std::int64_t i) {
        const S p = device::exponential(logit - all.largest) * share;
        return (i == target ? p - 1 : p) * factor;
    });
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
    visit_floating(logits.dtype(), [&]<class S>(TypeTag<S>) {
        visit_floating(d_logits.defined() ? d_logits.dtype() : logits.dtype(), [&]<class Out>(TypeTag<Out>) {
            if constexpr (sizeof(Out) <= sizeof(S) && std::is_same_v<Accumulator<Out>, S>) {
                CrossEntropy<Out, S> arguments{.losses = losses.data<double>(),
                                               .d_logits = nullptr,
                                               .d_stride = 0,
                                               .logits = logits.data<S>(),
                                               .stride = logits.stride(0),
                                               .rows = rows,
                                               .width = width,
                                               .targets = targets.data<std::int32_t>(),
                                               .count = count.data<double>(),
                                               .scale = scale,
                                               .keep_row = false};
                if (d_logits.defined()) {
                    arguments.d_logits = d_logits.data<Out>();
                    arguments.d_stride = d_logits.stride(0);
                }
                if (width <= narrow<S>) {
                    launch(ctx, cross_entropy_kernel<32, Out, S>, blocks_for(rows, row_threads / 32),
                           Block{row_threads}, arguments);
                } else {
                    const std::size_t row_bytes = static_cast<std::size_t>(width) * sizeof(S);
                    arguments.keep_row = d_logits.defined() && row_bytes <= most_kept_bytes;
                    launch(ctx, cross_entropy_kernel<row_threads, Out, S>, blocks_for(rows, 1),
                           Block{row_threads, arguments.keep_row ? row_bytes : 0}, arguments);
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
