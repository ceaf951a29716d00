#pragma once
/// Compares losses and gradients whose sums have other orders.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/core/dtype.h>

namespace gradtile::test {

/// The bound allows about a thousand roundings, each that of the largest expected number in the dtype.
inline void expect_equal_sums(const std::vector<double>& found, const std::vector<double>& expected,
                              DType dtype) {
    double largest = 0;
    for (const double x : expected) largest = std::max(largest, std::abs(x));
    const double bound = 1000 * (dtype == DType::f64 ? 0x1p-53 : 0x1p-24) * largest;
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], bound) << i;
}

}  // namespace gradtile::test
