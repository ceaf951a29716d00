// The whole gradient's norm on the GPU, in two stages. Every sum has a fixed order and there are no atomics,
// so two runs agree to the bit.
#include <gradtile/core/internal/data_or_null.h>
#include <gradtile/train/optimizers/internal/global_norm_backend.h>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/packed.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>

namespace gradtile::cuda {
namespace {

constexpr int threads_of_partial = 256;
constexpr int threads_of_total = 1024;

/// Writes to partial[b] the sum of squares of the b-th norm_block elements.
template <class T>
__global__ void __launch_bounds__(threads_of_partial)
    sum_of_squares_kernel(const T* x, std::int64_t n, double* partial) {
    const std::int64_t begin = blockIdx.x * norm_block;
    const T* const elements = x + begin;
    const int count = static_cast<int>(n - begin < norm_block ? n - begin : norm_block);
    constexpr int width = 16 / sizeof(T);  // elements that a thread loads at once
    using Vector = device::Packed<T, width>;
    const bool aligned = reinterpret_cast<std::uintptr_t>(elements) % 16 == 0;
    const int vectors = aligned ? count / width : 0;
    double sum = 0.0;
    device::await_predecessor();
    const auto add = [&](T element) {
        const double value = device::convert<double>(element);
        sum += value * value;
    };
#pragma unroll 8
    for (int i = threadIdx.x; i < vectors; i += threads_of_partial) {
        const Vector vector = reinterpret_cast<const Vector*>(elements)[i];
#pragma unroll
        for (int j = 0; j < width; ++j) add(vector[j]);
    }
    for (int i = vectors * width + threadIdx.x; i < count; i += threads_of_partial) add(elements[i]);
    sum = device::reduce_team<threads_of_partial>(sum, device::Sum{});
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(threads_of_total)
    total_kernel(const double* partial, std::int64_t count, bool root, double* total) {
    double sum = 0.0;
    device::await_predecessor();
    for (std::int64_t i = threadIdx.x; i < count; i += threads_of_total) sum += partial[i];
    sum = device::reduce_team<threads_of_total>(sum, device::Sum{});
    if (threadIdx.x == 0) *total = root ? sqrt(sum) : sum;
}

__global__ void square_root_kernel(double* x) {
    device::await_predecessor();
    *x = sqrt(*x);
}

template <class T>
__global__ void clip_scale_kernel(double* norm, const T* loss, const volatile double* interruption,
                                  double max_norm, double* scale) {
    device::await_predecessor();
    if (interruption != nullptr && *interruption != 0.0) *norm = nan("");
    const double length = *norm;
    const double loss_value = loss != nullptr ? device::convert<double>(*loss) : 0.0;
    const bool finite = isfinite(length) && isfinite(loss_value);
    const bool too_long = max_norm > 0.0 && length > max_norm;
    *scale = !finite ? 0.0 : too_long ? max_norm / length : 1.0;
}

constexpr Block one_thread{.threads = 1, .starts_early = true};

void reduce(const Context& ctx, const Tensor& x, const Tensor& partial, bool root, const Tensor& total) {
    const std::int64_t blocks = partial.elements();
    const double* const partials = blocks > 0 ? partial.data<double>() : nullptr;
    if (blocks > 0) {
        visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
            launch(ctx, sum_of_squares_kernel<T>, blocks_for(blocks, 1),
                   Block{.threads = threads_of_partial, .starts_early = true},
                   static_cast<const T*>(x.data<T>()), x.elements(), partial.data<double>());
        });
    }
    launch(ctx, total_kernel, dim3(1), Block{.threads = threads_of_total, .starts_early = true}, partials,
           blocks, root, total.data<double>());
}

}  // namespace

void global_norm(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& norm) {
    reduce(ctx, x, partial, /*root=*/true, norm);
}

void sum_of_squares(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& sum) {
    reduce(ctx, x, partial, /*root=*/false, sum);
}

void square_root(const Context& ctx, const Tensor& x) {
    launch(ctx, square_root_kernel, dim3(1), one_thread, x.data<double>());
}

void clip_scale(const Context& ctx, const Tensor& norm, const Tensor& scale, const ClipOptions& options) {
    const DType loss_dtype = options.loss.defined() ? options.loss.dtype() : DType::f64;
    const volatile double* const interruption = data_or_null<double>(options.interruption);
    visit_floating(loss_dtype, [&]<class T>(TypeTag<T>) {
        const T* const loss = data_or_null<T>(options.loss);
        launch(ctx, clip_scale_kernel<T>, dim3(1), one_thread, norm.data<double>(), loss, interruption,
               options.max_norm, scale.data<double>());
    });
}

}  // namespace gradtile::cuda
