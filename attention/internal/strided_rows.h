#pragma once
/// INTERNAL. A view of one head in a [B, S, H, D] tensor, for kernels on the CPU and on the GPU.
#include <cstdint>

#include <gradtile/attention/mask.h>

namespace gradtile::attention {

/// A matrix [length, columns]. Its rows are `stride` elements apart (any value, including 0); a row's
/// elements are adjacent.
template <class T>
struct StridedRows {
    T* data = nullptr;
    std::int64_t stride = 0;
    GRADTILE_ATTENTION_INLINE T* row(std::int64_t i) const { return data + i * stride; }
};

}  // namespace gradtile::attention
