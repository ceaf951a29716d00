// MatrixOptimizer's element-wise passes on the GPU: each is one kernel for all matrices of a group. gemm()
// computes the matrix products. Blocks with the same blockIdx.y work on the same matrix.
#include <algorithm>

#include <gradtile/core/cuda/internal/cuda_check.h>
#include <gradtile/train/optimizers/internal/matrix_optimizer_backend.h>
#include <gradtile/core/cuda/device/convert.cuh>

namespace gradtile::cuda {
namespace {

constexpr int threads_per_block = 256;
// The maximum number of blocks, which fill the largest GPU several times. Each block processes elements at
// regular distances.
constexpr std::int64_t max_blocks = 8 * 1024;

__device__ std::int64_t first_element() {
    return blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x;
}
__device__ std::int64_t element_stride() {
    return gridDim.x * std::int64_t{threads_per_block};
}

template <class Real>
__global__ void momentum_kernel(const Real* gradients, const MatrixOffsets* matrices, const double* scale,
                                Real mix, Real* momentum, Real* updates, std::int64_t n) {
    const MatrixOffsets at = matrices[blockIdx.y];
    const double factor = scale != nullptr ? *scale : 1.0;
    const bool refused = factor == 0.0;
    const Real* const gradient = gradients + at.gradient;
    Real* const moment = momentum + at.momentum;
    Real* const update = updates + blockIdx.y * n;
    for (std::int64_t i = first_element(); i < n; i += element_stride()) {
        if (refused) {
            update[i] = Real{0};
            continue;
        }
        const Real g = gradient[i] * static_cast<Real>(factor);
        const Real m = moment[i] + mix * (g - moment[i]);
        moment[i] = m;
        update[i] = m + mix * (g - m);
    }
}

/// Thread 0 returns the sum over a block's threads, which is computed in a fixed order.
__device__ double block_sum(double sum) {
    __shared__ double warp_sum[threads_per_block / 32];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
    if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int warp = 1; warp < threads_per_block / 32; ++warp) sum += warp_sum[warp];
    return sum;
}

/// gridDim.x is matrix_norm_parts.
template <class Real>
__global__ void sum_of_squares_kernel(const Real* x, double* partial, std::int64_t n) {
    const Real* const matrix = x + blockIdx.y * n;
    double sum = 0.0;
    for (std::int64_t i = first_element(); i < n; i += element_stride()) {
        const auto value = static_cast<double>(matrix[i]);
        sum += value * value;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.y * matrix_norm_parts + blockIdx.x] = sum;
}

template <class Real, class T>
__global__ void normalize_kernel(const Real* x, const double* partial, T* out, std::int64_t n) {
    static_assert(matrix_norm_parts <= threads_per_block);
    __shared__ Real factor;
    const double sum = block_sum(
        threadIdx.x < matrix_norm_parts ? partial[blockIdx.y * matrix_norm_parts + threadIdx.x] : 0.0);
    if (threadIdx.x == 0) factor = static_cast<Real>(1.0 / (sqrt(sum) + matrix_norm_epsilon));
    __syncthreads();
    const std::int64_t matrix = blockIdx.y * n;
    for (std::int64_t i = first_element(); i < n; i += element_stride())
        out[matrix + i] = device::convert<T>(x[matrix + i] * factor);
}

template <class T>
__global__ void add_lower_powers_kernel(T* squares, const T* gram, Accumulator<T> a, Accumulator<T> b,
                                        Accumulator<T> c, std::int64_t side, std::int64_t n) {
    using Real = Accumulator<T>;
    T* const sums = squares + blockIdx.y * n;
    const T* const powers = gram + blockIdx.y * n;
    for (std::int64_t i = first_element(); i < n; i += element_stride()) {
        const Real sum = c * device::convert<Real>(sums[i]) + b * device::convert<Real>(powers[i]);
        const std::int64_t row = i / side;
        sums[i] = device::convert<T>(i - row * side == row ? sum + a : sum);
    }
}

template <class Update, class Real, class Value>
__global__ void apply_kernel(const Update* updates, const MatrixOffsets* matrices, const double* rate,
                             MatrixRate derived, const double* scale, Real* weights, Value* values,
                             std::int64_t n) {
    if (scale != nullptr && *scale == 0.0) return;
    const MatrixOffsets at = matrices[blockIdx.y];
    const auto keep = static_cast<Real>(derived.keep(*rate));
    const auto step = static_cast<Real>(derived.step(*rate));
    const Update* const update = updates + blockIdx.y * n;
    Real* const weight = weights + at.weight;
    for (std::int64_t i = first_element(); i < n; i += element_stride()) {
        const Real updated = keep * weight[i] - step * device::convert<Real>(update[i]);
        weight[i] = updated;
        if constexpr (!std::is_same_v<Real, Value>) values[at.value + i] = device::convert<Value>(updated);
    }
}

/// Launches kernel(arguments..., n) for n elements of each of `count` matrices, with `blocks` blocks per
/// matrix. If `blocks` is 0, a matrix has one block per threads_per_block elements, and all matrices together
/// have at most max_blocks.
template <class... Parameters, class... Arguments>
void launch(const Context& ctx, std::int64_t count, std::int64_t n, std::int64_t blocks,
            void (*kernel)(Parameters...), Arguments... arguments) {
    if (n == 0 || count == 0) return;
    constexpr std::int64_t max_matrices = 65535;  // CUDA's limit on a grid's second axis
    check(count <= max_matrices, "optimizer: ", count, " matrices in a group; expected at most ",
          max_matrices);
    use_device(ctx.device());
    if (blocks == 0)
        blocks = std::clamp<std::int64_t>(ceil_div(n, threads_per_block), 1,
                                          std::max<std::int64_t>(1, max_blocks / count));
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(count));
    kernel<<<grid, threads_per_block, 0, static_cast<cudaStream_t>(ctx.stream())>>>(arguments..., n);
    cuda_check(cudaGetLastError());
}

const double* pointer_of(const Tensor& scale) {
    return scale.defined() ? scale.data<double>() : nullptr;
}

const MatrixOffsets* offsets_of(const MatrixGroup& group) {
    return reinterpret_cast<const MatrixOffsets*>(group.on_device.raw_data());
}

}  // namespace

void matrix_momentum(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                     const Tensor& scale, double momentum_decay, const Tensor& updates) {
    visit_gradient_type(updates.dtype(), [&]<class Real>(TypeTag<Real>) {
        launch(ctx, group.count(), group.shape.elements(), 0, momentum_kernel<Real>,
               static_cast<const Real*>(arrays.gradients.data<Real>()), offsets_of(group), pointer_of(scale),
               static_cast<Real>(1.0 - momentum_decay), arrays.momentum.data<Real>(), updates.data<Real>());
    });
}

void normalize_matrices(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& out) {
    const std::int64_t count = x.size(0), elements = count == 0 ? 0 : x.elements() / count;
    visit_gradient_type(x.dtype(), [&]<class Real>(TypeTag<Real>) {
        launch(ctx, count, elements, matrix_norm_parts, sum_of_squares_kernel<Real>,
               static_cast<const Real*>(x.data<Real>()), partial.data<double>());
        visit_floating(out.dtype(), [&]<class T>(TypeTag<T>) {
            if constexpr (std::is_same_v<T, Real> || std::is_same_v<T, bfloat16>)
                launch(ctx, count, elements, 0, normalize_kernel<Real, T>,
                       static_cast<const Real*>(x.data<Real>()),
                       static_cast<const double*>(partial.data<double>()), out.data<T>());
        });
    });
}

void add_lower_powers(const Context& ctx, const Tensor& squares, const Tensor& gram,
                      const MatrixPolynomial& polynomial) {
    const std::int64_t side = gram.size(-1);
    visit_floating(gram.dtype(), [&]<class T>(TypeTag<T>) {
        using Real = Accumulator<T>;
        launch(ctx, gram.size(0), side * side, 0, add_lower_powers_kernel<T>, squares.data<T>(),
               static_cast<const T*>(gram.data<T>()), static_cast<Real>(polynomial.a),
               static_cast<Real>(polynomial.b), static_cast<Real>(polynomial.c), side);
    });
}

void matrix_apply(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                  const Tensor& updates, const Tensor& rate, const MatrixRate& derived,
                  const UpdateOptions& options) {
    visit_floating(arrays.values.dtype(), [&]<class Value>(TypeTag<Value>) {
        using Real = Accumulator<Value>;
        visit_floating(updates.dtype(), [&]<class Update>(TypeTag<Update>) {
            if constexpr (std::is_same_v<Update, Real> || std::is_same_v<Update, bfloat16>)
                launch(ctx, group.count(), group.shape.elements(), 0, apply_kernel<Update, Real, Value>,
                       static_cast<const Update*>(updates.data<Update>()), offsets_of(group),
                       static_cast<const double*>(rate.data<double>()), derived,
                       pointer_of(options.gradient_scale), arrays.weights.data<Real>(),
                       arrays.values.data<Value>());
        });
    });
}

}  // namespace gradtile::cuda
