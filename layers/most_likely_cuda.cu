// most_likely.h on the GPU: one thread block per row.
#include <gradtile/core/tensor.h>
#include <gradtile/layers/internal/most_likely_backend.h>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/reduce.cuh>

namespace gradtile::cuda {
namespace {

constexpr int argmax_threads = 1024;

/// A logit and its index in one integer. The integers are ordered by logit; if logits are equal, the smaller
/// index has the larger integer.
using Candidate = unsigned long long;

__device__ __forceinline__ Candidate candidate(float logit, unsigned index) {
    // Compared as unsigned integers, the bits have the order of the floats if all bits of negative floats are
    // inverted, and the sign bit of the others is set. -0 equals 0.
    const unsigned bits = __float_as_uint(logit == 0 ? 0.0f : logit);
    const unsigned ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return static_cast<Candidate>(ordered) << 32 | ~index;
}

struct Largest {
    __device__ __forceinline__ Candidate operator()(Candidate a, Candidate b) const { return a > b ? a : b; }
};

__global__ void __launch_bounds__(argmax_threads)
    most_likely_kernel(std::int32_t* tokens, const float* logits, std::int64_t stride, unsigned vocabulary) {
    constexpr int unroll = 8;
    device::await_predecessor();
    const float* const x = logits + blockIdx.x * stride;
    Candidate best = 0;
    bool finite = true;
    for (unsigned first = threadIdx.x; first < vocabulary; first += unroll * argmax_threads) {
        float values[unroll];
#pragma unroll
        for (int k = 0; k < unroll; ++k) {
            const unsigned i = first + k * argmax_threads;
            values[k] = x[i < vocabulary ? i : first];
        }
#pragma unroll
        for (int k = 0; k < unroll; ++k) {
            const unsigned i = first + k * argmax_threads;
            finite = finite && isfinite(values[k]);
            best = Largest{}(best, candidate(values[k], i < vocabulary ? i : first));
        }
    }
    finite = __syncthreads_and(finite) != 0;
    best = device::reduce_team<argmax_threads>(best, Largest{});
    if (threadIdx.x == 0)
        tokens[blockIdx.x] = finite ? static_cast<std::int32_t>(~static_cast<unsigned>(best)) : -1;
}

}  // namespace

void most_likely_tokens(const Context& ctx, const Tensor& tokens, const Tensor& logits) {
    check(logits.size(1) < 0x7fffffff, "most_likely_tokens: logits ", logits, " have too many columns");
    launch(ctx, most_likely_kernel, blocks_for(logits.size(0), 1),
           Block{.threads = argmax_threads, .starts_early = true}, tokens.data<std::int32_t>(),
           static_cast<const float*>(logits.data<float>()), logits.stride(0),
           static_cast<unsigned>(logits.size(1)));
}

}  // namespace gradtile::cuda
