#pragma once
/// Box copies for data that a kernel reads or writes once. The L2 cache evicts these lines before others, so
/// that a large stream does not displace operands that are read again. PTX ISA 9.7.9.18 "createpolicy".
#include <cstdint>

#include <gradtile/core/cuda/device/tensor_copy.cuh>

namespace gradtile::cuda::device {

/// The result of createpolicy.fractional.L2::evict_first.b64 with a fraction of 1.
inline constexpr std::uint64_t evict_first = 0x12F0000000000000ull;

/// As load_box().
__device__ __forceinline__ void load_streamed_box(std::uint32_t to, const TensorMap& map,
                                                  BoxPosition position, Barrier barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
        "l"(&map), "r"(position.column), "r"(position.row), "r"(position.head), "r"(position.batch),
        "r"(barrier.memory()), "l"(evict_first)
        : "memory");
}
/// As store_box().
__device__ __forceinline__ void store_streamed_box(const TensorMap& map, BoxPosition position,
                                                   std::uint32_t from) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%1, %2, %3, %4}], [%5], "
        "%6;" ::"l"(&map),
        "r"(position.column), "r"(position.row), "r"(position.head), "r"(position.batch), "r"(from),
        "l"(evict_first)
        : "memory");
}

}  // namespace gradtile::cuda::device
