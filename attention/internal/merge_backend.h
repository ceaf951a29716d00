#pragma once
/// INTERNAL. The functions that each device implements for merge(). All O have a batch axis and adjacent
/// columns; all LSE are contiguous [B, Hq, Sq].
#include <cmath>
#include <limits>

#include <gradtile/attention/attention.h>
#include <gradtile/core/host_device.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile::attention {

/// The factors for two parts' O in a row, and the merged LSE.
template <class A>
struct MergedRow {
    A weight_a = 0, weight_b = 0;
    A lse = -std::numeric_limits<A>::infinity();

    GRADTILE_HOST_DEVICE MergedRow(A lse_a, A lse_b) {
        if (lse_a == lse && lse_b == lse) return;  // both, because a NaN is not less than -inf
        const A largest = lse_a > lse_b ? lse_a : lse_b;
        const A a = std::exp(lse_a - largest), b = std::exp(lse_b - largest), sum = a + b;
        weight_a = a / sum;
        weight_b = b / sum;
        lse = largest + std::log(sum);
    }
    /// An element of the merged O. A part without keys adds nothing, whatever its O holds.
    GRADTILE_HOST_DEVICE A element(A a, A b) const {
        return (weight_a == 0 ? 0 : weight_a * a) + (weight_b == 0 ? 0 : weight_b * b);
    }
};

using MergeFunction = void(const Context& ctx, const PartialResult& into, const PartialResult& a,
                           const PartialResult& b);
namespace cpu {
MergeFunction merge;
}
namespace cuda {
GRADTILE_CUDA_TWIN(merge);
}

}  // namespace gradtile::attention
