#pragma once
/// Views of [B, S, H, D] tensors for kernels. The last stride is 1; the other strides may have any value.
#include <cstdint>
#include <type_traits>

#include <gradtile/attention/internal/strided_rows.h>
#include <gradtile/core/tensor.h>

namespace gradtile::attention::cuda::device {

template <class T>
struct TensorView {
    T* data;
    std::int64_t batch_stride, row_stride, head_stride;
    __device__ __forceinline__ StridedRows<T> head(std::int64_t batch, std::int64_t head) const {
        return {data + batch * batch_stride + head * head_stride, row_stride};
    }
};

/// Returns a view: tensor_view<const float>(q) to read, tensor_view<float>(o) to write. T may also be an
/// unsigned integer with the elements' size, for kernels that work with bits.
template <class T>
TensorView<T> tensor_view(const Tensor& x) {
    return {reinterpret_cast<T*>(x.raw_data()), x.stride(0), x.stride(1), x.stride(2)};
}

/// Whether kernels can read and write rows in `bytes`-byte vectors: a row's elements are adjacent, and every
/// row's address and length are divisible by `bytes`.
inline bool has_vector_rows(const Tensor& x, std::int64_t bytes = 16) {
    const std::int64_t elements = bytes / static_cast<std::int64_t>(size_of(x.dtype()));
    bool result = x.stride(3) == 1 && x.size(3) % elements == 0 &&
                  reinterpret_cast<std::uintptr_t>(x.raw_data()) % static_cast<std::uintptr_t>(bytes) == 0;
    for (const int axis : {0, 1, 2}) result = result && (x.size(axis) <= 1 || x.stride(axis) % elements == 0);
    return result;
}

/// Sizes that all kernels in a call need.
struct Sizes {
    int heads, group;  ///< the query heads, and how many share a K/V head
    int qk_dim, v_dim;
};
inline Sizes sizes_of(const Tensor& q, const Tensor& k, const Tensor& v) {
    const std::int64_t group = k.size(2) == 0 ? 1 : q.size(2) / k.size(2);
    return {static_cast<int>(q.size(2)), static_cast<int>(group), static_cast<int>(q.size(3)),
            static_cast<int>(v.size(3))};
}

}  // namespace gradtile::attention::cuda::device
