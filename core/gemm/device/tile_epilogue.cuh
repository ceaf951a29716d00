#pragma once
/// The tile epilogue: computes the results from the sums in registers and stores them in global memory.
#include <cstdint>
#include <type_traits>

#include <gradtile/core/cuda/device/cluster_copy.cuh>
#include <gradtile/core/cuda/device/fragments.cuh>
#include <gradtile/core/cuda/device/streamed_copy.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>
#include <gradtile/core/gemm/device/column_sums.cuh>
#include <gradtile/core/gemm/device/parameters.cuh>
#include <gradtile/core/gemm/device/policy.cuh>
#include <gradtile/core/gemm/device/ring.cuh>

namespace gradtile::cuda::device {

/// Stores four 8 x 8 matrices transposed. Lane i passes the address of row i % 8 in the transposed matrix i /
/// 8. The element layout is as in store_matrices().
__device__ __forceinline__ void store_transposed_matrices(const std::uint32_t (&x)[4],
                                                          std::uint32_t address) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/// Computes the results for a consumer's tiles from the sums, and stores them. Each warp has 16 rows in every
/// 64-row block, and stores them in units; see ProductPolicy.
template <class Policy>
class TileEpilogue {
    using Epilogue = typename Policy::Epilogue;
    using T = typename Epilogue::Element;
    using Parameters = ProductParameters<Epilogue>;
    static constexpr ProductTiles tiles = Policy::tiles;
    static constexpr int units = Policy::units, unit_buffers = Policy::unit_buffers;
    static constexpr bool has_inputs = Policy::has_inputs;
    using Sums = FragmentC[tiles.row_blocks][tiles.columns / 8];

  public:
    __device__ __forceinline__ TileEpilogue(const Parameters& p, std::uint32_t base, int warpgroup,
                                            int first_row)
        : p_(p), base_(base), warpgroup_(warpgroup), first_row_(first_row), warp_(warp_index() % 4) {}

    /// Starts to load the inputs for the thread block's first tile, as many units as there are buffers. One
    /// lane per warp of the first consumer runs this.
    __device__ __forceinline__ void load_first_inputs(const TileOrder::Tile& tile) const {
#pragma unroll
        for (int unit = 0; unit < unit_buffers; ++unit) load_inputs(0, tile, unit, unit);
    }
    /// Skips the units of the other consumer's next `count` tiles.
    __device__ __forceinline__ void pass_over(int count) {
        if constexpr (has_inputs) unit_at_.advance(count * units);
    }

    /// Starts to copy a tile's bias, before the tile's products.
    __device__ __forceinline__ void copy_bias(const TileOrder::Tile& tile) {
        if constexpr (Epilogue::has_bias) {
            // Every warp copies the same numbers, so that no warp waits for another one.
            bias_ = base_ + Policy::bias_memory + (warpgroup_ * 2 + bias_turn_) * Policy::bias_bytes;
            bias_turn_ ^= 1;
            const int lane = lane_index();
            if (lane < tiles.columns / 8) {
                const int column = tile.column + lane * 8;
                copy_16_bytes_async(bias_ + lane * 16, p_.bias + column,
                                    p_.bias != nullptr && column < p_.columns);
            }
            commit_copies();
        }
    }

    /// Computes and stores a tile's results. As soon as a unit's store has read the unit's buffers, they are
    /// reloaded with inputs for a later unit of this tile or, if has_next, of `next`, the other consumer's
    /// tile.
    __device__ __forceinline__ void finish(const Sums& c, const TileOrder::Tile& tile, bool has_next,
                                           const TileOrder::Tile& next) {
        if constexpr (Epilogue::has_bias) {
            wait_for_copies<0>();
            __syncwarp();
        }
        // After this barrier, all warps have read the previous tile's sums.
        if constexpr (Epilogue::sums_columns) wait_at(1 + warpgroup_, warpgroup_threads);
        [[maybe_unused]] const auto reload = [&](int unit, int slot) {
            const int ahead = unit + unit_buffers;
            if (ahead < units) {
                load_inputs(warpgroup_, tile, ahead, slot);
            } else if (has_next) {
                load_inputs(warpgroup_ ^ 1, next, ahead - units, slot);
            }
        };
        int slot = 0;
#pragma unroll
        for (int unit = 0; unit < units; ++unit) {
            [[maybe_unused]] const int previous = slot;
            slot = slot_of(unit);
            if constexpr (has_inputs) {
                await_inputs(slot);
            } else {
                if (lane_index() == 0) wait_until_stores_have_read<unit_buffers - 1>();
                __syncwarp();
            }
            finish_unit(c[block_of(unit)], tile, unit, slot);
            if constexpr (has_inputs) {
                unit_at_.advance();
                if (unit > 0 && lane_index() == 0) {
                    wait_until_stores_have_read<1>();
                    reload(unit - 1, previous);
                }
            }
        }
        if constexpr (has_inputs) {
            if (lane_index() == 0) {
                wait_until_stores_have_read();
                reload(units - 1, slot);
            }
        }
        if constexpr (Epilogue::sums_columns) {
            wait_at(1 + warpgroup_, warpgroup_threads);
            sums_of_columns().store(p_, tile);
        }
    }

  private:
    /// A unit's 64-row block. Units with the same rows follow each other, so that accesses to a matrix row
    /// are close in time.
    static constexpr int block_of(int unit) {
        return unit / Policy::panels;
    }
    static constexpr int first_column_of(int unit) {
        return unit % Policy::panels * Policy::unit_columns;
    }
    /// The unit's first row in the matrix.
    __device__ __forceinline__ int row_of(const TileOrder::Tile& tile, int unit) const {
        return tile.row + first_row_ + block_of(unit) * 64 + warp_ * 16;
    }
    __device__ __forceinline__ BoxPosition position_of(const TileOrder::Tile& tile, int unit) const {
        return {tile.column + first_column_of(unit), row_of(tile, unit), 0, tile.matrix};
    }
    /// A unit's buffer index. It is known at compile time if there are buffers for all units of a tile.
    __device__ __forceinline__ int slot_of(int unit) const {
        return has_inputs && unit_buffers < units ? unit_at_.stage : unit % unit_buffers;
    }
    __device__ __forceinline__ std::uint32_t buffer_of(int slot, int output) const {
        const int owner = has_inputs ? warp_ : warpgroup_ * 4 + warp_;
        return base_ + Policy::unit_memory + owner * Policy::owner_bytes +
               (slot * Epilogue::outputs + output) * Policy::unit_bytes;
    }

    /// The barrier for loads to a slot for one of `consumer`'s tiles. Each consumer has its own barrier: a
    /// wait names a phase by its parity, so a consumer must wait for every phase of its barrier.
    __device__ __forceinline__ Barrier with_barrier(int consumer, int slot) const {
        return Barrier(base_ + Policy::with_memory + ((consumer * 4 + warp_) * unit_buffers + slot) * 8);
    }
    /// Starts to load a unit's inputs, for one of `consumer`'s tiles. One lane runs this.
    __device__ __forceinline__ void load_inputs(int consumer, const TileOrder::Tile& tile, int unit,
                                                int slot) const {
        const Barrier full = with_barrier(consumer, slot);
        full.arrive_and_expect(Epilogue::inputs * Policy::unit_bytes);
#pragma unroll
        for (int input = 0; input < Epilogue::inputs; ++input) {
            const BoxPosition position = position_of(tile, unit);
            const std::uint32_t to = buffer_of(slot, input);
            if constexpr (Policy::has_activation) {
                load_streamed_box(to, p_.with[input], position, full);
            } else {
                load_box(to, p_.with[input], position,
                         full);  // the input is also A and B, so it is read again
            }
        }
    }
    /// Waits until the inputs for this consumer's unit are in the slot.
    __device__ __forceinline__ void await_inputs(int slot) {
        with_barrier(warpgroup_, slot).wait(static_cast<int>(input_rounds_ >> slot & 1));
        input_rounds_ ^= 1u << slot;
    }

    /// Computes a unit's results from its sums `c`, 16 columns at a time, and stores them.
    __device__ __forceinline__ void finish_unit(const FragmentC (&c)[tiles.columns / 8],
                                                const TileOrder::Tile& tile, int unit, int slot) {
        constexpr int row_bytes = Policy::unit_row_bytes;
        const int lane = lane_index(), first = first_column_of(unit);
        // A row's 16-byte chunks are swizzled as TMA does.
        const int row = lane & 15, swizzle = row_bytes == 128 ? row & 7 : row >> 1 & 3;
        const auto chunk = static_cast<std::uint32_t>(row * row_bytes + (lane >> 4 ^ swizzle) * 16);
        const bool is_mirrored = Epilogue::symmetric && tile.row > tile.column;
        // The chunk for the transpose: rows and columns are exchanged in the four 8 x 8 matrices.
        [[maybe_unused]] const int row_of_transposed = (lane & 7) + (lane >> 4) * 8;
        [[maybe_unused]] const auto transposed_chunk =
            static_cast<std::uint32_t>(row_of_transposed * row_bytes + ((lane >> 3 & 1) ^ (lane & 7)) * 16);
        constexpr int products = Epilogue::products, pieces = Policy::unit_columns / 16,
                      inputs = Epilogue::inputs == 0 ? 1 : Epilogue::inputs;
        FragmentA in[pieces][inputs]{};
        float x[pieces][products][8];
        typename Epilogue::Step steps[pieces];
        // begin() for a piece precedes end() for the previous piece, so that their latencies overlap. With
        // two inputs, two pieces would take too many registers.
        constexpr bool overlaps = Epilogue::inputs < 2;
        [[maybe_unused]] float column_sums[pieces][2];
        const auto begin = [&](int k) {
#pragma unroll
            for (int input = 0; input < Epilogue::inputs; ++input)
                load_matrices<false>(in[k][input], buffer_of(slot, input) + (chunk ^ k * 32));
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int product = 0; product < products; ++product)
                    x[k][product][i] = c[(product * Policy::columns + first) / 8 + 2 * k + i / 4][i % 4];
            if constexpr (Epilogue::has_bias) {
                const float2 bias[2] = {bias_of(first + k * 16), bias_of(first + k * 16 + 8)};
#pragma unroll
                for (int i = 0; i < 8; ++i) x[k][0][i] += i % 2 == 0 ? bias[i / 4].x : bias[i / 4].y;
            }
            Epilogue::begin(steps[k], x[k], in[k]);
        };
        if (overlaps) begin(0);
#pragma unroll
        for (int k = 0; k < pieces; ++k) {
            if (!overlaps) begin(k);
            if (overlaps && k + 1 < pieces) begin(k + 1);
            FragmentA out[Epilogue::outputs];
            if constexpr (Epilogue::symmetric) {
                const int diagonal =
                    row_of(tile, unit) + lane / 4 - (tile.column + first + k * 16 + lane % 4 * 2);
                p_.epilogue.end(out, steps[k], x[k], in[k], diagonal);
            } else {
                Epilogue::end(out, steps[k], x[k], in[k]);
            }
#pragma unroll
            for (int output = 0; output < Epilogue::outputs; ++output)
                store_matrices(out[output], buffer_of(slot, output) + (chunk ^ k * 32));
            if constexpr (Epilogue::symmetric)
                if (is_mirrored) store_mirrored(out[0], unit, k);
            if constexpr (Epilogue::sums_columns) {
                __syncwarp();  // lanes read what others wrote
                FragmentA transposed;
                load_matrices<true>(transposed, buffer_of(slot, 0) + (transposed_chunk ^ k * 32));
                sum_rows<T>(column_sums[k], transposed);
            }
        }
        if constexpr (Epilogue::sums_columns) sums_of_columns().write(column_sums, block_of(unit), first);
        store_unit(tile, unit, slot, is_mirrored);
    }

    /// Starts to store a unit from its buffers and, if is_mirrored, also its transpose.
    __device__ __forceinline__ void store_unit(const TileOrder::Tile& tile, int unit, int slot,
                                               bool is_mirrored) const {
        publish_shared_writes();
        if (is_mirrored) {
            // After this barrier, warps write to the previous unit's buffer.
            if (is_first_warp_lane()) wait_until_stores_have_read();
            wait_at(1 + warpgroup_, warpgroup_threads);
        } else {
            __syncwarp();
        }
        if (lane_index() == 0) {
#pragma unroll
            for (int output = 0; output < Epilogue::outputs; ++output) {
                const BoxPosition position = position_of(tile, unit);
                const std::uint32_t from = buffer_of(slot, output);
                if constexpr (Policy::has_activation) {
                    store_streamed_box(p_.to[output], position, from);
                } else {
                    store_box(p_.to[output], position, from);
                }
            }
            if constexpr (Epilogue::symmetric) {
                if (is_mirrored && warp_ == 0)
                    store_box(p_.to[Epilogue::outputs],
                              {tile.row + first_row_ + block_of(unit) * 64,
                               tile.column + first_column_of(unit), 0, tile.matrix},
                              mirror_of(unit));
            }
            commit_stores();
        }
    }

    /// The consumer's buffer for a transposed 64 x 64 block, made of one unit from each of the consumer's
    /// four warps.
    __device__ __forceinline__ std::uint32_t mirror_of(int unit) const {
        return base_ + Policy::mirror_memory + (warpgroup_ * 2 + unit % 2) * Policy::mirror_bytes;
    }
    /// Stores piece k (16 x 16) of the warp's unit, transposed, to the buffer's rows k * 16 to k * 16 + 15
    /// and the warp's columns. The buffer's 16-byte chunks are swizzled as TMA does.
    __device__ __forceinline__ void store_mirrored(const FragmentA& x, int unit, int k) const {
        const int lane = lane_index(), row = (lane >> 4) * 8 + (lane & 7);
        const int chunk = warp_ * 2 + (lane >> 3 & 1);
        store_transposed_matrices(
            x, mirror_of(unit) + static_cast<std::uint32_t>((k * 16 + row) * 128 + (chunk ^ (row & 7)) * 16));
    }
    __device__ __forceinline__ bool is_first_warp_lane() const {
        return warp_ == 0 && lane_index() == 0;
    }

    __device__ __forceinline__ TileColumnSums<Policy> sums_of_columns() const {
        return {base_, warpgroup_, warp_};
    }

    /// The bias for the lane's two columns among eight.
    __device__ __forceinline__ float2 bias_of(int column) const {
        std::uint32_t pair;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(bias_ + column * 2 + lane_index() % 4 * 4));
        return unpack<T>(pair);
    }

    const Parameters& p_;
    std::uint32_t base_;
    int warpgroup_;
    int first_row_;  ///< this consumer's first row in the tile
    int warp_;       ///< index in the warpgroup; stored, because single lanes must not call warp_index()
    StagePosition<unit_buffers> unit_at_;  ///< in the ring of epilogue inputs
    std::uint32_t input_rounds_ = 0;       ///< bit per slot: the parity of this consumer's loads
    std::uint32_t bias_ = 0;               ///< address of the present tile's bias
    int bias_turn_ = 0;
};

}  // namespace gradtile::cuda::device
