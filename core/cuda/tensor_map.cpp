#include <gradtile/core/cuda/internal/tensor_map.h>

#include <gradtile/core/internal/cuda_check.h>

namespace gradtile::cuda {
namespace {

std::int64_t element_bytes(const Tensor& x) {
    return static_cast<std::int64_t>(size_of(x.dtype()));
}

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

cuuint64_t length_of(const Tensor& x, int axis) {
    return static_cast<cuuint64_t>(x.size(axis));
}
/// An axis stride in bytes. A length-1 axis may have any stride, which TMA would reject although it never
/// uses it.
cuuint64_t bytes_between(const Tensor& x, int axis) {
    return x.size(axis) <= 1 ? 16 : static_cast<cuuint64_t>(x.stride(axis) * element_bytes(x));
}

/// The map's axes after the columns: rows, heads, batches.
struct MapAxes {
    cuuint64_t sizes[3], strides[3];
};

TensorMap encode(const Tensor& x, void* base, const MapAxes& axes, int rows, Swizzle swizzle) {
    const cuuint64_t sizes[] = {length_of(x, 3), axes.sizes[0], axes.sizes[1], axes.sizes[2]};
    const bool narrow = swizzle == Swizzle::bytes_64;
    const cuuint32_t box[] = {(narrow ? 64u : 128u) / static_cast<cuuint32_t>(element_bytes(x)),
                              static_cast<cuuint32_t>(rows), 1, 1};
    const cuuint32_t steps[] = {1, 1, 1, 1};
    TensorMap map;
    const CUresult result = encode_function()(
        &map, x.dtype() == DType::f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 4,
        base, sizes, axes.strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        narrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    check(result == CUDA_SUCCESS, "cuda: no tensor map for ", x.shape(), ": error ",
          static_cast<int>(result));
    return map;
}

}  // namespace

bool has_tensor_map(const Tensor& x) {
    const auto is_aligned = [&](std::int64_t elements) { return elements * element_bytes(x) % 16 == 0; };
    const auto fits = [&](int axis) {
        const std::int64_t stride = x.stride(axis);
        return x.size(axis) <= 1 || (stride > 0 && is_aligned(stride) && stride < std::int64_t{1} << 38);
    };
    return (x.stride(3) == 1 || x.size(3) == 1) && fits(0) && fits(1) && fits(2) &&
           reinterpret_cast<std::uintptr_t>(x.raw_data()) % 16 == 0;
}

TensorMap tensor_map(const Tensor& x, int rows, Swizzle swizzle) {
    const MapAxes axes{.sizes = {length_of(x, 1), length_of(x, 2), length_of(x, 0)},
                       .strides = {bytes_between(x, 1), bytes_between(x, 2), bytes_between(x, 0)}};
    return encode(x, x.raw_data(), axes, rows, swizzle);
}

bool has_packed_tensor_map(const Tensor& x) {
    return has_tensor_map(x) && reinterpret_cast<std::uintptr_t>(x.raw_data()) >=
                                    static_cast<std::uintptr_t>(x.size(1)) * bytes_between(x, 1);
}

TensorMap packed_tensor_map(const Tensor& x, int rows, Swizzle swizzle) {
    // A row's address is base + (row + batch) * stride, because both axes have the row stride. The row axis
    // ends at S. A sequence with `length` rows begins at row S - length on this axis, so it ends where the
    // axis ends, and the hardware cuts boxes there. The batch axis moves the sequence to its place:
    //     (S - length + r) + (first + length) = S + first + r,
    // so the base is S rows before the tensor. Nothing is read or written before the tensor.
    const cuuint64_t stride = bytes_between(x, 1);
    const MapAxes axes{.sizes = {length_of(x, 1), length_of(x, 2), length_of(x, 1) + 1},
                       .strides = {stride, bytes_between(x, 2), stride}};
    const std::uintptr_t base = reinterpret_cast<std::uintptr_t>(x.raw_data()) - length_of(x, 1) * stride;
    return encode(x, reinterpret_cast<void*>(base), axes, rows, swizzle);
}

}  // namespace gradtile::cuda
