#pragma once
/// How the warps of a GPU's thread block divide a score tile: FlashAttention's "split K" against
/// FlashAttention-2's "split Q" (Dao 2023, section 3.3), and the thread-block order. One forward kernel for
/// 16-bit numbers has all variants, so that nothing else differs between them. The operator's own kernels
/// split Q.
#include <cstdint>

#include <gradtile/core/tensor.h>

namespace gradtile::attention::lab {

enum class WarpPartition : std::uint8_t {
    split_q,  ///< a warp takes some rows and all keys in the tile; warps exchange nothing
    split_k   ///< a warp takes all rows and some keys; warps exchange maxima, sums and partial O
};
enum class GridOrder : std::uint8_t {
    blocks_fastest,  ///< (batch, head, row block): neighbouring thread blocks read the same K and V
    heads_fastest    ///< (row block, batch, head)
};

/// The kernel's tile sizes.
inline constexpr std::int64_t partition_warps = 4, partition_rows = 64, partition_keys = 64;

/// Bytes that the warps of all thread blocks load from and store to shared memory. A number that several
/// lanes of a warp load at the same time counts once; copies from global memory are not included.
struct SharedTraffic {
    std::int64_t loads = 0, stores = 0;
};
/// Returns the bytes for a call without a mask. `heads` counts all heads in the batch: batch x heads per
/// sequence.
SharedTraffic shared_traffic(WarpPartition partition, std::int64_t heads, std::int64_t queries,
                             std::int64_t keys, std::int64_t head_dim);

/// Computes O [B, Sq, H, D] and LSE [B, H, Sq], in float32, from q [B, Sq, H, D], k and v [B, Sk, H, D] on a
/// GPU, with the scale 1 / sqrt(D). bfloat16 or float16, contiguous; D is 64 or 128. Throws Error on other
/// tensors.
void partitioned_forward(const Context& ctx, WarpPartition partition, GridOrder order, const Tensor& q,
                         const Tensor& k, const Tensor& v, bool causal, const Tensor& o, const Tensor& lse);

}  // namespace gradtile::attention::lab
