#pragma once
/// Checked kernel launches on the context's stream. A kernel may start before its predecessor in the stream
/// has ended.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <gradtile/core/context.h>
#include <gradtile/core/internal/cuda_check.h>

/// The first PTX version (cudaFuncAttributes::ptxVersion: __CUDA_ARCH__ / 10) whose kernels can wait for the
/// previous kernel.
#define GRADTILE_FIRST_WAITING_ARCHITECTURE 90

namespace gradtile::cuda {

/// A thread block's resources.
struct Block {
    unsigned threads;
    std::size_t shared_bytes = 0;  ///< dynamic shared memory, in addition to the kernel's arrays
    bool starts_early = false;     ///< the kernel begins with await_predecessor()
    unsigned cluster = 1;          ///< blocks per cluster, at most 8, along the grid's first axis
};

namespace device {

/// The first call in a kernel that starts early. The kernel's blocks start while the preceding kernel's last
/// blocks still run; this call waits until all writes of that kernel are visible. Every block must call this
/// function: otherwise the kernel after this one might run before the preceding kernel has ended. Code for
/// older architectures cannot wait; see starts_early().
__device__ __forceinline__ void await_predecessor() {
#if __CUDA_ARCH__ >= GRADTILE_FIRST_WAITING_ARCHITECTURE * 10
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace device

/// Whether a kernel that begins with await_predecessor() may start early on the current device. The kernel's
/// own code decides, not the device: code for an older architecture, compiled by the driver for a newer GPU,
/// does not contain the instruction that waits.
inline bool starts_early(const void* kernel) {
    int device = 0;
    cuda_check(cudaGetDevice(&device));
    thread_local std::map<std::pair<const void*, int>, bool> known;  // asking CUDA takes longer than a launch
    const auto [entry, is_new] = known.try_emplace({kernel, device}, false);
    if (is_new) {
        cudaFuncAttributes attributes{};
        const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        if (error != cudaSuccess) known.erase(entry);
        cuda_check(error);
        entry->second = attributes.ptxVersion >= GRADTILE_FIRST_WAITING_ARCHITECTURE;
    }
    return entry->second;
}

/// How many multiprocessors the context's device has.
inline int processors_of(const Context& ctx) {
    int count = 0;
    cuda_check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ctx.device().index()));
    return count;
}

/// Allows the kernel the block's dynamic shared memory.
inline void grant_shared_memory(const void* kernel, const Block& block) {
    // Every kernel may use 48 KB of shared memory without an attribute, including its own arrays.
    constexpr std::size_t surely_granted = 32 << 10;
    if (block.shared_bytes > surely_granted)
        cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(block.shared_bytes)));
}

/// Launches kernel(arguments...) with `grid` blocks on the current device. The grid's first axis must be a
/// multiple of block.cluster, which is 1 for kernels without has_clusters() (cluster.cuh).
template <class... Parameters, class... Arguments>
void launch_on(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, Block block,
               Arguments&&... arguments) {
    grant_shared_memory(reinterpret_cast<const void*>(kernel), block);
    std::array<cudaLaunchAttribute, 2> attributes{};
    unsigned count = 0;
    if (block.starts_early && starts_early(reinterpret_cast<const void*>(kernel))) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (block.cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count++].val.clusterDim = {.x = block.cluster, .y = 1, .z = 1};
    }
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(block.threads);
    config.dynamicSmemBytes = block.shared_bytes;
    config.stream = stream;
    config.attrs = attributes.data();
    config.numAttrs = count;
    cuda_check(cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...));
}

/// Launches kernel(arguments...) on the context's device and stream.
template <class... Parameters, class... Arguments>
void launch(const Context& ctx, void (*kernel)(Parameters...), dim3 grid, Block block,
            Arguments&&... arguments) {
    use_device(ctx.device());
    launch_on(static_cast<cudaStream_t>(ctx.stream()), kernel, grid, block,
              std::forward<Arguments>(arguments)...);
}

/// A grid whose first axis has enough blocks for `items` work items, `per_block` in each block.
inline dim3 blocks_for(std::int64_t items, std::int64_t per_block) {
    const std::int64_t blocks = ceil_div(items, per_block);
    check(blocks <= 0x7fffffff, "cuda: ", items, " pieces of work are too many for one launch");
    return dim3(static_cast<unsigned>(std::max<std::int64_t>(1, blocks)));
}

}  // namespace gradtile::cuda
