#pragma once
/// INTERNAL. One head of a [B, S, H, D] tensor as kernels see it, on the CPU and on the GPU.
#include <cstdint>

#include <gradtile/attention/mask.h>

namespace gradtile::attention {

/// A [length, columns] matrix: rows `stride` elements apart (any value, 0 included), columns adjacent.
template <class T>
struct StridedRows {
    T* data = nullptr;
    std::int64_t stride = 0;
    GRADTILE_ATTENTION_INLINE T* row(std::int64_t i) const { return data + i * stride; }
};

}  // namespace gradtile::attention
