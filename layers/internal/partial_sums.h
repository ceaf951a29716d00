#pragma once
/// The last step in computing the gradients of weights that all rows share: adds the row blocks' partial
/// sums. layers/device/partial_sums.cuh is the same on the GPU.
#include <algorithm>
#include <array>

#include <gradtile/core/parameter_store.h>

namespace gradtile::cpu {

/// Adds the partial sums [parts, 2, columns] to totals[d] [columns], in part order. First sets totals[d] to 0
/// unless it accumulates. Skips undefined totals.
template <class S>
void add_partials(const std::array<GradientTarget, 2>& totals, const Tensor& partials) {
    const std::int64_t parts = partials.size(0), columns = partials.size(2);
    for (std::size_t d = 0; d < totals.size(); ++d) {
        if (!totals[d].grad.defined()) continue;
        S* __restrict total = totals[d].grad.data<S>();
        if (!totals[d].accumulates()) std::fill_n(total, columns, S(0));
        for (std::int64_t part = 0; part < parts; ++part) {
            const S* __restrict sums =
                partials.data<S>() + (2 * part + static_cast<std::int64_t>(d)) * columns;
            for (std::int64_t i = 0; i < columns; ++i) total[i] += sums[i];
        }
    }
}

}  // namespace gradtile::cpu
