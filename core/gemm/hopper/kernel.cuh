#pragma once
/// Matrix products with the asynchronous products and copies of Hopper, and with an epilogue: a functor that
/// computes the results from the sums while they are in registers.
///
/// A thread block stays on its multiprocessor and takes one tile of the result after the other. Its producer
/// thread copies blocks of A and B to a ring in shared memory, also those of the next tiles. The consumers
/// multiply them. A warp of a consumer stores its results through buffers of its own, so that no warp waits
/// for another one in the epilogue.
///
/// An epilogue has these members:
///   Element       bfloat16 or float16: the type of all matrices and of the bias
///   products      1, or 2: a tile has columns of a b[0] and the same columns of a b[1], half each
///   outputs       the number of matrices that it stores; all have the shape of one product
///   inputs        the number of matrices of this shape that it reads
///   has_bias      whether a bias is added to each row before apply(); zeros when there is none
///   sums_columns  whether the columns of the first output are summed, after rounding
///   symmetric     whether A and B are the same matrices and the results are symmetric (symmetric.cuh)
///   apply(out, x, in)  out[i] = output i at two neighbouring columns, packed; x[i] = the sums of product i;
///                      in[i] = elements of input i, packed. If the result is symmetric, apply() has one more
///                      argument: the row minus the first of the columns.
#include <cstdint>
#include <type_traits>

#include <gradtile/core/gemm/hopper/internal/tiles.h>
#include <gradtile/core/cuda/device/cluster_copy.cuh>
#include <gradtile/core/cuda/device/fragments.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/warpgroup.cuh>
#include <gradtile/core/cuda/device/wgmma.cuh>

namespace gradtile::cuda {
namespace device {

/// The order of the tiles: groups of a few rows of tiles, column by column, so that the blocks of A and B
/// that run at the same time are few enough for the L2 cache.
struct TileOrder {
    static constexpr int group_rows = 8;
    int row_tiles, column_tiles;

    struct Tile {
        int row, column, matrix;
    };
    __device__ Tile operator()(int index) const {
        const int group_tiles = group_rows * column_tiles, group = index / group_tiles;
        const int in_group = index - group * group_tiles, first = group * group_rows;
        const int height = min(group_rows, row_tiles - first), column = in_group / height;
        return {first + in_group - column * height, column, 0};
    }
};

/// The order of the tiles of symmetric results: those on and below the diagonal, row by row, of one matrix
/// after the other.
struct TriangleOrder {
    int side;  ///< tiles of a row

    __host__ __device__ int tiles_of_matrix() const { return side * (side + 1) / 2; }
    __device__ TileOrder::Tile operator()(int index) const {
        const int matrix = index / tiles_of_matrix();
        int column = index - matrix * tiles_of_matrix(), row = 0;
        while (column > row) column -= ++row;
        return {row, column, matrix};
    }
};

template <class Epilogue>
struct ProductParameters {
    TensorMap a, b[Epilogue::products];
    /// Boxes of 16 rows. If the result is symmetric, the last map has boxes of 64 rows, for transposed tiles.
    TensorMap to[Epilogue::outputs + (Epilogue::symmetric ? 1 : 0)];
    TensorMap with[Epilogue::inputs == 0 ? 1 : Epilogue::inputs];  ///< the epilogue's inputs; the same boxes
    const typename Epilogue::Element* bias;
    float* column_sums;  ///< [ceil(rows / 128), columns]: sums over 128 rows each
    int rows, columns, depth_blocks;
    std::conditional_t<Epilogue::symmetric, TriangleOrder, TileOrder> order;  ///< of tiles of a cluster
    int tiles;                                                                ///< of clusters
    Epilogue epilogue;
};

/// A block of A or B in shared memory. `length` is its number of rows of the result, or of columns. An
/// operand with Order::reduction is [length][64]; one with Order::output is [length / 64][64][64], with the
/// reduction as its middle axis. It is loaded in parts: with Order::reduction, a part has some of the
/// rows; with Order::output, it has some of the reduction. A load by `multicast` goes to both thread blocks
/// of a cluster.
template <Order order, int length, int parts, bool multicast>
struct OperandTile {
    static constexpr int row_bytes = 128, panel_bytes = 64 * row_bytes, bytes = length * row_bytes;
    static constexpr int box_rows = (order == Order::reduction ? length : 64) / parts;
    static constexpr int panels = order == Order::reduction ? 1 : length / 64;
    static_assert(length % 64 == 0 && box_rows % 8 == 0 && box_rows <= 256);

    /// Loads a part. `first` and `depth` are the first element of the part in the matrix.
    __device__ __forceinline__ static void load(std::uint32_t tile, const TensorMap& map, int first,
                                                int depth, int matrix, int part, Barrier barrier) {
#pragma unroll
        for (int i = 0; i < panels; ++i) {
            const std::uint32_t to = tile + i * panel_bytes + part * box_rows * row_bytes;
            const BoxPosition at = order == Order::reduction ? BoxPosition{depth, first, 0, matrix}
                                                             : BoxPosition{first + i * 64, depth, 0, matrix};
            if constexpr (multicast) {
                load_box_to(0b11, to, map, at, barrier);
            } else {
                load_box(to, map, at, barrier);
            }
        }
    }
    /// Describes 16 elements of the reduction, from `depth` on, of the rows or columns from `first` on.
    __device__ __forceinline__ static std::uint64_t describe(std::uint32_t tile, int first, int depth) {
        const int offset = order == Order::reduction ? first * row_bytes + depth * 2
                                                     : first / 64 * panel_bytes + depth * row_bytes;
        return operand_description<row_bytes>(tile + offset, panel_bytes);
    }
};

/// Stores the transposes of four 8 x 8 matrices; lane i passes the address of row i % 8 of the transpose of
/// matrix i / 8. The elements are those of store_matrices().
__device__ __forceinline__ void store_transposed_matrices(const std::uint32_t (&x)[4],
                                                          std::uint32_t address) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
}

/// The template parameters of a kernel, and the places of its data in shared memory.
template <class Epilogue_, ProductTiles tiles_, Order order_b_>
struct ProductPolicy {
    using Epilogue = Epilogue_;
    static constexpr ProductTiles tiles = tiles_;
    static constexpr Order order_b = order_b_;
    static constexpr Order order_a = Epilogue::symmetric ? order_b : Order::reduction;
    static_assert(Epilogue::products == 1 || order_b == Order::reduction);
    static_assert(!Epilogue::symmetric || (tiles.rows() == tiles.columns && tiles.cluster == 1));
    using ATile = OperandTile<order_a, tiles.rows(), 1, false>;
    static constexpr int b_parts = tiles.cluster == 2 ? 2 : Epilogue::products;
    using BTile = OperandTile<order_b, tiles.columns, b_parts, tiles.cluster == 2>;
    static constexpr int columns = tiles.columns / Epilogue::products;  ///< of a tile in each matrix

    // A warp stores its results in units of 16 rows and 64 or 32 columns. Units of 32 columns take less
    // memory.
    static constexpr int unit_columns = Epilogue::outputs > 2 || Epilogue::inputs > 1 ? 32 : 64;
    static constexpr int unit_row_bytes = 2 * unit_columns, unit_bytes = 16 * unit_row_bytes;
    static constexpr int units = tiles.row_blocks * columns / unit_columns;  ///< of a warp in a tile
    /// The number of buffers that a warp has for each output. An input is loaded ahead of time, to the buffer
    /// of the output that overwrites it.
    static constexpr int unit_buffers = Epilogue::inputs == 0 || units == 2 ? 2 : units % 3 == 0 ? 3 : 4;
    static_assert(units % unit_buffers == 0 && Epilogue::inputs <= Epilogue::outputs);

    static constexpr int warps = 4 * tiles.consumers;
    static constexpr int warp_bytes = unit_buffers * Epilogue::outputs * unit_bytes;
    /// Two buffers of a consumer for 64 x 64 elements of a transposed tile.
    static constexpr int mirror_bytes = 64 * 64 * 2,
                         all_mirror_bytes = Epilogue::symmetric ? tiles.consumers * 2 * mirror_bytes : 0;
    // The bias of a consumer's tile, twice: the fastest warp may be in the tile after the slowest warp's.
    static constexpr int bias_bytes = 2 * tiles.columns, sums_bytes = 4 * 4 * tiles.columns;
    static constexpr int all_bias_bytes = Epilogue::has_bias ? 2 * tiles.consumers * bias_bytes : 0,
                         all_sums_bytes = Epilogue::sums_columns ? tiles.consumers * sums_bytes : 0;
    static constexpr int max_stages = 6, barriers_bytes = 16 * max_stages + 8 * warps * unit_buffers;
    static constexpr int max_bytes = 227 * 1024;
    static constexpr int fitting_stages = (max_bytes - warps * warp_bytes - all_mirror_bytes -
                                           all_bias_bytes - all_sums_bytes - barriers_bytes) /
                                          tiles.stage_bytes();
    static constexpr int stages = fitting_stages < max_stages ? fitting_stages : max_stages;

    // Offsets in the shared memory of a thread block.
    static constexpr int unit_memory = stages * tiles.stage_bytes(),
                         mirror_memory = unit_memory + warps * warp_bytes,
                         bias_memory = mirror_memory + all_mirror_bytes,
                         sums_memory = bias_memory + all_bias_bytes,
                         full_memory = sums_memory + all_sums_bytes, with_memory = full_memory + 16 * stages,
                         bytes = with_memory + 8 * warps * unit_buffers;
    static_assert(bytes <= max_bytes && full_memory % 8 == 0);

    /// Whether this kernel exists. Kernels with an activation have no small tiles.
    static constexpr bool has_activation = Epilogue::products + Epilogue::outputs + Epilogue::inputs > 2;
    static constexpr bool exists =
        stages >= 3 && !(has_activation && tiles.is_small()) &&
        (!Epilogue::sums_columns || (tiles.in_turns && tiles.rows() == 128 && unit_columns == 64));
};

/// The place of a thread in the ring.
template <int stages>
struct StagePosition {
    int stage = 0, round = 0;  ///< the round's parity

    __device__ __forceinline__ void advance() {
        if (++stage == stages) {
            stage = 0;
            round ^= 1;
        }
    }
    __device__ __forceinline__ void advance(int steps) {
        stage += steps;
        round ^= stage / stages & 1;
        stage %= stages;
    }
};

/// A ring's barriers: a stage becomes full by copies and empty by the consumers' releases.
template <class Policy>
__device__ __forceinline__ Barrier full_barrier(std::uint32_t base, int stage) {
    return Barrier(base + Policy::full_memory + stage * 8);
}
template <class Policy>
__device__ __forceinline__ Barrier empty_barrier(std::uint32_t base, int stage) {
    return Barrier(base + Policy::full_memory + (Policy::stages + stage) * 8);
}

/// The first element of a thread block's tile.
template <class Policy>
__device__ __forceinline__ TileOrder::Tile tile_at(const ProductParameters<typename Policy::Epilogue>& p,
                                                   int index, int rank) {
    const TileOrder::Tile tile = p.order(index);
    return {(tile.row * Policy::tiles.cluster + rank) * Policy::tiles.rows(), tile.column * Policy::columns,
            tile.matrix};
}

/// Starts the copies of A and B. One thread runs this.
template <class Policy>
__device__ __forceinline__ void produce(const ProductParameters<typename Policy::Epilogue>& p,
                                        std::uint32_t base, int rank) {
    constexpr ProductTiles tiles = Policy::tiles;
    StagePosition<Policy::stages> at;
    const int step = static_cast<int>(gridDim.x) / tiles.cluster;
    for (int index = static_cast<int>(blockIdx.x) / tiles.cluster; index < p.tiles; index += step) {
        const TileOrder::Tile tile = tile_at<Policy>(p, index, rank);
        for (int block = 0; block < p.depth_blocks; ++block) {
            const std::uint32_t a = base + at.stage * tiles.stage_bytes(), b = a + tiles.a_bytes();
            const Barrier full = full_barrier<Policy>(base, at.stage);
            empty_barrier<Policy>(base, at.stage).wait(at.round ^ 1);
            full.arrive_and_expect(tiles.stage_bytes());
            const int depth = block * tiles.depth;
            Policy::ATile::load(a, p.a, tile.row, depth, tile.matrix, 0, full);
            const auto load_b = [&](int part) {
                using Tile = typename Policy::BTile;
                if constexpr (Policy::Epilogue::products == 2) {
                    Tile::load(b, p.b[part], tile.column, depth, tile.matrix, part, full);
                } else if constexpr (Policy::order_b == Order::reduction) {
                    Tile::load(b, p.b[0], tile.column + part * Tile::box_rows, depth, tile.matrix, part,
                               full);
                } else {
                    Tile::load(b, p.b[0], tile.column, depth + part * Tile::box_rows, tile.matrix, part,
                               full);
                }
            };
            if constexpr (tiles.cluster == 2) {
                load_b(rank);
            } else {
#pragma unroll
                for (int part = 0; part < Policy::b_parts; ++part) load_b(part);
            }
            at.advance();
        }
    }
}

/// A consumer warpgroup.
template <class Policy>
class ProductConsumer {
    using Epilogue = typename Policy::Epilogue;
    using T = typename Epilogue::Element;
    using Parameters = ProductParameters<Epilogue>;
    static constexpr ProductTiles tiles = Policy::tiles;
    static constexpr int row_blocks = tiles.row_blocks, units = Policy::units,
                         unit_buffers = Policy::unit_buffers;
    using Sums = FragmentC[row_blocks][tiles.columns / 8];
    static constexpr int first_turn = 1 + tiles.consumers;  ///< number of a barrier

  public:
    __device__ __forceinline__ ProductConsumer(const Parameters& p, std::uint32_t base, int warpgroup)
        : p_(p),
          base_(base),
          warpgroup_(warpgroup),
          first_row_(tiles.in_turns ? 0 : warpgroup * tiles.consumer_rows()),
          warp_(warp_index() % 4) {}

    __device__ __forceinline__ void consume(int rank) {
        const int step = static_cast<int>(gridDim.x) / tiles.cluster;
        // In turns, a consumer passes over the tiles of the others.
        constexpr int others = tiles.in_turns ? tiles.consumers - 1 : 0;
        int index = static_cast<int>(blockIdx.x) / tiles.cluster;
        if constexpr (tiles.in_turns) {
            index += warpgroup_ * step;
            at_.advance(warpgroup_ * p_.depth_blocks);
        }
        for (; index < p_.tiles; index += (1 + others) * step) {
            const TileOrder::Tile tile = tile_at<Policy>(p_, index, rank);
            start_loads(tile);
            if (tiles.in_turns && index >= step) wait_for_turn();
            Sums sums;
            multiply(sums);
            if (tiles.in_turns && index + step < p_.tiles) pass_turn();
            await_sums(sums);
            finish(sums, tile);
            at_.advance(others * p_.depth_blocks);
        }
        if (lane_index() == 0) wait_until_stores_have_read();
    }

  private:
    // A barrier's wait names a phase by its parity, so that a waiter must not be two phases behind. A
    // consumer that passes over tiles is far behind until the other one has waited for all of their stages.
    __device__ __forceinline__ void wait_for_turn() const {
        wait_at(first_turn + warpgroup_, tiles.consumers * warpgroup_threads);
    }
    __device__ __forceinline__ void pass_turn() const {
        arrive_at(first_turn + (warpgroup_ + 1) % tiles.consumers, tiles.consumers * warpgroup_threads);
    }

    /// Starts the products of a tile, and waits for all but those of the last stage.
    __device__ __forceinline__ void multiply(Sums& c) {
        for (int block = 0; block < p_.depth_blocks; ++block) {
            const std::uint32_t a = base_ + at_.stage * tiles.stage_bytes(), b = a + tiles.a_bytes();
            full_barrier<Policy>(base_, at_.stage).wait(at_.round);
            begin_products();
#pragma unroll
            for (int k = 0; k < tiles.depth; k += 16)
#pragma unroll
                for (int m = 0; m < row_blocks; ++m)
                    Product<T, tiles.columns>::template start<Policy::order_a, Policy::order_b>(
                        c[m], Policy::ATile::describe(a, first_row_ + m * 64, k),
                        Policy::BTile::describe(b, 0, k), block > 0 || k > 0);
            commit_products();
            if (block > 0) {
                await_products<1>();
                release(last_stage_);
            }
            last_stage_ = at_.stage;
            at_.advance();
        }
    }
    __device__ __forceinline__ void await_sums(Sums& c) const {
        if constexpr (row_blocks == 1) {
            await_products<0>(c[0]);
        } else {
            await_products<0>(c[0], c[1]);
        }
        release(last_stage_);
    }

    /// Each warp releases a stage in all thread blocks that load parts of it.
    __device__ __forceinline__ void release(int stage) const {
        const Barrier empty = empty_barrier<Policy>(base_, stage);
        const int lane = lane_index();
        if constexpr (tiles.cluster == 1) {
            if (lane == 0) empty.arrive();
        } else {
            if (lane < tiles.cluster) arrive_in(lane, empty);
        }
    }

    /// The first row of a unit among those of the matrix. Unit u is the block u % row_blocks of the warp's
    /// rows, and columns from u / row_blocks * unit_columns on.
    __device__ __forceinline__ int row_of(const TileOrder::Tile& tile, int unit) const {
        return tile.row + first_row_ + unit % row_blocks * 64 + warp_ * 16;
    }
    __device__ __forceinline__ BoxPosition position_of(const TileOrder::Tile& tile, int unit) const {
        return {tile.column + unit / row_blocks * Policy::unit_columns, row_of(tile, unit), 0, tile.matrix};
    }
    __device__ __forceinline__ std::uint32_t buffer_of(int unit, int output) const {
        return base_ + Policy::unit_memory + (warpgroup_ * 4 + warp_) * Policy::warp_bytes +
               (unit % unit_buffers * Epilogue::outputs + output) * Policy::unit_bytes;
    }

    /// Starts to load what the epilogue needs, before the tile's products.
    __device__ __forceinline__ void start_loads(const TileOrder::Tile& tile) {
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
        if constexpr (Epilogue::inputs > 0) {
            if (lane_index() == 0) {
                wait_until_stores_have_read();
#pragma unroll
                for (int unit = 0; unit < unit_buffers; ++unit) load_with(tile, unit);
            }
        }
    }
    /// The barrier of the loads to a unit's buffers.
    __device__ __forceinline__ Barrier with_barrier(int unit) const {
        return Barrier(base_ + Policy::with_memory +
                       ((warpgroup_ * 4 + warp_) * unit_buffers + unit % unit_buffers) * 8);
    }
    __device__ __forceinline__ void load_with(const TileOrder::Tile& tile, int unit) const {
        const Barrier full = with_barrier(unit);
        full.arrive_and_expect(Epilogue::inputs * Policy::unit_bytes);
#pragma unroll
        for (int input = 0; input < Epilogue::inputs; ++input)
            load_box(buffer_of(unit, input), p_.with[input], position_of(tile, unit), full);
    }

    __device__ __forceinline__ void finish(const Sums& c, const TileOrder::Tile& tile) {
        if constexpr (Epilogue::has_bias) {
            wait_for_copies<0>();
            __syncwarp();
        }
        // All warps have read the previous tile's sums.
        if constexpr (Epilogue::sums_columns) wait_at(1 + warpgroup_, warpgroup_threads);
        float column_sums[8][2] = {};
#pragma unroll
        for (int unit = 0; unit < units; ++unit) {
            const int panel = unit / row_blocks, block = unit % row_blocks;
            if constexpr (Epilogue::inputs > 0) {
                with_barrier(unit).wait(with_round_ ^ (unit / unit_buffers & 1));
            } else {
                if (lane_index() == 0) wait_until_stores_but_latest_have_read<unit_buffers - 1>();
                __syncwarp();
            }
            finish_unit(c[block], tile, unit, column_sums);
            if constexpr (Epilogue::inputs > 0) {
                // The buffer of the previous unit is free as soon as its store has read it.
                const int next = unit - 1 + unit_buffers;
                if (unit > 0 && next < units && lane_index() == 0) {
                    wait_until_stores_but_latest_have_read<1>();
                    load_with(tile, next);
                }
            }
            if constexpr (Epilogue::sums_columns) {
                if (block == row_blocks - 1) add_lanes(column_sums, panel);
            }
        }
        with_round_ ^= units / unit_buffers & 1;
        if constexpr (Epilogue::sums_columns) store_column_sums(tile);
    }

    __device__ __forceinline__ void finish_unit(const FragmentC (&c)[tiles.columns / 8],
                                                const TileOrder::Tile& tile, int unit,
                                                float (&column_sums)[8][2]) {
        constexpr int row_bytes = Policy::unit_row_bytes;
        const int lane = lane_index(), first = unit / row_blocks * Policy::unit_columns;
        // The 16-byte chunks of a row are swizzled as TMA does.
        const int row = lane & 15, swizzle = row_bytes == 128 ? row & 7 : row >> 1 & 3;
        const auto chunk = static_cast<std::uint32_t>(row * row_bytes + (lane >> 4 ^ swizzle) * 16);
        const bool is_mirrored = Epilogue::symmetric && tile.row > tile.column;
#pragma unroll
        for (int k = 0; k < Policy::unit_columns / 16; ++k) {
            constexpr int products = Epilogue::products,
                          inputs = Epilogue::inputs == 0 ? 1 : Epilogue::inputs;
            FragmentA in[inputs]{}, out[Epilogue::outputs];
#pragma unroll
            for (int input = 0; input < Epilogue::inputs; ++input)
                load_matrices<false>(in[input], buffer_of(unit, input) + (chunk ^ k * 32));
            float2 bias[2]{};
            if constexpr (Epilogue::has_bias) {
                bias[0] = bias_of(first + k * 16);
                bias[1] = bias_of(first + k * 16 + 8);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float x[products][2];
#pragma unroll
                for (int product = 0; product < products; ++product) {
                    const int eight = (product * Policy::columns + first) / 8 + 2 * k + i / 2;
                    x[product][0] = c[eight][i % 2 * 2];
                    x[product][1] = c[eight][i % 2 * 2 + 1];
                    if constexpr (Epilogue::has_bias) {
                        x[product][0] += bias[i / 2].x;
                        x[product][1] += bias[i / 2].y;
                    }
                }
                std::uint32_t inputs_of_pair[inputs], results[Epilogue::outputs];
#pragma unroll
                for (int input = 0; input < inputs; ++input) inputs_of_pair[input] = in[input][i];
                if constexpr (Epilogue::symmetric) {
                    const int diagonal = row_of(tile, unit) + i % 2 * 8 + lane / 4 -
                                         (tile.column + first + k * 16 + i / 2 * 8 + lane % 4 * 2);
                    p_.epilogue.apply(results, x, inputs_of_pair, diagonal);
                } else {
                    Epilogue::apply(results, x, inputs_of_pair);
                }
#pragma unroll
                for (int output = 0; output < Epilogue::outputs; ++output) out[output][i] = results[output];
                if constexpr (Epilogue::sums_columns) {
                    const float2 rounded = unpack<T>(results[0]);
                    column_sums[2 * k + i / 2][0] += rounded.x;
                    column_sums[2 * k + i / 2][1] += rounded.y;
                }
            }
#pragma unroll
            for (int output = 0; output < Epilogue::outputs; ++output)
                store_matrices(out[output], buffer_of(unit, output) + (chunk ^ k * 32));
            if constexpr (Epilogue::symmetric)
                if (is_mirrored) store_mirrored(out[0], unit, k);
        }
        publish_shared_writes();
        if (is_mirrored) {
            // After this barrier, warps write to the buffer of the unit before this one.
            if (is_first_warp_lane()) wait_until_stores_have_read();
            wait_at(1 + warpgroup_, warpgroup_threads);
        } else {
            __syncwarp();
        }
        if (lane_index() == 0) {
#pragma unroll
            for (int output = 0; output < Epilogue::outputs; ++output)
                store_box(p_.to[output], position_of(tile, unit), buffer_of(unit, output));
            if constexpr (Epilogue::symmetric) {
                if (is_mirrored && warp_ == 0)
                    store_box(
                        p_.to[Epilogue::outputs],
                        {tile.row + first_row_ + unit % row_blocks * 64, tile.column + first, 0, tile.matrix},
                        mirror_of(unit));
            }
            commit_stores();
        }
    }

    /// The consumer's buffer for the transpose of the 64 x 64 elements of its four warps' units.
    __device__ __forceinline__ std::uint32_t mirror_of(int unit) const {
        return base_ + Policy::mirror_memory + (warpgroup_ * 2 + unit % 2) * Policy::mirror_bytes;
    }
    /// Stores the transpose of the warp's 16 rows and the 16 columns k: rows k * 16 to k * 16 + 15 of the
    /// buffer, and the warp's columns. Its 16-byte chunks are swizzled as TMA does.
    __device__ __forceinline__ void store_mirrored(const FragmentA& x, int unit, int k) const {
        const int lane = lane_index(), row = (lane >> 4) * 8 + (lane & 7);
        const int chunk = warp_ * 2 + (lane >> 3 & 1);
        store_transposed_matrices(
            x, mirror_of(unit) + static_cast<std::uint32_t>((k * 16 + row) * 128 + (chunk ^ (row & 7)) * 16));
    }
    __device__ __forceinline__ bool is_first_warp_lane() const {
        return warp_ == 0 && lane_index() == 0;
    }

    /// The bias of the lane's two columns among eight.
    __device__ __forceinline__ float2 bias_of(int column) const {
        std::uint32_t pair;
        asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(bias_ + column * 2 + lane_index() % 4 * 4));
        return unpack<T>(pair);
    }

    /// Adds the column sums of the lanes of a warp for 64 columns, and writes them to shared memory. Each
    /// step halves the number of sums of a lane.
    __device__ __forceinline__ void add_lanes(float (&sums)[8][2], int panel) const {
        const int lane = lane_index();
#pragma unroll
        for (int step = 0; step < 3; ++step) {
            const int count = 4 >> step, bit = 16 >> step;
            const bool upper = (lane & bit) != 0;
#pragma unroll
            for (int i = 0; i < count; ++i)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const float sent = upper ? sums[i][e] : sums[i + count][e];
                    const float kept = upper ? sums[i + count][e] : sums[i][e];
                    sums[i][e] = kept + __shfl_xor_sync(~0u, sent, bit);
                }
        }
        // Bits 4, 3 and 2 of the lane are bits 2, 1 and 0 of the eight columns' number.
        const int eight = (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1);
        const std::uint32_t to = base_ + Policy::sums_memory + warpgroup_ * Policy::sums_bytes +
                                 (warp_ * tiles.columns + panel * 64 + eight * 8 + lane % 4 * 2) * 4;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(sums[0][0]), "f"(sums[0][1])
                     : "memory");
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[i][0] = sums[i][1] = 0;
    }
    /// Adds the column sums of the four warps.
    __device__ __forceinline__ void store_column_sums(const TileOrder::Tile& tile) const {
        wait_at(1 + warpgroup_, warpgroup_threads);
        if (tile.row >= p_.rows) return;
        const int thread = static_cast<int>(reread_thread_index()) % warpgroup_threads;
#pragma unroll
        for (int i = 0; i < (tiles.columns + warpgroup_threads - 1) / warpgroup_threads; ++i) {
            const int column = thread + i * warpgroup_threads;
            if (column >= tiles.columns || tile.column + column >= p_.columns) break;
            const std::uint32_t from =
                base_ + Policy::sums_memory + warpgroup_ * Policy::sums_bytes + column * 4;
            float sum = 0;
#pragma unroll
            for (int warp = 0; warp < 4; ++warp) {
                float part;
                asm volatile("ld.shared.f32 %0, [%1];"
                             : "=f"(part)
                             : "r"(from + warp * tiles.columns * 4)
                             : "memory");
                sum += part;
            }
            p_.column_sums[static_cast<std::int64_t>(tile.row / 128) * p_.columns + tile.column + column] =
                sum;
        }
    }

    const Parameters& p_;
    std::uint32_t base_;
    int warpgroup_;
    int first_row_;  ///< of this consumer in the tile
    int warp_;       ///< in the warpgroup. One lane alone, which copies boxes, cannot call warp_index().
    StagePosition<Policy::stages> at_;
    int last_stage_ = 0;      ///< of the present tile's products
    std::uint32_t bias_ = 0;  ///< of the present tile
    int bias_turn_ = 0, with_round_ = 0;
};

template <class Policy>
__global__ void __cluster_dims__(Policy::tiles.cluster, 1, 1) __launch_bounds__(ProductTiles::threads, 1)
    product_kernel(const __grid_constant__ ProductParameters<typename Policy::Epilogue> p) {
    constexpr ProductTiles tiles = Policy::tiles;
    extern __shared__ __align__(1024) unsigned char shared[];
    const std::uint32_t base = shared_address(shared);
    if (threadIdx.x == 0) {
        constexpr int releases = 4 * (tiles.in_turns ? 1 : tiles.consumers) * tiles.cluster;
        for (int stage = 0; stage < Policy::stages; ++stage) {
            full_barrier<Policy>(base, stage).initialize(1);
            empty_barrier<Policy>(base, stage).initialize(releases);
        }
        for (int i = 0; i < Policy::warps * Policy::unit_buffers; ++i)
            Barrier(base + Policy::with_memory + i * 8).initialize(1);
        publish_barriers();
    }
    if constexpr (tiles.cluster == 1) {
        __syncthreads();
    } else {
        wait_for_cluster();
    }
    await_predecessor();
    const int warpgroup = warpgroup_index(), rank = tiles.cluster == 1 ? 0 : rank_in_cluster();
    if (warpgroup == tiles.consumers) {
        release_registers_down_to<tiles.producer_registers>();
        if (threadIdx.x == tiles.consumers * warpgroup_threads) produce<Policy>(p, base, rank);
    } else {
        take_registers_up_to<tiles.consumer_registers>();
        ProductConsumer<Policy>(p, base, warpgroup).consume(rank);
    }
    // A thread block's shared memory must exist until no other block of the cluster writes to it.
    if constexpr (tiles.cluster > 1) wait_for_cluster();
}

}  // namespace device
}  // namespace gradtile::cuda
