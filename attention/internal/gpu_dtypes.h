#pragma once
/// INTERNAL. The dtypes of attention's CUDA kernels. The float16 kernels take a third of the time to build
/// the CUDA side and few programs need them, so they are an option of the build: GRADTILE_FLOAT16.
#include <gradtile/core/check.h>
#include <gradtile/core/dtype.h>

namespace gradtile::attention {

inline constexpr bool has_float16_kernels = GRADTILE_FLOAT16 != 0;

inline void require_gpu_kernels(DType dtype) {
    check(has_float16_kernels || dtype != DType::f16,
          "attention: float16 on a GPU needs a build with -DGRADTILE_FLOAT16=ON");
}

/// Calls f(TypeTag<T>{}) with the C++ type of a 16-bit dtype that has kernels.
template <class F>
decltype(auto) visit_16bit(DType dtype, F&& f) {
    require_gpu_kernels(dtype);
    if constexpr (has_float16_kernels)
        if (dtype == DType::f16) return f(TypeTag<float16>{});
    return f(TypeTag<bfloat16>{});
}

/// Calls f(TypeTag<T>{}) with the C++ type of a floating dtype that has kernels.
template <class F>
decltype(auto) visit_gpu_dtype(DType dtype, F&& f) {
    if (is_16_bit(dtype)) return visit_16bit(dtype, f);
    return dtype == DType::f64 ? f(TypeTag<double>{}) : f(TypeTag<float>{});
}

}  // namespace gradtile::attention
