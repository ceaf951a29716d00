// Softmax cross-entropy on the GPU.
#include <limits>

#include <gradtile/layers/internal/cross_entropy_backend.h>
#include <gradtile/core/cuda/device/async_copy.cuh>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>
#include <gradtile/layers/device/cross_entropy_rows.cuh>
#include <gradtile/layers/device/map_rows.cuh>
#include <gradtile/layers/device/vectors.cuh>

namespace gradtile::cuda {
namespace {

constexpr int count_threads = 1024;

/// Counts the targets that are not ignored.
__global__ void __launch_bounds__(count_threads)
    count_kernel(double* count, const std::int32_t* targets, std::int64_t n) {
    device::await_predecessor();
    int counted = 0;
#pragma unroll 8
    for (std::int64_t i = threadIdx.x; i < n; i += count_threads) counted += targets[i] != ignored_target;
    counted = device::reduce_team<count_threads>(counted, device::Sum{});
    if (threadIdx.x == 0) *count = counted;
}

__global__ void __launch_bounds__(count_threads)
    sum_kernel(double* total, bool mean, const double* losses, const double* count, std::int64_t n) {
    device::await_predecessor();
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

/// Logits that a thread loads at the same time.
template <class S>
inline constexpr int items = sizeof(S) == 4 ? 16 : 4;

/// Writes the loss and returns the function that computes the gradient.
template <class L, class Cap, class S = Accumulator<L>>
__device__ RowGradient<S, Cap> finish_loss(const CrossEntropy<L, Cap>& c, std::int64_t row,
                                           const Softmax<S>& all, S target_logit, bool writes) {
    if (writes) c.losses[row] = loss_of_row(all, c.cap(target_logit).value);
    const S factor = gradient_factor(c);
    return {all.largest, factor / all.sum, factor, c.cap};
}

/// Writes the loss and gradient for a row without a valid target: 0 if the target is ignored, else NaN.
template <int team, class L, class Cap>
__device__ void write_row_without_target(const CrossEntropy<L, Cap>& c, std::int64_t row, int thread,
                                         bool ignored) {
    if (thread == 0) c.losses[row] = ignored ? 0.0 : std::numeric_limits<double>::quiet_NaN();
    if (!c.gradients) return;
    using S = Accumulator<L>;
    const L value = device::convert<L>(ignored ? S(0) : std::numeric_limits<S>::quiet_NaN());
    for (int i = thread; i < c.width; i += team) c.logits[row * c.stride + i] = value;
}

// ---- Narrow rows: one warp per row ----

constexpr int narrow_threads = 256;

/// Maximum row width for one warp.
template <class L>
inline constexpr int narrow = 32 * items<Accumulator<L>>;

template <class L, class Cap>
__global__ void __launch_bounds__(narrow_threads) narrow_kernel(const CrossEntropy<L, Cap> c) {
    using S = Accumulator<L>;
    device::await_predecessor();
    const std::int64_t row = blockIdx.x * std::int64_t{narrow_threads / 32} + threadIdx.x / 32;
    if (row >= c.rows) return;  // all lanes in a warp have the same row
    const int lane = threadIdx.x % 32, target = c.targets[row];
    if (!is_valid_target(c, target)) {
        write_row_without_target<32>(c, row, lane, target == ignored_target);
        return;
    }
    L* logits = c.logits + row * c.stride;
    S values[items<S>];
#pragma unroll
    for (int k = 0; k < items<S>; ++k)
        values[k] = lane + k * 32 < c.width ? device::convert<S>(logits[lane + k * 32])
                                            : -std::numeric_limits<S>::infinity();
    const S target_logit = device::convert<S>(logits[target]);
    S capped[items<S>];
#pragma unroll
    for (int k = 0; k < items<S>; ++k)
        capped[k] = lane + k * 32 < c.width ? c.cap(values[k]).value : values[k];
    Softmax<S> own;
    own.add(capped);
    const RowGradient<S, Cap> gradient = finish_loss(c, row, combined<32>(own), target_logit, lane == 0);
    if (!c.gradients) return;
    __syncwarp();  // the target's logit must be read before it is overwritten
#pragma unroll
    for (int k = 0; k < items<S>; ++k) {
        const int i = lane + k * 32;
        if (i < c.width)
            logits[i] = device::convert<L>(gradient(values[k]) -
                                           (i == target ? gradient.target_term(values[k]) : S(0)));
    }
}

// ---- Wide rows that cross_entropy_in_clusters() does not take: one block per row ----
// A block uses each row twice: for the softmax and for the gradient. A row that fits in shared memory is kept
// there between the two uses; every thread accesses only its own vectors. A longer row is read twice. Each
// block processes several rows. If rows are kept, a thread that writes a gradient vector also starts to copy
// a vector from the next row to the freed place in shared memory, so that global memory is read and written
// at the same time. Otherwise the next row's first logits are loaded while the gradient is written.

constexpr int wide_threads = 512;  // the number is small, so that each thread has registers for many logits
constexpr std::size_t bytes_of_sums = 3 << 10;  // shared memory for reductions; the rest can hold a row

/// A row as aligned 16-byte vectors, and up to n - 1 elements before and after them.
template <class L>
struct WideRow {
    using S = Accumulator<L>;
    static constexpr int n = device::vector_length<L>;
    static constexpr int held = 2 * items<S> / n;  // vectors that a thread loads at the same time
    static constexpr int step = held * wide_threads;
    L* data;
    int width, head, vectors;

    __device__ WideRow(L* row, int elements) : data(row), width(elements) {
        const int misalignment = static_cast<int>(reinterpret_cast<std::uintptr_t>(row) / sizeof(L) % n);
        head = (n - misalignment) % n;
        vectors = (width - head) / n;
    }
    /// How many elements are before and after the vectors. Thread i < edges() processes the element at
    /// edge().
    __device__ int edges() const { return width - vectors * n; }
    __device__ int edge() const {
        const int i = static_cast<int>(threadIdx.x);
        return i < head ? i : i + vectors * n;
    }
    __device__ bool has_edge() const { return static_cast<int>(threadIdx.x) < edges(); }
    __device__ uint4* vector(int i) const { return reinterpret_cast<uint4*>(data + head) + i; }

    /// Loads this thread's next `held` vectors, starting at the row's vector `begin`.
    __device__ __forceinline__ void load(uint4 (&packed)[held], int begin) const {
#pragma unroll
        for (int k = 0; k < held; ++k) {
            const int i = begin + static_cast<int>(threadIdx.x) + k * wide_threads;
            if (i < vectors) packed[k] = *vector(i);
        }
    }
};

/// Adds this thread's next `held` vectors, starting at the row's vector `begin`. vector_of(i, k) returns the
/// row's vector i, which is the thread's k-th vector.
template <class L, class Cap, class S, class VectorOf>
__device__ __forceinline__ void add_vectors(Softmax<S>& own, const WideRow<L>& row, const Cap& cap, int begin,
                                            VectorOf&& vector_of) {
    S values[row.held][row.n];
#pragma unroll
    for (int k = 0; k < row.held; ++k) {
        const int i = begin + static_cast<int>(threadIdx.x) + k * wide_threads;
        if (i < row.vectors) {
            device::unpack<L>(values[k], vector_of(i, k));
#pragma unroll
            for (int j = 0; j < row.n; ++j) values[k][j] = cap(values[k][j]).value;
        } else {
#pragma unroll
            for (int j = 0; j < row.n; ++j) values[k][j] = -std::numeric_limits<S>::infinity();
        }
    }
    own.add(reinterpret_cast<const S(&)[row.held * row.n]>(values));
}

/// Returns the softmax over this thread's elements in the row. The elements are in `kept`. If `kept` is null,
/// `packed` holds the first elements, and the function loads the others.
template <class L, class Cap, class S = Accumulator<L>>
__device__ __forceinline__ Softmax<S> softmax_of(const WideRow<L>& row, const Cap& cap,
                                                 uint4 (&packed)[WideRow<L>::held], const uint4* kept) {
    Softmax<S> own;
    if (row.has_edge()) {
        const S edge[1] = {cap(device::convert<S>(row.data[row.edge()])).value};
        own.add(edge);
    }
    const int thread = static_cast<int>(threadIdx.x);
    if (kept != nullptr) {
        for (int begin = 0; begin + thread < row.vectors; begin += row.step)
            add_vectors(own, row, cap, begin, [&](int i, int) { return kept[i]; });
        return own;
    }
    for (int begin = 0; begin + thread < row.vectors; begin += row.step) {
        add_vectors(own, row, cap, begin, [&](int, int k) { return packed[k]; });
        row.load(packed, begin + row.step);
    }
    return own;
}

/// Computes gradient vector i from the logits and writes it.
template <class L, class Cap, class S = Accumulator<L>>
__device__ __forceinline__ void write_vector(const WideRow<L>& row, int i, const uint4& packed, int target,
                                             const RowGradient<S, Cap>& gradient) {
    S logits[row.n], values[row.n];
    device::unpack<L>(logits, packed);
#pragma unroll
    for (int j = 0; j < row.n; ++j) values[j] = gradient(logits[j]);
    if (const int place = target - row.head - i * row.n; place >= 0 && place < row.n) {
#pragma unroll
        for (int j = 0; j < row.n; ++j)
            if (j == place) values[j] -= gradient.target_term(logits[j]);
    }
    *row.vector(i) = device::pack<L>(values);
}

/// Writes the gradient for the elements before and after the vectors.
template <class L, class Cap, class S = Accumulator<L>>
__device__ __forceinline__ void write_edges(const WideRow<L>& row, int target,
                                            const RowGradient<S, Cap>& gradient) {
    if (!row.has_edge()) return;
    L& edge = row.data[row.edge()];
    const S logit = device::convert<S>(edge);
    edge = device::convert<L>(gradient(logit) - (row.edge() == target ? gradient.target_term(logit) : S(0)));
}

/// Starts copying a row's vector i to shared memory.
template <class L>
__device__ __forceinline__ void keep_vector(const WideRow<L>& row, uint4* kept, int i) {
    using namespace device;
    if (i < row.vectors) copy_16_bytes_async(shared_address(kept + i), row.vector(i), true);
}

/// Blocks per multiprocessor. Shared memory holds two 16-bit logit rows, so one is read while the other is
/// written.
template <class L>
inline constexpr int wide_blocks = sizeof(L) == 2 ? 2 : 1;

template <class L, class Cap>
__global__ void __launch_bounds__(wide_threads, wide_blocks<L>)
    wide_kernel(const CrossEntropy<L, Cap> c, bool keep_row) {
    using S = Accumulator<L>;
    extern __shared__ uint4 shared_row[];
    uint4* const kept = keep_row ? shared_row : nullptr;
    const int thread = static_cast<int>(threadIdx.x);
    // After the last row, returns a row without elements.
    const auto row_at = [&](std::int64_t row) {
        return row < c.rows ? WideRow<L>(c.logits + row * c.stride, c.width) : WideRow<L>(c.logits, 0);
    };
    uint4 packed[WideRow<L>::held];
    const WideRow<L> first = row_at(blockIdx.x);
    if (kept != nullptr) {
        for (int i = thread; i < first.vectors; i += wide_threads) keep_vector(first, kept, i);
        device::commit_copies();
    } else {
        first.load(packed, 0);
    }
    int target = c.targets[blockIdx.x];
    for (std::int64_t row = blockIdx.x; row < c.rows; row += gridDim.x) {
        const WideRow<L> logits = row_at(row), next = row_at(row + gridDim.x);
        const int row_target = target;
        const bool valid = is_valid_target(c, target);
        const S target_logit = valid ? device::convert<S>(logits.data[target]) : S(0);
        if (row + gridDim.x < c.rows) target = c.targets[row + gridDim.x];
        RowGradient<S, Cap> gradient{0, 0, 0, c.cap};
        device::wait_for_copies<0>();
        if (valid) {
            const Softmax<S> all = combined<wide_threads>(softmax_of(logits, c.cap, packed, kept));
            gradient = finish_loss(c, row, all, target_logit, thread == 0);
        } else {
            write_row_without_target<wide_threads>(c, row, thread, row_target == ignored_target);
        }
        const bool writes = valid && c.gradients;
        if (kept == nullptr) next.load(packed, 0);
        if (writes) write_edges(logits, row_target, gradient);
        if (kept != nullptr) {
            const int vectors = writes ? logits.vectors : 0;
            int i = thread;
#pragma unroll 4
            for (; i < vectors; i += wide_threads) {
                const uint4 row_logits = kept[i];
                keep_vector(next, kept, i);
                write_vector(logits, i, row_logits, row_target, gradient);
            }
            for (; i < next.vectors; i += wide_threads) keep_vector(next, kept, i);
            device::commit_copies();
        } else if (writes) {
#pragma unroll 4
            for (int i = thread; i < logits.vectors; i += wide_threads)
                write_vector(logits, i, *logits.vector(i), row_target, gradient);
        }
    }
}

template <class L, class Cap>
void launch_wide(const Context& ctx, const CrossEntropy<L, Cap>& c) {
    const std::size_t row_bytes = static_cast<std::size_t>(c.width) * sizeof(L) / 16 * 16;
    const std::size_t max_kept_bytes = static_cast<std::size_t>(shared_memory_of_a_block()) - bytes_of_sums;
    const bool keep_row = c.gradients && row_bytes <= max_kept_bytes;
    const int blocks = processors_of(ctx) * (keep_row && row_bytes > max_kept_bytes / 2 ? 1 : wide_blocks<L>);
    launch(ctx, wide_kernel<L, Cap>, blocks_for(std::min<std::int64_t>(c.rows, blocks), 1),
           Block{wide_threads, keep_row ? row_bytes : 0}, c, keep_row);
}

}  // namespace

void count_targets(const Context& ctx, const Tensor& count, const Tensor& targets, std::int64_t) {
    launch(ctx, count_kernel, dim3(1), Block{.threads = count_threads, .starts_early = true},
           count.data<double>(), targets.data<std::int32_t>(), targets.elements());
}

void cross_entropy_rows(const Context& ctx, const Tensor& losses, const Tensor& d_logits,
                        const Tensor& logits, const Tensor& targets, const Tensor& count, double scale,
                        const LogitSoftcap& softcap) {
    const std::int64_t rows = logits.size(0), width = logits.size(1);
    if (rows == 0) return;
    check(width < std::numeric_limits<int>::max() / 2, "cross_entropy: a vocabulary of ", width,
          " is too large");
    check(
        !d_logits.defined() || (d_logits.raw_data() == logits.raw_data() &&
                                d_logits.dtype() == logits.dtype() && d_logits.strides() == logits.strides()),
        "cross_entropy: d_logits ", d_logits, " and logits ", logits, "; expected the same memory");
    visit_floating(logits.dtype(), [&]<class L>(TypeTag<L>) {
        visit_softcap<SoftcapMath, Accumulator<L>>(softcap, [&]<class Cap>(const Cap& cap) {
            const CrossEntropy<L, Cap> arguments{.cap = cap,
                                                 .losses = losses.data<double>(),
                                                 .logits = logits.data<L>(),
                                                 .stride = logits.stride(0),
                                                 .rows = rows,
                                                 .width = static_cast<int>(width),
                                                 .targets = targets.data<std::int32_t>(),
                                                 .count = count.data<double>(),
                                                 .scale = scale,
                                                 .gradients = d_logits.defined()};
            if (width <= narrow<L>) {
                launch(ctx, narrow_kernel<L, Cap>, blocks_for(rows, narrow_threads / 32),
                       Block{.threads = narrow_threads, .starts_early = true}, arguments);
            } else {
                if constexpr (!std::is_same_v<L, double>)
                    if (cross_entropy_in_clusters(ctx, arguments)) return;
                launch_wide(ctx, arguments);
            }
        });
    });
}

namespace {

template <class S, class Cap>
struct CapLogits {
    Cap cap;

    template <int n>
    __device__ void operator()(S (&out)[1][n], const S (&in)[1][n], device::Place) const {
#pragma unroll
        for (int i = 0; i < n; ++i) out[0][i] = cap(in[0][i]).value;
    }
};

}  // namespace

void cap_logits(const Context& ctx, const Tensor& logits, const LogitSoftcap& softcap) {
    visit_floating(logits.dtype(), [&]<class T>(TypeTag<T>) {
        if constexpr (std::is_same_v<T, Accumulator<T>>) {
            visit_softcap<SoftcapMath, T>(softcap, [&]<class Cap>(const Cap& cap) {
                map_rows<device::vector_length<T>, T, 1, 1>(
                    ctx, {device::DeviceRows<T>(logits, "cross_entropy")},
                    {device::DeviceRows<const T>(logits, "cross_entropy")}, CapLogits<T, Cap>{cap});
            });
        } else {
            throw Error(concat("cross_entropy: logits ", logits, "; expected float32 or float64"));
        }
    });
}

void sum_losses(const Context& ctx, const Tensor& total, const Tensor& losses, const Tensor& count) {
    launch(ctx, sum_kernel, dim3(1), Block{.threads = count_threads, .starts_early = true},
           total.data<double>(), total.elements() == 1, losses.data<double>(), count.data<double>(),
           losses.elements());
}

}  // namespace gradtile::cuda
