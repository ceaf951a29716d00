#pragma once
/// Thread block clusters: neighbouring grid blocks that run at the same time and store into each other's
/// shared memory. In code that was compiled for an architecture before Hopper, a cluster has one block.
#include <map>
#include <tuple>

#include <gradtile/core/cuda/device/async_copy.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/mbarrier.cuh>
#include <gradtile/core/cuda/device/packed.cuh>

namespace gradtile::cuda {
namespace device {

#if __CUDA_ARCH__ >= GRADTILE_FIRST_WAITING_ARCHITECTURE * 10
#define GRADTILE_HAS_CLUSTERS
#endif

/// Receives values from the blocks in a cluster. Senders store values asynchronously into the receiver's
/// shared memory, and an mbarrier there counts the stored bytes. So neither sender nor receiver waits for
/// other memory accesses, as they would at a cluster barrier. A block may end when it has received its own
/// values.
///
/// send() needs a launch as a cluster, also if the cluster has one block: in a kernel that is launched
/// without clusters, st.async is an illegal instruction. launch() with Block::cluster 1 launches without
/// clusters.
///
/// Thread 0 calls initialize() and then every thread begin(). After every thread has called
/// await_all_begun(), any thread may send. Thread 0 calls expect() once.
class ClusterReceiver {
  public:
    /// `barrier` must have the same shared-memory address in all blocks.
    __device__ __forceinline__ explicit ClusterReceiver(std::uint64_t* barrier)
        : barrier_(shared_address(barrier)) {}

    __device__ __forceinline__ void initialize() const {
#ifdef GRADTILE_HAS_CLUSTERS
        barrier_.initialize(1);
        publish_barriers();
#endif
    }
    __device__ __forceinline__ void begin() const {
#ifdef GRADTILE_HAS_CLUSTERS
        asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
    }
    __device__ __forceinline__ void await_all_begun() const {
#ifdef GRADTILE_HAS_CLUSTERS
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
    }
    /// `bytes` is the total size of the values that this block receives.
    __device__ __forceinline__ void expect(int bytes) const {
#ifdef GRADTILE_HAS_CLUSTERS
        barrier_.arrive_and_expect(bytes);
#endif
    }
    /// Stores the value in block `rank`'s shared memory, at the address that `own` has in this block.
    __device__ __forceinline__ void send(Packed<float, 4>* own, int rank,
                                         const Packed<float, 4>& value) const {
#ifdef GRADTILE_HAS_CLUSTERS
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
            "[%5];" ::"r"(in_block(shared_address(own), rank)),
            "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3]), "r"(in_block(barrier_.memory(), rank))
            : "memory");
#endif
    }
    __device__ __forceinline__ void send(float2* own, int rank, float2 value) const {
#ifdef GRADTILE_HAS_CLUSTERS
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                in_block(shared_address(own), rank)),
            "f"(value.x), "f"(value.y), "r"(in_block(barrier_.memory(), rank))
            : "memory");
#endif
    }
    /// Waits for the expected bytes.
    __device__ __forceinline__ void wait() const {
#ifdef GRADTILE_HAS_CLUSTERS
        barrier_.wait(0);
#endif
    }

  private:
    __device__ __forceinline__ static std::uint32_t in_block(std::uint32_t address, int rank) {
        std::uint32_t mapped = 0;
#ifdef GRADTILE_HAS_CLUSTERS
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
#endif
        return mapped;
    }
    Barrier barrier_;
};

}  // namespace device

/// Whether a kernel may be launched with clusters on the current device.
inline bool has_clusters(const void* kernel) {
    return starts_early(kernel);  // Hopper introduced clusters and early starts
}

/// How many clusters of block.cluster blocks run at the same time on the current device, for a kernel with
/// has_clusters().
inline int clusters_at_once(const void* kernel, const Block& block) {
    int device = 0;
    cuda_check(cudaGetDevice(&device));
    thread_local std::map<std::tuple<const void*, unsigned, int>, int>
        known;  // asking takes longer than a launch
    if (const auto entry = known.find({kernel, block.cluster, device}); entry != known.end())
        return entry->second;
    grant_shared_memory(kernel, block);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {.x = block.cluster, .y = 1, .z = 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(block.cluster);
    config.blockDim = dim3(block.threads);
    config.dynamicSmemBytes = block.shared_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int count = 0;
    cuda_check(cudaOccupancyMaxActiveClusters(&count, kernel, &config));
    return known[{kernel, block.cluster, device}] = count;
}

}  // namespace gradtile::cuda
