#pragma once
/// How the layers' kernels are launched: on the context's stream, checked.
#include <algorithm>

#include <gradtile/core/context.h>
#include <gradtile/core/cuda_check.h>

namespace gradtile::cuda {

/// What a block is made of.
struct Block {
    unsigned threads;
    std::size_t shared_bytes = 0;  ///< beside the kernel's own arrays
};

/// kernel(arguments...) on `grid` blocks.
template <class... Parameters, class... Arguments>
void launch(const Context& ctx, void (*kernel)(Parameters...), dim3 grid, Block block,
            Arguments&&... arguments) {
    constexpr std::size_t always_granted = 48 << 10;
    use_device(ctx.device());
    if (block.shared_bytes > always_granted)
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(block.shared_bytes)));
    kernel<<<grid, block.threads, block.shared_bytes, static_cast<cudaStream_t>(ctx.stream())>>>(
        std::forward<Arguments>(arguments)...);
    cuda_check(cudaGetLastError());
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
    return (a + b - 1) / b;
}

/// Blocks along a grid's first axis for `items` pieces of work, `per_block` in each.
inline dim3 blocks_for(std::int64_t items, std::int64_t per_block) {
    const std::int64_t blocks = ceil_div(items, per_block);
    check(blocks <= 0x7fffffff, "cuda: ", items, " pieces of work are more than one launch takes");
    return dim3(static_cast<unsigned>(std::max<std::int64_t>(1, blocks)));
}

}  // namespace gradtile::cuda
