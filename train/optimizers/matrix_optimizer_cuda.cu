// MatrixOptimizer's element-wise passes on the GPU: each is one kernel for all matrices in a group. gemm()
// computes the matrix products. Blocks with the same blockIdx.y work on the same matrix.
#include <algorithm>

#include <gradtile/core/internal/data_or_null.h>
#include <gradtile/train/optimizers/internal/matrix_optimizer_backend.h>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/master_weights.cuh>
#include <gradtile/core/cuda/device/packed.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>
#include <gradtile/train/optimizers/internal/moment_blocks.cuh>

namespace gradtile::cuda {
namespace {

constexpr int threads_per_block = 256;
// The maximum block count, enough to fill the largest GPU several times. Each block processes elements at
// regular distances.
constexpr std::int64_t max_blocks = 8 * 1024;

// A thread loads and stores `width` neighbouring elements together: 8, or 1 if rows are not whole multiples
// of 8.
constexpr int vector_width = 8;

template <int width>
__device__ std::int64_t first_element() {
    return (blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x) * width;
}
template <int width>
__device__ std::int64_t element_stride() {
    return gridDim.x * std::int64_t{threads_per_block * width};
}
template <int width, class T>
__device__ device::Packed<T, width>& elements_at(T* from) {
    return *reinterpret_cast<device::Packed<T, width>*>(from);
}
template <int width, class T>
__device__ const device::Packed<T, width>& elements_at(const T* from) {
    return *reinterpret_cast<const device::Packed<T, width>*>(from);
}

/// Thread 0 returns the sum over a block's threads, which is computed in a fixed order.
__device__ double block_sum(double sum) {
    __shared__ double warp_sum[threads_per_block / 32];
    __syncthreads();  // thread 0 has read the sums of an earlier call
    sum = device::reduce_lanes<32>(sum, device::Sum{});
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 1; warp < threads_per_block / 32; ++warp) sum += warp_sum[warp];
    return sum;
}

/// Returns the sum of squares over `width` elements.
template <int width, class T>
__device__ double squares_of(const device::Packed<T, width>& x) {
    double sum = 0.0;
#pragma unroll
    for (int e = 0; e < width; ++e) {
        const auto value = static_cast<double>(device::convert<Accumulator<T>>(x[e]));
        sum += value * value;
    }
    return sum;
}

/// The words that round `width` elements' moments. The first element is at a multiple of `width`.
template <int width, bool is_rounded>
struct ElementWords {
    static constexpr int group = MomentDraws::elements;
    static constexpr int groups = width < group ? 1 : width / group;
    Philox::Counter draws[groups];
    int first = 0;  // the first element's place in its draw

    __device__ ElementWords(const MomentDraws& source, std::int64_t element)
        : first(static_cast<int>(element % group)) {
        if constexpr (is_rounded)
            for (int i = 0; i < groups; ++i) draws[i] = source.draw(element + i * group);
    }
    __device__ std::uint32_t of(int e) const {
        return draws[e / group][static_cast<std::size_t>((width < group ? first : 0) + e % group)];
    }
};

/// gridDim.x is matrix_norm_parts.
template <int width, class Real, class Gradient, class Moment>
__global__ void __launch_bounds__(threads_per_block)
    momentum_kernel(const Gradient* gradients, const MatrixOffsets* matrices, const double* scale,
                    MomentumRule rule, const std::int32_t* updates_before, Seed seed, Moment* momentum,
                    Real* updates, double* partial, std::int64_t n) {
    const MatrixOffsets offsets = matrices[blockIdx.y];
    device::await_predecessor();
    const Real mix = static_cast<Real>(1.0 - rule.decay_after(*updates_before));
    const double factor = scale != nullptr ? *scale : 1.0;
    const bool refused = factor == 0.0;
    const Gradient* const gradient = gradients + offsets.gradient;
    constexpr bool is_rounded = !std::is_same_v<Moment, Real>;
    const MomentDraws draws = MomentDraws::of(seed, *updates_before + 1);
    Moment* const moment = momentum + offsets.momentum;
    Real* const update = updates + blockIdx.y * n;
    double sum = 0.0;
    for (std::int64_t i = first_element<width>(); i < n; i += element_stride<width>()) {
        device::Packed<Real, width> u{};
        if (!refused) {
            const device::Packed<Gradient, width> gs = elements_at<width>(gradient + i);
            device::Packed<Moment, width> ms = elements_at<width>(moment + i);
            const std::int64_t element = offsets.element + i;
            const ElementWords<width, is_rounded> words(draws, element);
#pragma unroll
            for (int e = 0; e < width; ++e) {
                const Real g = device::convert<Real>(gs[e]) * static_cast<Real>(factor);
                Real m = device::convert<Real>(ms[e]);
                m += mix * (g - m);
                u[e] = rule.nesterov ? m + mix * (g - m) : m;
                if constexpr (is_rounded) {
                    ms[e] = rounded_stochastically(m, MomentDraws::bits(words.of(e), 0));
                } else {
                    ms[e] = m;
                }
            }
            elements_at<width>(moment + i) = ms;
            sum += squares_of<width>(u);
        }
        elements_at<width>(update + i) = u;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.y * matrix_norm_parts + blockIdx.x] = sum;
}

/// A thread decodes four elements. `n` is the element count of a matrix.
__global__ void __launch_bounds__(threads_per_block)
    decode_momentum_kernel(const MomentBlock* stored, const MatrixOffsets* matrices, float* momentum,
                           std::int64_t n) {
    constexpr int width = device::moments_per_thread;
    const MatrixOffsets offsets = matrices[blockIdx.y];
    device::await_predecessor();
    for (std::int64_t i = first_element<width>(); i < n; i += element_stride<width>()) {
        const device::FourMoments moments =
            device::load_moments(stored + offsets.momentum_block + i / moment_block, 0);
        for (int e = 0; e < width && i + e < n; ++e) momentum[offsets.momentum + i + e] = moments[e];
    }
}

/// Sixteen threads encode a block; elements beyond the matrix are 0.
__global__ void __launch_bounds__(threads_per_block)
    encode_momentum_kernel(const float* momentum, const MatrixOffsets* matrices, const double* scale,
                           const std::int32_t* updates_before, Seed seed, MomentBlock* stored,
                           std::int64_t n) {
    constexpr int width = device::moments_per_thread;
    const MatrixOffsets offsets = matrices[blockIdx.y];
    device::await_predecessor();
    if (scale != nullptr && *scale == 0.0) return;
    const MomentDraws draws = MomentDraws::of(seed, *updates_before + 1);
    const std::int64_t padded = (n + moment_block - 1) / moment_block * moment_block;
    for (std::int64_t i = first_element<width>(); i < padded; i += element_stride<width>()) {
        device::FourMoments moments{};
        for (int e = 0; e < width && i + e < n; ++e) moments[e] = momentum[offsets.momentum + i + e];
        device::store_moments(stored + offsets.momentum_block + i / moment_block, moments,
                              draws.draw(offsets.element + i), 0);
    }
}

/// gridDim.x is matrix_norm_parts.
template <int width, class Real>
__global__ void __launch_bounds__(threads_per_block)
    sum_of_squares_kernel(const Real* x, double* partial, std::int64_t n) {
    device::await_predecessor();
    const Real* const matrix = x + blockIdx.y * n;
    double sum = 0.0;
    for (std::int64_t i = first_element<width>(); i < n; i += element_stride<width>())
        sum += squares_of<width>(elements_at<width>(matrix + i));
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.y * matrix_norm_parts + blockIdx.x] = sum;
}

template <int width, class Real, class T>
__global__ void __launch_bounds__(threads_per_block)
    normalize_kernel(const Real* x, const double* partial, T* out, std::int64_t n) {
    static_assert(matrix_norm_parts <= threads_per_block);
    __shared__ Real factor;
    device::await_predecessor();
    const double sum = block_sum(
        threadIdx.x < matrix_norm_parts ? partial[blockIdx.y * matrix_norm_parts + threadIdx.x] : 0.0);
    if (threadIdx.x == 0) factor = static_cast<Real>(1.0 / (sqrt(sum) + matrix_norm_epsilon));
    __syncthreads();
    const std::int64_t matrix = blockIdx.y * n;
    for (std::int64_t i = first_element<width>(); i < n; i += element_stride<width>()) {
        const device::Packed<Real, width> values = elements_at<width>(x + matrix + i);
        device::Packed<T, width> scaled;
#pragma unroll
        for (int e = 0; e < width; ++e) scaled[e] = device::convert<T>(values[e] * factor);
        elements_at<width>(out + matrix + i) = scaled;
    }
}

template <class T>
__global__ void add_lower_powers_kernel(T* squares, const T* gram, Accumulator<T> a, Accumulator<T> b,
                                        Accumulator<T> c, std::int64_t side, std::int64_t n) {
    using Real = Accumulator<T>;
    T* const sums = squares + blockIdx.y * n;
    const T* const powers = gram + blockIdx.y * n;
    device::await_predecessor();
    for (std::int64_t i = first_element<1>(); i < n; i += element_stride<1>()) {
        const Real sum = c * device::convert<Real>(sums[i]) + b * device::convert<Real>(powers[i]);
        const std::int64_t row = i / side;
        sums[i] = device::convert<T>(i - row * side == row ? sum + a : sum);
    }
}

/// A sum of squares before and after rows were multiplied.
struct RowSquares {
    double before, after;
};

/// Each warp computes rows at regular distances. gridDim.x is matrix_norm_parts.
template <int width, class Update, class Real>
__global__ void __launch_bounds__(threads_per_block)
    row_factors_kernel(const Update* updates, const MatrixOffsets* matrices, const double* scale, Real mix,
                       Real* second_moment, Real* factors, RowSquares* squares, std::int64_t cols,
                       std::int64_t n) {
    constexpr int warps = threads_per_block / 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const std::int64_t rows = n / cols;
    const MatrixOffsets offsets = matrices[blockIdx.y];
    device::await_predecessor();
    const bool refused = scale != nullptr && *scale == 0.0;
    Real* const moments = second_moment + offsets.second_moment;
    RowSquares sums{};
    for (std::int64_t row = blockIdx.x * warps + warp; row < rows; row += gridDim.x * warps) {
        const Update* const update = updates + blockIdx.y * n + row * cols;
        double sum = 0.0;
        for (std::int64_t i = lane * width; i < cols; i += 32 * width)
            sum += squares_of<width>(elements_at<width>(update + i));
        sum = device::reduce_lanes<32>(sum, device::Sum{});
        if (lane != 0) continue;
        Real moment = moments[row];
        if (!refused) {
            moment += mix * (static_cast<Real>(sum / static_cast<double>(cols)) - moment);
            moments[row] = moment;
        }
        const Real factor = Real{1} / (sqrt(moment) + static_cast<Real>(row_factor_epsilon));
        factors[blockIdx.y * rows + row] = factor;
        sums.before += sum;
        sums.after += sum * static_cast<double>(factor) * static_cast<double>(factor);
    }
    sums = {block_sum(sums.before), block_sum(sums.after)};
    if (threadIdx.x == 0) squares[blockIdx.y * matrix_norm_parts + blockIdx.x] = sums;
}

/// What apply_kernel() multiplies rows by; null: nothing.
template <class Real>
struct RowPointers {
    const Real* factors;
    const RowSquares* squares;
    std::int64_t cols;
};

/// Returns the ratio of the matrix's norm before its rows were multiplied to its norm after. All threads of a
/// block must call this function for one matrix, and get the same number.
template <class Real>
__device__ Real norm_ratio(const RowPointers<Real>& rows) {
    static_assert(matrix_norm_parts <= threads_per_block);
    __shared__ Real ratio;
    RowSquares sums{};
    if (threadIdx.x < matrix_norm_parts) sums = rows.squares[blockIdx.y * matrix_norm_parts + threadIdx.x];
    sums = {block_sum(sums.before), block_sum(sums.after)};
    if (threadIdx.x == 0)
        ratio = static_cast<Real>(sqrt(sums.before) / (sqrt(sums.after) + row_factor_epsilon));
    __syncthreads();
    return ratio;
}

template <int width, class Update, class Real, class Weight, class Value>
__global__ void __launch_bounds__(threads_per_block)
    apply_kernel(const Update* updates, const MatrixOffsets* matrices, RowPointers<Real> rows,
                 const double* rate, MatrixRate derived, const double* scale, Weight* weights, Value* values,
                 std::int64_t n) {
    const MatrixOffsets offsets = matrices[blockIdx.y];
    device::await_predecessor();
    if (scale != nullptr && *scale == 0.0) return;
    const DecayFactors<Real> decay = derived.decay<Real>(*rate);
    const auto step = static_cast<Real>(derived.step(*rate));
    const Real ratio = rows.factors != nullptr ? norm_ratio(rows) : Real{1};
    const Update* const update = updates + blockIdx.y * n;
    Weight* const weight = weights + offsets.weight;
    Value* const value = values + offsets.value;
    for (std::int64_t i = first_element<width>(); i < n; i += element_stride<width>()) {
        const device::Packed<Update, width> change = elements_at<width>(update + i);
        device::Packed<Weight, width> w = elements_at<width>(weight + i);
        device::Packed<Value, width> rounded{};
        if constexpr (!std::is_same_v<Weight, Real>) rounded = elements_at<width>(value + i);
        Real row_step = step;
        if (rows.factors != nullptr) row_step *= ratio * rows.factors[(blockIdx.y * n + i) / rows.cols];
#pragma unroll
        for (int e = 0; e < width; ++e) {
            const Real subtracted = row_step * device::convert<Real>(change[e]);
            const Real updated =
                decay.decayed(loaded_weight<Real>(w[e], rounded[e]), subtracted) - subtracted;
            w[e] = kept_weight<Weight>(updated);
            if constexpr (!std::is_same_v<Real, Value>) rounded[e] = device::value_of_weight<Value>(updated);
        }
        elements_at<width>(weight + i) = w;
        if constexpr (!std::is_same_v<Real, Value>) elements_at<width>(value + i) = rounded;
    }
}

/// Calls f(std::integral_constant) with how many elements a thread loads together. Parameters in the flat
/// arrays begin at multiples of parameter_alignment, their matrices at multiples of a row, and the matrices
/// of a stack at multiples of `length`, which is a matrix's or a row's.
template <class F>
void with_width(std::int64_t length, F&& f) {
    static_assert(parameter_alignment % vector_width == 0);
    if (length % vector_width == 0) {
        f(std::integral_constant<int, vector_width>{});
    } else {
        f(std::integral_constant<int, 1>{});
    }
}

/// Launches kernel(arguments..., n) for n elements in each of `count` matrices, with `blocks` blocks per
/// matrix. If `blocks` is 0, a matrix has one block per threads_per_block * width elements, and all matrices
/// together have at most max_blocks.
template <int width, class... Parameters, class... Arguments>
void launch_for_matrices(const Context& ctx, std::int64_t count, std::int64_t n, std::int64_t blocks,
                         void (*kernel)(Parameters...), Arguments... arguments) {
    if (n == 0 || count == 0) return;
    constexpr std::int64_t max_matrices = 65535;  // CUDA's limit on a grid's second axis
    check(count <= max_matrices, "optimizer: ", count, " matrices in a group; expected at most ",
          max_matrices);
    if (blocks == 0)
        blocks = std::clamp<std::int64_t>(ceil_div(n, threads_per_block * width), 1,
                                          std::max<std::int64_t>(1, max_blocks / count));
    launch(ctx, kernel, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(count)),
           Block{.threads = threads_per_block, .starts_early = true}, arguments..., n);
}

const MatrixOffsets* offsets_of(const MatrixGroup& group) {
    return reinterpret_cast<const MatrixOffsets*>(group.on_device.raw_data());
}

}  // namespace

void matrix_momentum(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& matrices,
                     const Tensor& scale, const MomentumRule& rule, const Tensor& updates,
                     const Tensor& partial) {
    const std::int64_t n = matrices.shape.elements();
    visit_arithmetic_type(updates.dtype(), [&]<class Real>(TypeTag<Real>) {
        with_width(matrices.shape[1], [&]<int width>(std::integral_constant<int, width>) {
            visit_kept_type<Real>(arrays.gradients.dtype(), [&]<class Gradient>(TypeTag<Gradient>) {
                visit_kept_type<Real>(arrays.momentum.dtype(), [&]<class Moment>(TypeTag<Moment>) {
                    launch_for_matrices<width>(
                        ctx, matrices.count(), n, matrix_norm_parts,
                        momentum_kernel<width, Real, Gradient, Moment>,
                        static_cast<const Gradient*>(arrays.gradients.data<Gradient>()), offsets_of(matrices),
                        data_or_null<double>(scale), rule,
                        static_cast<const std::int32_t*>(arrays.updates.data<std::int32_t>()), arrays.seed,
                        arrays.momentum.data<Moment>(), updates.data<Real>(), partial.data<double>());
                });
            });
        });
    });
}

void decode_momentum(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& matrices,
                     const Tensor& momentum) {
    launch_for_matrices<device::moments_per_thread>(
        ctx, matrices.count(), matrices.shape.elements(), 0, decode_momentum_kernel,
        static_cast<const MomentBlock*>(moments_at<MomentBlock>(arrays.momentum, 0)), offsets_of(matrices),
        momentum.data<float>());
}

void encode_momentum(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& matrices,
                     const Tensor& scale, const Tensor& momentum) {
    launch_for_matrices<device::moments_per_thread>(
        ctx, matrices.count(), matrices.shape.elements(), 0, encode_momentum_kernel,
        static_cast<const float*>(momentum.data<float>()), offsets_of(matrices), data_or_null<double>(scale),
        static_cast<const std::int32_t*>(arrays.updates.data<std::int32_t>()), arrays.seed,
        moments_at<MomentBlock>(arrays.momentum, 0));
}

void sums_of_squares(const Context& ctx, const Tensor& x, const Tensor& partial) {
    const std::int64_t count = x.size(0), n = count == 0 ? 0 : x.elements() / count;
    visit_arithmetic_type(x.dtype(), [&]<class Real>(TypeTag<Real>) {
        with_width(n, [&]<int width>(std::integral_constant<int, width>) {
            launch_for_matrices<width>(ctx, count, n, matrix_norm_parts, sum_of_squares_kernel<width, Real>,
                                       static_cast<const Real*>(x.data<Real>()), partial.data<double>());
        });
    });
}

void normalize_matrices(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& out) {
    const std::int64_t count = x.size(0), n = count == 0 ? 0 : x.elements() / count;
    visit_arithmetic_type(x.dtype(), [&]<class Real>(TypeTag<Real>) {
        visit_floating(out.dtype(), [&]<class T>(TypeTag<T>) {
            if constexpr (std::is_same_v<T, Real> || std::is_same_v<T, bfloat16>)
                with_width(n, [&]<int width>(std::integral_constant<int, width>) {
                    launch_for_matrices<width>(ctx, count, n, 0, normalize_kernel<width, Real, T>,
                                               static_cast<const Real*>(x.data<Real>()),
                                               static_cast<const double*>(partial.data<double>()),
                                               out.data<T>());
                });
        });
    });
}

void add_lower_powers(const Context& ctx, const Tensor& squares, const Tensor& gram,
                      const MatrixPolynomial& polynomial) {
    const std::int64_t side = gram.size(-1);
    visit_floating(gram.dtype(), [&]<class T>(TypeTag<T>) {
        using Real = Accumulator<T>;
        launch_for_matrices<1>(ctx, gram.size(0), side * side, 0, add_lower_powers_kernel<T>,
                               squares.data<T>(), static_cast<const T*>(gram.data<T>()),
                               static_cast<Real>(polynomial.a), static_cast<Real>(polynomial.b),
                               static_cast<Real>(polynomial.c), side);
    });
}

void row_factors(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& matrices,
                 const Tensor& updates, const Tensor& scale, double beta2, const RowFactors& rows) {
    const std::int64_t cols = matrices.shape[1];
    visit_arithmetic_type(rows.factors.dtype(), [&]<class Real>(TypeTag<Real>) {
        visit_floating(updates.dtype(), [&]<class Update>(TypeTag<Update>) {
            if constexpr (std::is_same_v<Update, Real> || std::is_same_v<Update, bfloat16>)
                with_width(cols, [&]<int width>(std::integral_constant<int, width>) {
                    launch_for_matrices<width>(
                        ctx, matrices.count(), matrices.shape.elements(), matrix_norm_parts,
                        row_factors_kernel<width, Update, Real>,
                        static_cast<const Update*>(updates.data<Update>()), offsets_of(matrices),
                        data_or_null<double>(scale), static_cast<Real>(1.0 - beta2),
                        arrays.second_moment.data<Real>(), rows.factors.data<Real>(),
                        reinterpret_cast<RowSquares*>(rows.squares.data<double>()), cols);
                });
        });
    });
}

void matrix_apply(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& matrices,
                  const Tensor& updates, const RowFactors& rows, const Tensor& rate,
                  const MatrixRate& derived, const UpdateOptions& options) {
    const std::int64_t n = matrices.shape.elements();
    visit_floating(arrays.values.dtype(), [&]<class Value>(TypeTag<Value>) {
        using Real = Accumulator<Value>;
        RowPointers<Real> row_pointers{.cols = matrices.shape[1]};
        if (rows.defined()) {
            row_pointers.factors = rows.factors.data<Real>();
            row_pointers.squares = reinterpret_cast<const RowSquares*>(rows.squares.data<double>());
        }
        visit_weight_type<Real, Value>(arrays.weights.dtype(), [&]<class Weight>(TypeTag<Weight>) {
            visit_floating(updates.dtype(), [&]<class Update>(TypeTag<Update>) {
                if constexpr (std::is_same_v<Update, Real> || std::is_same_v<Update, bfloat16>)
                    with_width(matrices.shape[1], [&]<int width>(std::integral_constant<int, width>) {
                        launch_for_matrices<width>(
                            ctx, matrices.count(), n, 0, apply_kernel<width, Update, Real, Weight, Value>,
                            static_cast<const Update*>(updates.data<Update>()), offsets_of(matrices),
                            row_pointers, static_cast<const double*>(rate.data<double>()), derived,
                            data_or_null<double>(options.gradient_scale), weight_data<Weight>(arrays.weights),
                            arrays.values.data<Value>());
                    });
            });
        });
    });
}

}  // namespace gradtile::cuda
