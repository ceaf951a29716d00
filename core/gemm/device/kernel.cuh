#pragma once
/// Matrix products with Hopper's asynchronous products and copies, and with an epilogue: a functor that
/// computes the results from the sums while they are in registers.
///
/// The kernel is persistent: a thread block computes one result tile after the other. Its producer thread
/// (producer.cuh) copies A and B blocks to a ring in shared memory, also those for the next tiles. The
/// consumers (consumer.cuh) multiply them and compute the epilogue (tile_epilogue.cuh). Each consumer warp
/// stores its results through its own buffers, so that no warp waits for another one in the epilogue. If the
/// epilogue reads matrices, the two consumers compute tiles in turns, and their warps with the same rows
/// share buffers: while one consumer computes its epilogue, the inputs for the other consumer's next tile are
/// loaded. policy.cuh has the shared memory layout.
///
/// An epilogue has these members:
///   Element       bfloat16 or float16: the type of all matrices and of the bias
///   products      1, or 2: a tile has columns of a b[0] and the same columns of a b[1], half each
///   outputs       how many matrices it stores; all have the shape of one product
///   inputs        how many matrices of this shape it reads
///   has_bias      whether a bias is added to each row before begin(); zeros when there is none
///   sums_columns  whether the first output's columns are summed, after rounding
///   symmetric     whether A and B are the same matrices and the results are symmetric (symmetric.cuh)
///   Step          what begin() passes on to end()
///   begin(step, x, in), end(out, step, x, in)  compute eight elements of each output. out[i] = the elements
///                 of output i in pairs of neighbouring columns, packed; x[i] = the sums of product i at
///                 these elements; in[i] = the elements of input i, packed. The second pair is 8 rows below
///                 the first one, the third pair 8 columns to the right, the fourth pair both. begin() for
///                 the next elements may run before end() for these ones. If the result is symmetric, end()
///                 has one more argument: the row minus the column of the first element.
#include <cstdint>

#include <gradtile/core/cuda/device/cluster_copy.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>
#include <gradtile/core/gemm/device/consumer.cuh>
#include <gradtile/core/gemm/device/parameters.cuh>
#include <gradtile/core/gemm/device/policy.cuh>
#include <gradtile/core/gemm/device/producer.cuh>
#include <gradtile/core/gemm/device/ring.cuh>

namespace gradtile::cuda::device {

template <class Policy>
__global__ void __cluster_dims__(Policy::tiles.cluster, 1, 1) __launch_bounds__(ProductTiles::threads, 1)
    product_kernel(const __grid_constant__ ProductParameters<typename Policy::Epilogue> p) {
    constexpr ProductTiles tiles = Policy::tiles;
    extern __shared__ __align__(1024) unsigned char shared[];
    const std::uint32_t base = shared_address(shared);
    if (threadIdx.x == 0) {
        constexpr int releases = 4 * (tiles.in_turns ? 1 : tiles.consumers) * tiles.cluster;
        for (int stage = 0; stage < Policy::stages; ++stage) {
            full_barrier<Policy>(base, stage).initialize(1);
            empty_barrier<Policy>(base, stage).initialize(releases);
        }
        if constexpr (Policy::has_inputs)
            for (int i = 0; i < 4 * tiles.consumers * Policy::unit_buffers; ++i)
                Barrier(base + Policy::with_memory + i * 8).initialize(1);
        publish_barriers();
    }
    if constexpr (tiles.cluster == 1) {
        __syncthreads();
    } else {
        wait_for_cluster();
    }
    await_predecessor();
    const int warpgroup = warpgroup_index(), rank = tiles.cluster == 1 ? 0 : rank_in_cluster();
    if (warpgroup == tiles.consumers) {
        release_registers_down_to<tiles.producer_registers>();
        if (threadIdx.x == tiles.consumers * warpgroup_threads) produce<Policy>(p, base, rank);
    } else {
        take_registers_up_to<tiles.consumer_registers>();
        ProductConsumer<Policy>(p, base, warpgroup).consume(rank);
    }
    // A thread block's shared memory must exist until no other block in the cluster writes to it.
    if constexpr (tiles.cluster > 1) wait_for_cluster();
}

}  // namespace gradtile::cuda::device
