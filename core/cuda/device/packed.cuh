#pragma once
/// Elements that a thread loads and stores together, in accesses up to 16 bytes long.

namespace gradtile::cuda::device {

/// n elements. They are aligned to their total size, or to 16 bytes if the total size is larger.
template <class T, int n>
struct alignas(sizeof(T) * n < 16 ? sizeof(T) * n : 16) Packed {
    T element[n];

    __device__ __forceinline__ T& operator[](int i) { return element[i]; }
    __device__ __forceinline__ const T& operator[](int i) const { return element[i]; }
};

}  // namespace gradtile::cuda::device
