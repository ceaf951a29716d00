#pragma once
/// The floating dtypes, for tests that cover them all, and their rounding errors.
#include <gradtile/core/dtype.h>

namespace gradtile::test {

inline constexpr DType floating_dtypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};

/// Distance from 1 to the dtype's next number: twice the largest relative error from one rounding.
constexpr double epsilon_of(DType type) {
    switch (type) {
        case DType::f64:
            return 0x1p-52;
        case DType::f32:
            return 0x1p-23;
        case DType::bf16:
            return 0x1p-7;
        default:
            return 0x1p-10;
    }
}

/// Returns the number of dtype `type` that is nearest to `value`.
inline double rounded(double value, DType type) {
    return visit_floating(type, [&]<class T>(TypeTag<T>) { return convert<double>(convert<T>(value)); });
}

}  // namespace gradtile::test
