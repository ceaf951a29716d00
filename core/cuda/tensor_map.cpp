#include <gradtile/core/cuda/internal/tensor_map.h>

#include <algorithm>

#include <gradtile/core/cuda/internal/cuda_check.h>

namespace gradtile::cuda {
namespace {

constexpr std::int64_t element_bytes = 2;

/// The driver's function. Programs are not linked with the driver, so that they start on machines without it.
auto encode_function() {
    using Encode = decltype(&cuTensorMapEncodeTiled);
    static const auto encode = [] {
        void* found = nullptr;
        cudaDriverEntryPointQueryResult result{};
        cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                    cudaEnableDefault, &result));
        check(result == cudaDriverEntryPointSuccess, "cuda: the driver has no cuTensorMapEncodeTiled");
        return reinterpret_cast<Encode>(found);
    }();
    return encode;
}

}  // namespace

bool has_tensor_map(const Tensor& x) {
    const auto is_aligned = [](std::int64_t elements) { return elements * element_bytes % 16 == 0; };
    const auto fits = [&](int axis) {
        const std::int64_t stride = x.stride(axis);
        return x.size(axis) <= 1 || (stride > 0 && is_aligned(stride) && stride < std::int64_t{1} << 38);
    };
    return (x.stride(3) == 1 || x.size(3) == 1) && fits(0) && fits(1) && fits(2) &&
           reinterpret_cast<std::uintptr_t>(x.raw_data()) % 16 == 0;
}

TensorMap tensor_map(const Tensor& x, int rows, Swizzle swizzle) {
    // The axes from the innermost one on: columns, rows, heads, batches.
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(x.size(3)), static_cast<cuuint64_t>(x.size(1)),
                                static_cast<cuuint64_t>(x.size(2)), static_cast<cuuint64_t>(x.size(0))};
    cuuint64_t strides[3];
    for (int i = 0; i < 3; ++i) {
        constexpr int axes[] = {1, 2, 0};
        // An axis of length 1 may have any stride, which TMA would reject although it never uses it.
        strides[i] = x.size(axes[i]) <= 1 ? 16 : static_cast<cuuint64_t>(x.stride(axes[i]) * element_bytes);
    }
    const bool narrow = swizzle == Swizzle::of_64_bytes;
    const cuuint32_t box[] = {narrow ? 32u : 64u, static_cast<cuuint32_t>(rows), 1, 1};
    const cuuint32_t steps[] = {1, 1, 1, 1};
    TensorMap map;
    const CUresult result = encode_function()(
        &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, x.raw_data(), sizes, strides, box, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, narrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    check(result == CUDA_SUCCESS, "cuda: no tensor map for ", x.shape(), ": error ",
          static_cast<int>(result));
    return map;
}

}  // namespace gradtile::cuda
