#pragma once
/// The mask from mask.h for kernels, with 32-bit indices. An unbounded window side is represented by a length
/// greater than both sequences, so kernels need no branch for it.
#include <gradtile/attention/mask.h>
#include <gradtile/core/check.h>
#include <gradtile/attention/cuda/common/mma.cuh>

namespace gradtile::attention::cuda::device {

struct DeviceMask {
    int queries, keys, offset, left, right;

    /// A sum of four lengths must fit an int.
    static constexpr std::int64_t max_length = (std::int64_t{1} << 28) - 1;

    DeviceMask() = default;
    /// Throws Error if a sequence is too long for 32-bit indices.
    explicit DeviceMask(const Mask& mask)
        : queries(static_cast<int>(mask.queries)),
          keys(static_cast<int>(mask.keys)),
          offset(static_cast<int>(mask.offset)),
          left(static_cast<int>(mask.left < 0 ? mask.queries + mask.keys : mask.left)),
          right(static_cast<int>(mask.right < 0 ? mask.queries + mask.keys : mask.right)) {
        check(mask.queries <= max_length && mask.keys <= max_length, "attention: sequences of ", mask.queries,
              " and ", mask.keys, " tokens; CUDA kernels take at most ", max_length);
    }

    /// Row i sees the keys [first_key(i), end_key(i)). Both limits grow with i. The range may be empty, and
    /// first_key(i) may exceed `keys`.
    __device__ int first_key(int row) const { return max(0, row + offset - left); }
    __device__ int end_key(int row) const { return min(keys, row + offset + right + 1); }
    /// The rows [first_row(j), end_row(j)) see key j.
    __device__ int first_row(int key) const { return max(0, key - offset - right); }
    __device__ int end_row(int key) const { return min(queries, key - offset + left + 1); }

    /// Whether every row in [row, row + rows) sees every key in [key, key + columns). Rows beyond the last
    /// one are treated like existing rows. The window sides limit only the diagonal key - row.
    __device__ bool sees_all(int row, int rows, int key, int columns) const {
        const int diagonal = key - row;
        return diagonal >= offset - left + rows - 1 && diagonal + columns <= offset + right + 1 &&
               key + columns <= keys;
    }
    /// Whether some row in [row, row + rows) may see some key in [key, key + columns).
    __device__ bool sees_any(int row, int rows, int key, int columns) const {
        const int diagonal = key - row;
        return diagonal + columns > offset - left && diagonal < offset + right + rows && key < keys;
    }
};

/// Sets S = -inf where a row does not see a key. The accumulators' rows are queries; (row, key) is the warp's
/// first pair.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void mask_scores(FragmentC (&s)[m_tiles][n_tiles], const DeviceMask& mask, int row,
                                            int key) {
    const int lane = lane_index();
    row += lane / 4;
    key += lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = row + m * 16 + half * 8;
            const int first = mask.first_key(i) - key, end = mask.end_key(i) - key;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int j = n * 8 + e;
                    if (j < first || j >= end) s[m][n][half * 2 + e] = -INFINITY;
                }
        }
}

/// Sets S = -inf or P = 0, `unseen`, where a row does not see a key. The accumulators' rows are keys; (row,
/// key) is the warp's first pair.
template <int m_tiles, int n_tiles>
__device__ __forceinline__ void mask_transposed(FragmentC (&x)[m_tiles][n_tiles], float unseen,
                                                const DeviceMask& mask, int key, int row) {
    const int lane = lane_index();
    key += lane / 4;
    row += lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < m_tiles; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int j = key + m * 16 + half * 8;
            const int first = mask.first_row(j) - row, end = j < mask.keys ? mask.end_row(j) - row : 0;
#pragma unroll
            for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int i = n * 8 + e;
                    if (i < first || i >= end) x[m][n][half * 2 + e] = unseen;
                }
        }
}

}  // namespace gradtile::attention::cuda::device
