#pragma once
/// Copies tensor boxes between global and shared memory with the tensor memory accelerator (TMA, sm_90). One
/// thread starts a copy; the hardware computes the addresses and swizzles them. Box elements outside the
/// tensor are read as zeros and not written. PTX ISA 9.7.9.25 "cp.async.bulk.tensor".
#include <cstdint>

#include <gradtile/core/cuda/internal/tensor_map.h>
#include <gradtile/core/cuda/device/mbarrier.cuh>

namespace gradtile::cuda::device {

/// A box's first element in a [B, S, H, D] tensor.
struct BoxPosition {
    int column, row, head, batch;
};

/// Rows [first, first + length) in a tensor with `total` rows.
struct PackedRows {
    int total, first, length;
};
/// Returns a box's first element in a packed_tensor_map(). `row` counts from the sequence's first row.
__device__ __forceinline__ BoxPosition packed_box(const PackedRows& sequence, int column, int row, int head) {
    return {column, sequence.total - sequence.length + row, head, sequence.first + sequence.length};
}

/// Starts a load. `barrier` counts all bytes in the box, also for elements outside the tensor.
__device__ __forceinline__ void load_box(std::uint32_t to, const TensorMap& map, BoxPosition position,
                                         Barrier barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, "
        "%5}], [%6];" ::"r"(to),
        "l"(&map), "r"(position.column), "r"(position.row), "r"(position.head), "r"(position.batch),
        "r"(barrier.memory())
        : "memory");
}

/// Starts to copy `bytes` adjacent bytes; addresses and length are multiples of 16.
__device__ __forceinline__ void load_bytes(std::uint32_t to, const void* from, int bytes, Barrier barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier.memory())
        : "memory");
}

/// Starts a store. Before this call, every thread that wrote to `from` must call publish_shared_writes(), and
/// a barrier must follow that these threads and this thread share.
__device__ __forceinline__ void store_box(const TensorMap& map, BoxPosition position, std::uint32_t from) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(&map),
        "r"(position.column), "r"(position.row), "r"(position.head), "r"(position.batch), "r"(from)
        : "memory");
}
/// Starts to add adjacent float32 numbers, `bytes` bytes in all, to global memory; addresses and length are
/// multiples of 16. The conditions of store_box() apply, and the addition belongs to the thread's store
/// group.
__device__ __forceinline__ void add_floats(float* to, std::uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(from), "r"(bytes)
                 : "memory");
}
/// Closes the group of stores that this thread started since the last call.
__device__ __forceinline__ void commit_stores() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until all store groups of this thread, except the latest `groups`, have read shared memory.
template <int groups = 0>
__device__ __forceinline__ void wait_until_stores_have_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(groups) : "memory");
}

/// Waits until all store groups of this thread, except the latest `groups`, are complete; this thread then
/// sees the stored data.
template <int groups>
__device__ __forceinline__ void await_stores() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(groups) : "memory");
}
/// Orders accesses to global memory by this thread before and after accesses by its asynchronous copies,
/// which use another path to memory (the "async proxy").
__device__ __forceinline__ void order_with_copies() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/// Orders this thread's earlier writes to shared memory before later accesses by asynchronous copies and by
/// wgmma, which use another path to memory (the "async proxy").
__device__ __forceinline__ void publish_shared_writes() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Loads a tensor map before its first use.
__device__ __forceinline__ void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace gradtile::cuda::device
