#pragma once
/// Parts that the memory_efficient and flash1 kernels share: a head's score rule in shared memory, and
/// functions that write results to global memory.
#include <gradtile/attention/cuda/literature/parameters.h>
#include <gradtile/attention/cuda/common/score_rule.cuh>
#include <gradtile/core/cuda/device/convert.cuh>

namespace gradtile::attention::cuda::tiled {

using namespace device;

/// Shared memory for one head's rule.
template <class A>
struct RuleInShared {
    alignas(8) unsigned char bytes[sizeof(ScoreRule<A>)];

    /// One thread calls this function; a barrier must follow.
    __device__ __forceinline__ void set(const ScoreRule<A>& rule) {
        *reinterpret_cast<ScoreRule<A>*>(bytes) = rule;
    }
    __device__ __forceinline__ const ScoreRule<A>& get() const {
        return *reinterpret_cast<const ScoreRule<A>*>(bytes);
    }
};

/// How scores follow from products; the same for all pairs in a head.
template <class A>
struct Scoring {
    const DeviceMask& mask;
    const ScoreRule<A>* rule;  ///< null if scores are products
    A scale;
};

/// Matrix rows that a tile covers.
template <class T>
struct RowsInMemory {
    T* first;
    std::int64_t stride;
    int rows, columns;  ///< rows and columns that exist
};
template <class T>
__device__ __forceinline__ RowsInMemory<T> rows_from(const StridedRows<T>& x, int first, int end,
                                                     int columns) {
    return {x.row(first), x.stride, end - first, columns};
}

/// Shared-memory tiles for one backward step: the inputs, then P and dS, which compute_pairs() writes.
template <class Address>
struct StepTiles {
    Address q, d_o, k, v;
    Address p, d_s;
};

/// How a sum is written to memory. `add` requires that no other thread adds to the element.
enum class Write : std::uint8_t { store, add, add_atomically };

template <Write write, class A>
__device__ __forceinline__ void put(A* to, A value) {
    if constexpr (write == Write::store) {
        *to = value;
    } else if constexpr (write == Write::add) {
        *to += value;
    } else {
        atomicAdd(to, value);
    }
}
/// Like put(), for two adjacent numbers at an 8-byte-aligned address.
template <Write write>
__device__ __forceinline__ void put_pair(float* to, float first, float second) {
    if constexpr (write == Write::store) {
        *reinterpret_cast<float2*>(to) = {first, second};
    } else if constexpr (write == Write::add) {
        const float2 old = *reinterpret_cast<const float2*>(to);
        *reinterpret_cast<float2*>(to) = {old.x + first, old.y + second};
    } else {
#if __CUDA_ARCH__ >= 900
        asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(first), "f"(second)
                     : "memory");
#else
        atomicAdd(to, first);
        atomicAdd(to + 1, second);
#endif
    }
}

}  // namespace gradtile::attention::cuda::tiled
