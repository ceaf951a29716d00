// Weights in 4 and 8 bits on the GPU.
#include <gradtile/core/internal/quantized_codes.h>
#include <gradtile/core/cuda/device/convert.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/packed.cuh>

namespace gradtile::cuda {
namespace {

constexpr int threads_per_block = 256;
/// A thread's elements: in nf4 the codes of a word, and in 16 bits an access of 16 bytes. They have one
/// scale.
constexpr int elements_per_thread = 8;
static_assert(quantized_block % elements_per_thread == 0);

template <class Weight>
using ThreadWeights = device::Packed<Weight, elements_per_thread>;

/// Stores the elements from `first` on of a matrix with n.
template <class Weight>
__device__ __forceinline__ void store(Weight* weights, const ThreadWeights<Weight>& values,
                                      std::int64_t first, std::int64_t n, bool is_aligned) {
    if (is_aligned && first + elements_per_thread <= n) {
        *reinterpret_cast<ThreadWeights<Weight>*>(weights + first) = values;
    } else {
        for (int i = 0; i < elements_per_thread && first + i < n; ++i) weights[first + i] = values.element[i];
    }
}

template <class Weight>
__global__ void nf4_kernel(Weight* weights, const std::int32_t* words, QuantizedLayout layout, std::int64_t n,
                           bool is_aligned) {
    // In shared memory, the lanes of a warp read different values at once.
    __shared__ float values[16];
    if (threadIdx.x < 16) values[threadIdx.x] = nf4_value(threadIdx.x);
    __syncthreads();
    device::await_predecessor();
    const std::int64_t word = blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x;
    const std::int64_t first = word * elements_per_thread;
    if (first >= n) return;
    const std::int64_t block = first / quantized_block;
    const float scale =
        nf4_scale(words, layout, block, scale_code_value(nf4_scale_code(words, layout, block)));
    const auto codes = static_cast<std::uint32_t>(words[word]);
    ThreadWeights<Weight> results;
#pragma unroll
    for (int i = 0; i < elements_per_thread; ++i) {
        const int shift =
            8 * (i / 2) + (i % 2 == 0 ? 4 : 0);  // the first of two codes in a byte is the upper
        results[i] = device::convert<Weight>(values[codes >> shift & 15u] * scale);
    }
    store(weights, results, first, n, is_aligned);
}

template <class Weight>
__global__ void int8_kernel(Weight* weights, const std::int32_t* words, QuantizedLayout layout,
                            std::int64_t n, bool is_aligned) {
    device::await_predecessor();
    const std::int64_t thread = blockIdx.x * std::int64_t{threads_per_block} + threadIdx.x;
    const std::int64_t first = thread * elements_per_thread;
    if (first >= n) return;
    const float scale = reinterpret_cast<const float*>(words + layout.scales)[first / quantized_block];
    const auto codes = *reinterpret_cast<const device::Packed<std::int8_t, elements_per_thread>*>(
        reinterpret_cast<const std::int8_t*>(words) + first);
    ThreadWeights<Weight> results;
#pragma unroll
    for (int i = 0; i < elements_per_thread; ++i)
        results[i] = device::convert<Weight>(static_cast<float>(codes[i]) * scale);
    store(weights, results, first, n, is_aligned);
}

}  // namespace

void dequantize_weights(const Context& ctx, const Tensor& weights, const Tensor& words, WeightFormat format) {
    const std::int64_t n = weights.elements();
    const QuantizedLayout layout = quantized_layout(format, n);
    const auto is_aligned = [](const Tensor& x, std::uintptr_t alignment) {
        return reinterpret_cast<std::uintptr_t>(x.raw_data()) % alignment == 0;
    };
    check(is_aligned(words, elements_per_thread), "dequantize_weights: words ", words,
          " are not aligned to 8 bytes");
    visit_floating(weights.dtype(), [&](auto tag) {
        using Weight = typename decltype(tag)::type;
        const auto kernel = format == WeightFormat::nf4 ? nf4_kernel<Weight> : int8_kernel<Weight>;
        launch(ctx, kernel, blocks_for(ceil_div(n, elements_per_thread), threads_per_block),
               Block{.threads = threads_per_block, .starts_early = true}, weights.data<Weight>(),
               static_cast<const std::int32_t*>(words.data<std::int32_t>()), layout, n,
               is_aligned(weights, alignof(ThreadWeights<Weight>)));
    });
}

}  // namespace gradtile::cuda
