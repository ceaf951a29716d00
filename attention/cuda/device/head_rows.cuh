#pragma once
/// A [B, S, H, D] tensor as kernels see it: any strides but the last, which is 1.
#include <cstdint>

#include <gradtile/core/tensor.h>

namespace gradtile::attention::cuda::device {

/// The rows of one head.
template <class T>
struct Rows {
    T* data;
    std::int64_t stride;
    __device__ __forceinline__ T* row(std::int64_t i) const { return data + i * stride; }
};

template <class T>
struct HeadRows {
    T* data;
    std::int64_t batch_stride, row_stride, head_stride;
    __device__ __forceinline__ T* head(std::int64_t batch, std::int64_t head) const {
        return data + batch * batch_stride + head * head_stride;
    }
    __device__ __forceinline__ Rows<T> of(std::int64_t batch, std::int64_t head) const {
        return {this->head(batch, head), row_stride};
    }
};

/// head_rows<const float>(q) to read, head_rows<float>(o) to write.
template <class T>
HeadRows<T> head_rows(const Tensor& x) {
    return {x.data<std::remove_const_t<T>>(), x.stride(0), x.stride(1), x.stride(2)};
}

/// Whether rows are dense, begin at multiples of `bytes` and are such multiples long.
inline bool has_vector_rows(const Tensor& x, std::int64_t bytes = 16) {
    const std::int64_t elements = bytes / static_cast<std::int64_t>(size_of(x.dtype()));
    bool result = x.stride(3) == 1 && x.size(3) % elements == 0 &&
                  reinterpret_cast<std::uintptr_t>(x.raw_data()) % static_cast<std::uintptr_t>(bytes) == 0;
    for (const int axis : {0, 1, 2}) result = result && (x.size(axis) <= 1 || x.stride(axis) % elements == 0);
    return result;
}

/// Sizes and options that every kernel of one call shares.
struct Sizes {
    int heads, group;  ///< query heads; how many of them share a K/V head
    int d_qk, d_v;
};
inline Sizes sizes_of(const Tensor& q, const Tensor& k, const Tensor& v) {
    const std::int64_t group = k.size(2) == 0 ? 1 : q.size(2) / k.size(2);
    return {static_cast<int>(q.size(2)), static_cast<int>(group), static_cast<int>(q.size(3)),
            static_cast<int>(v.size(3))};
}

}  // namespace gradtile::attention::cuda::device
