// Masters of 16-bit weights on the GPU.
#include <gradtile/core/internal/master_weights.h>
#include <gradtile/core/cuda/device/launch.cuh>

namespace gradtile::cuda {
namespace {

constexpr int threads_per_block = 256;

__global__ void round_kernel(const float* masters, bfloat16* values, std::int64_t n) {
    device::await_predecessor();
    const std::int64_t i = blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x;
    if (i < n) values[i] = rounded_master(masters[i]);
}

__global__ void split_kernel(const float* masters, std::int16_t* remainders, std::int64_t n) {
    device::await_predecessor();
    const std::int64_t i = blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x;
    if (i < n) remainders[i] = remainder_of(masters[i]);
}

__global__ void join_kernel(const bfloat16* values, const std::int16_t* remainders, float* masters,
                            std::int64_t n) {
    device::await_predecessor();
    const std::int64_t i = blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x;
    if (i < n) masters[i] = joined_master(values[i], remainders[i]);
}

/// Launches kernel(arguments..., n) with a thread for each of n masters.
template <class... Parameters, class... Arguments>
void launch_for_masters(const Context& ctx, std::int64_t n, void (*kernel)(Parameters...),
                        Arguments... arguments) {
    if (n == 0) return;
    launch(ctx, kernel, blocks_for(n, threads_per_block),
           Block{.threads = threads_per_block, .starts_early = true}, arguments..., n);
}

}  // namespace

void round_masters(const Context& ctx, const Tensor& masters, const Tensor& values) {
    launch_for_masters(ctx, masters.elements(), round_kernel,
                       static_cast<const float*>(masters.data<float>()), values.data<bfloat16>());
}

void split_masters(const Context& ctx, const Tensor& masters, const Tensor& remainders) {
    launch_for_masters(ctx, masters.elements(), split_kernel,
                       static_cast<const float*>(masters.data<float>()),
                       weight_data<std::int16_t>(remainders));
}

void join_masters(const Context& ctx, const Tensor& values, const Tensor& remainders, const Tensor& masters) {
    launch_for_masters(
        ctx, masters.elements(), join_kernel, static_cast<const bfloat16*>(values.data<bfloat16>()),
        static_cast<const std::int16_t*>(weight_data<std::int16_t>(remainders)), masters.data<float>());
}

}  // namespace gradtile::cuda
