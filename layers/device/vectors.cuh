#pragma once
/// 16-byte loads and stores, which use the memory bandwidth best. In registers, elements have their
/// accumulator's type.
#include <gradtile/layers/rows.h>
#include <gradtile/core/cuda/device/convert.cuh>

namespace gradtile::cuda::device {

/// Elements of type T per 16-byte vector.
template <class T>
inline constexpr int vector_length = 16 / static_cast<int>(sizeof(T));

template <class T>
__device__ __forceinline__ void unpack(Accumulator<T>* to, uint4 from) {
    const unsigned words[4] = {from.x, from.y, from.z, from.w};
    if constexpr (sizeof(T) == 8) {
        to[0] = __hiloint2double(static_cast<int>(words[1]), static_cast<int>(words[0]));
        to[1] = __hiloint2double(static_cast<int>(words[3]), static_cast<int>(words[2]));
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (std::is_same_v<T, float>) {
                to[i] = __uint_as_float(words[i]);
            } else if constexpr (std::is_same_v<T, bfloat16>) {
                to[2 * i] = __uint_as_float(words[i] << 16);
                to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
            } else {
                to[2 * i] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[i])));
                to[2 * i + 1] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[i] >> 16)));
            }
        }
    }
}

template <class T>
__device__ __forceinline__ uint4 pack(const Accumulator<T>* from) {
    unsigned words[4];
    if constexpr (sizeof(T) == 8) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            words[2 * i] = static_cast<unsigned>(__double2loint(from[i]));
            words[2 * i + 1] = static_cast<unsigned>(__double2hiint(from[i]));
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if constexpr (std::is_same_v<T, float>) {
                words[i] = __float_as_uint(from[i]);
            } else if constexpr (std::is_same_v<T, bfloat16>) {
                const __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
                words[i] = static_cast<unsigned>(__bfloat16_as_ushort(pair.x)) |
                           static_cast<unsigned>(__bfloat16_as_ushort(pair.y)) << 16;
            } else {
                const __half2 pair = __floats2half2_rn(from[2 * i], from[2 * i + 1]);
                words[i] = static_cast<unsigned>(__half_as_ushort(pair.x)) |
                           static_cast<unsigned>(__half_as_ushort(pair.y)) << 16;
            }
        }
    }
    return {words[0], words[1], words[2], words[3]};
}

/// to = from[0 .. n-1]. n is 1 or divisible by the vector length; in the second case, `from` must be on a
/// 16-byte boundary.
template <int n, class T>
__device__ __forceinline__ void load(Accumulator<T> (&to)[n], const T* from) {
    if constexpr (n == 1) {
        to[0] = device::convert<Accumulator<T>>(*from);
    } else {
        static_assert(n % vector_length<T> == 0);
#pragma unroll
        for (int i = 0; i < n; i += vector_length<T>)
            unpack<T>(to + i, *reinterpret_cast<const uint4*>(from + i));
    }
}

/// n neighbouring elements that a thread has loaded but not converted yet, which takes fewer registers.
/// Requires the same alignment as load().
template <int n, class T>
struct Fetched {
    uint4 vectors[n / vector_length<T>];

    __device__ __forceinline__ void read(const T* from) {
#pragma unroll
        for (int i = 0; i < n / vector_length<T>; ++i) vectors[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    __device__ __forceinline__ void values(Accumulator<T> (&to)[n]) const {
#pragma unroll
        for (int i = 0; i < n / vector_length<T>; ++i) unpack<T>(to + i * vector_length<T>, vectors[i]);
    }
};
template <class T>
struct Fetched<1, T> {
    T element;

    __device__ __forceinline__ void read(const T* from) { element = *from; }
    __device__ __forceinline__ void values(Accumulator<T> (&to)[1]) const {
        to[0] = device::convert<Accumulator<T>>(element);
    }
};

/// to[0 .. n-1] = from. Requires the same alignment as load().
template <int n, class T>
__device__ __forceinline__ void store(T* to, const Accumulator<T> (&from)[n]) {
    if constexpr (n == 1) {
        *to = device::convert<T>(from[0]);
    } else {
        static_assert(n % vector_length<T> == 0);
#pragma unroll
        for (int i = 0; i < n; i += vector_length<T>) *reinterpret_cast<uint4*>(to + i) = pack<T>(from + i);
    }
}

/// Like store(), but the L2 cache evicts the stored data first and keeps the data that the kernel reads.
template <int n, class T>
__device__ __forceinline__ void store_streaming(T* to, const Accumulator<T> (&from)[n]) {
    if constexpr (n == 1) {
        store<n>(to, from);
    } else {
#pragma unroll
        for (int i = 0; i < n; i += vector_length<T>)
            __stcs(reinterpret_cast<uint4*>(to + i), pack<T>(from + i));
    }
}

/// to[0 .. n-1] += values. Requires the same alignment as load().
template <int n, class S>
__device__ __forceinline__ void accumulate(S* to, const S (&values)[n]) {
    S sums[n];
    load<n>(sums, to);
#pragma unroll
    for (int i = 0; i < n; ++i) sums[i] += values[i];
    store<n>(to, sums);
}

/// A tensor's rows, passed to a kernel by value.
template <class T>
struct DeviceRows {
    T* data = nullptr;
    RowLayout layout;

    DeviceRows() = default;
    DeviceRows(const Tensor& x, const char* op)
        : data(x.data<std::remove_const_t<T>>()), layout(row_layout(x, op)) {}

    __device__ __forceinline__ T* operator[](std::int64_t row) const { return data + layout.offset(row); }

    /// Whether each row begins where the previous row ends.
    bool dense() const {
        return layout.rows <= 1 || (layout.inner == layout.rows && layout.inner_stride == layout.width);
    }
    /// Whether rows begin on 16-byte boundaries and their length is divisible by n.
    bool in_vectors(int n = vector_length<std::remove_const_t<T>>) const {
        constexpr int aligned = vector_length<std::remove_const_t<T>>;
        return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && layout.width % n == 0 &&
               layout.inner_stride % aligned == 0 && layout.outer_stride % aligned == 0;
    }
};

/// Whether a tensor begins on a 16-byte boundary.
inline bool on_vector_boundary(const Tensor& x) {
    return reinterpret_cast<std::uintptr_t>(x.raw_data()) % 16 == 0;
}

}  // namespace gradtile::cuda::device
