#pragma once
/// Column sums of a tile.
#include <cstdint>
#include <type_traits>

#include <gradtile/core/cuda/device/fragments.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>
#include <gradtile/core/gemm/device/parameters.cuh>
#include <gradtile/core/gemm/device/policy.cuh>

namespace gradtile::cuda::device {

/// Sums the lane's two rows in a 16 x 16 matrix: rows lane / 4 and lane / 4 + 8. The four lanes with the same
/// rows receive the same sums. Tensor cores compute the sums as a product with an all-ones matrix, because
/// this takes few instructions.
template <class T>
__device__ __forceinline__ void sum_rows(float (&sums)[2], const FragmentA& x) {
    const std::uint32_t ones = pack<T>(1.0f, 1.0f);
    FragmentC c{};
    if constexpr (std::is_same_v<T, bfloat16>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %8}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(ones));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %8}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(ones));
    }
    sums[0] = c[0];
    sums[1] = c[2];
}

/// The column sums of a consumer's tile in shared memory: one row of sums per 16 tile rows.
template <class Policy>
struct TileColumnSums {
    static constexpr ProductTiles tiles = Policy::tiles;
    std::uint32_t base;
    int warpgroup, warp;

    /// Writes the sums of 64 columns over the warp's 16 rows in a 64-row block. Four lanes have the same
    /// sums; each of them writes one piece.
    __device__ __forceinline__ void write(const float (&sums)[4][2], int block, int column) const {
        const int lane = lane_index(), piece = lane % 4, row = block * 4 + warp;
        const std::uint32_t to = base + Policy::sums_memory + warpgroup * Policy::sums_bytes +
                                 (row * tiles.columns + column + piece * 16 + lane / 4) * 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float low = piece == 0 ? sums[0][i] : sums[1][i],
                        high = piece == 2 ? sums[2][i] : sums[3][i];
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + i * 32), "f"(piece < 2 ? low : high)
                         : "memory");
        }
    }
    /// Adds the rows of sums and stores the results. All threads of the consumer call this, after a barrier.
    __device__ __forceinline__ void store(const ProductParameters<typename Policy::Epilogue>& p,
                                          const TileOrder::Tile& tile) const {
        if (tile.row >= p.rows) return;
        const int thread = static_cast<int>(reread_thread_index()) % warpgroup_threads;
#pragma unroll
        for (int i = 0; i < (tiles.columns + warpgroup_threads - 1) / warpgroup_threads; ++i) {
            const int column = thread + i * warpgroup_threads;
            if (column >= tiles.columns || tile.column + column >= p.columns) break;
            const std::uint32_t from =
                base + Policy::sums_memory + warpgroup * Policy::sums_bytes + column * 4;
            float sum = 0;
#pragma unroll
            for (int row = 0; row < Policy::sums_rows; ++row) {
                float part;
                asm volatile("ld.shared.f32 %0, [%1];"
                             : "=f"(part)
                             : "r"(from + row * tiles.columns * 4)
                             : "memory");
                sum += part;
            }
            p.column_sums[static_cast<std::int64_t>(tile.row / 128) * p.columns + tile.column + column] = sum;
        }
    }
};

}  // namespace gradtile::cuda::device
