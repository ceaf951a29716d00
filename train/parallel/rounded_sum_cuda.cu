// Sums in bfloat16 on the GPU. The sums may be in page-locked host memory.
#include <algorithm>

#include <gradtile/train/optimizers/internal/moment_rounding.h>
#include <gradtile/train/parallel/internal/rounded_sum.h>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/packed.cuh>

namespace gradtile::cuda {
namespace {

constexpr int threads_per_block = 256;
constexpr int width = MomentDraws::elements;  // a thread's elements have one draw
// Enough blocks to fill the largest GPU several times. Each block processes elements at regular distances.
constexpr std::int64_t max_blocks = 8 * 1024;

__global__ void __launch_bounds__(threads_per_block)
    add_rounded_kernel(bfloat16* sums, const float* x, std::int64_t n, DropoutDraws draws,
                       std::int64_t element) {
    using Sums = device::Packed<bfloat16, width>;
    using Floats = device::Packed<float, width>;
    device::await_predecessor();
    const MomentDraws rounding{.key = draws.key()};
    const std::int64_t stride = gridDim.x * std::int64_t{threads_per_block * width};
    for (std::int64_t i = (blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x) * width; i < n;
         i += stride) {
        auto* const to = reinterpret_cast<Sums*>(sums + i);
        const Floats added = *reinterpret_cast<const Floats*>(x + i);
        const Philox::Counter draw = rounding.draw(element + i);
        Sums sum = *to;
#pragma unroll
        for (int j = 0; j < width; ++j)
            sum[j] = rounded_stochastically(device::convert<float>(sum[j]) + added[j],
                                            MomentDraws::bits(draw[static_cast<std::size_t>(j)], 0));
        *to = sum;
    }
}

}  // namespace

void add_rounded(const Context& ctx, const Tensor& sums, const Tensor& x, const DropoutDraws& draws,
                 std::int64_t element) {
    const std::int64_t n = sums.elements();
    if (n == 0) return;
    const auto blocks = std::min(ceil_div(n, std::int64_t{threads_per_block * width}), max_blocks);
    launch(ctx, add_rounded_kernel, dim3(static_cast<unsigned>(blocks)),
           Block{.threads = threads_per_block, .starts_early = true}, sums.data<bfloat16>(),
           static_cast<const float*>(x.data<float>()), n, draws, element);
}

}  // namespace gradtile::cuda
