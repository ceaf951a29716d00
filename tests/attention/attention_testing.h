#pragma once
/// Includes and names that all attention tests use.
#include <cmath>
#include <optional>
#include <ostream>
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/attention/accuracy.h>
#include <gradtile/attention/cpu/selection.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/floating_dtypes.h>

namespace gradtile::attention::test {

using namespace accuracy;
using gradtile::test::floating_dtypes;
inline constexpr Algorithm algorithms[] = {Algorithm::flash2, Algorithm::naive, Algorithm::memory_efficient,
                                           Algorithm::flash1};
/// The algorithms that have one implementation for all dtypes.
inline constexpr Algorithm tiled_algorithms[] = {Algorithm::memory_efficient, Algorithm::flash1};
inline bool is_tiled(Algorithm algorithm) {
    return std::ranges::find(tiled_algorithms, algorithm) != std::end(tiled_algorithms);
}
inline constexpr Algorithm packed_algorithms[] = {Algorithm::flash2, Algorithm::naive};

}  // namespace gradtile::attention::test
