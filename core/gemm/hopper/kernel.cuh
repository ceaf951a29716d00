#pragma once
/// Matrix products with the asynchronous products and copies of Hopper, and with an epilogue: a functor that
/// computes the results from the sums while they are in registers.
///
/// A thread block stays on its multiprocessor and takes one tile of the result after the other. Its producer
/// thread copies blocks of A and B to a ring in shared memory, also those of the next tiles. The consumers
/// multiply them. A warp of a consumer stores its results through buffers of its own, so that no warp waits
/// for another one in the epilogue. If the epilogue reads matrices, the two consumers compute tiles in turns,
/// and their warps with the same rows share buffers: while one consumer computes its epilogue, the inputs of
/// the other consumer's next tile are loaded.
///
/// An epilogue has these members:
///   Element       bfloat16 or float16: the type of all matrices and of the bias
///   products      1, or 2: a tile has columns of a b[0] and the same columns of a b[1], half each
///   outputs       the number of matrices that it stores; all have the shape of one product
///   inputs        the number of matrices of this shape that it reads
///   has_bias      whether a bias is added to each row before begin(); zeros when there is none
///   sums_columns  whether the columns of the first output are summed, after rounding
///   symmetric     whether A and B are the same matrices and the results are symmetric (symmetric.cuh)
///   Step          what begin() passes on to end()
///   begin(step, x, in), end(out, step, x, in)  compute eight elements of each output. out[i] = the elements
///                 of output i in pairs of neighbouring columns, packed; x[i] = the sums of product i at
///                 these elements; in[i] = the elements of input i, packed. The second pair is 8 rows below
///                 the first one, the third pair 8 columns to the right, the fourth pair both. begin() for
///                 the next elements may run before end() for these ones. If the result is symmetric, end()
///                 has one more argument: the row minus the column of the first element.
#include <cstdint>
#include <type_traits>

#include <gradtile/core/gemm/hopper/internal/tiles.h>
#include <gradtile/core/cuda/device/cluster_copy.cuh>
#include <gradtile/core/cuda/device/fragments.cuh>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/core/cuda/device/streamed_copy.cuh>
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
    static constexpr int unit_columns = Epilogue::outputs > 2 ? 32 : 64;
    static constexpr int unit_row_bytes = 2 * unit_columns, unit_bytes = 16 * unit_row_bytes;
    static constexpr int panels = columns / unit_columns,
                         units = tiles.row_blocks * panels;  ///< of a warp in a tile
    /// Two buffers of a consumer for 64 x 64 elements of a transposed tile.
    static constexpr int mirror_bytes = 64 * 64 * 2,
                         all_mirror_bytes = Epilogue::symmetric ? tiles.consumers * 2 * mirror_bytes : 0;
    // The bias of a consumer's tile, twice: the fastest warp may be in the tile after the slowest warp's.
    static constexpr int bias_bytes = 2 * tiles.columns;
    static constexpr int sums_rows = 4 * tiles.row_blocks, sums_bytes = 4 * sums_rows * tiles.columns;
    static constexpr int all_bias_bytes = Epilogue::has_bias ? 2 * tiles.consumers * bias_bytes : 0,
                         all_sums_bytes = Epilogue::sums_columns ? tiles.consumers * sums_bytes : 0;
    static constexpr int max_stages = 6,
                         max_barriers_bytes = 16 * max_stages + 8 * 4 * tiles.consumers * units;
    static constexpr int max_bytes = 227 * 1024;
    static constexpr int free_bytes =
        max_bytes - all_mirror_bytes - all_bias_bytes - all_sums_bytes - max_barriers_bytes;

    /// Whether the epilogue reads matrices. An input is loaded long before its use, to the buffer of the
    /// output that overwrites it. The warps of the two consumers that have the same rows share buffers: when
    /// a warp has stored a unit, it loads a unit of its own tile or of the other consumer's next tile to the
    /// free buffers.
    static constexpr bool has_inputs = Epilogue::inputs > 0;
    static_assert(Epilogue::inputs <= Epilogue::outputs && tiles.consumers == 2);
    static constexpr int owners = 4 * (has_inputs ? 1 : tiles.consumers);  ///< of buffers: warps, or pairs
    static constexpr int buffer_bytes = Epilogue::outputs * unit_bytes;
    /// The inputs get the memory that four stages leave free. Three stages hide less of the latency of A
    /// and B.
    static constexpr int stages_beside_inputs = 4;
    static constexpr int fitting_buffers =
        (free_bytes - stages_beside_inputs * tiles.stage_bytes()) / (owners * buffer_bytes);
    /// The number of buffers that a warp or pair has for each output: at most those of a whole tile.
    static constexpr int unit_buffers = !has_inputs ? 2 : fitting_buffers < units ? fitting_buffers : units;
    static_assert(unit_buffers <= 32);  // ProductConsumer::input_rounds_ has a bit for each
    // Without inputs, a tile begins with the first buffer again; so do transposed tiles.
    static_assert((has_inputs && !Epilogue::symmetric) || units % 2 == 0);
    static constexpr int owner_bytes = unit_buffers * buffer_bytes;
    static constexpr int fitting_stages = (free_bytes - owners * owner_bytes) / tiles.stage_bytes();
    static constexpr int stages = fitting_stages < max_stages ? fitting_stages : max_stages;

    // Offsets in the shared memory of a thread block.
    static constexpr int unit_memory = stages * tiles.stage_bytes(),
                         mirror_memory = unit_memory + owners * owner_bytes,
                         bias_memory = mirror_memory + all_mirror_bytes,
                         sums_memory = bias_memory + all_bias_bytes,
                         full_memory = sums_memory + all_sums_bytes, with_memory = full_memory + 16 * stages,
                         bytes = with_memory + (has_inputs ? 8 * 4 * tiles.consumers * unit_buffers : 0);
    static_assert(bytes <= max_bytes && full_memory % 8 == 0);

    /// Whether there is such a kernel. An activation takes part in large products only.
    static constexpr bool has_activation =
        !Epilogue::symmetric && Epilogue::products + Epilogue::outputs + Epilogue::inputs > 2;
    static constexpr bool exists = stages >= 3 && !(has_activation && tiles.is_small()) &&
                                   (!has_inputs || (tiles.in_turns && unit_buffers >= 2)) &&
                                   (!Epilogue::sums_columns || (tiles.rows() == 128 && unit_columns == 64));
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
    static constexpr bool has_inputs = Policy::has_inputs;
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
        if constexpr (has_inputs) {
            unit_at_.advance(warpgroup_ * units);
            if (warpgroup_ == 0 && index < p_.tiles && lane_index() == 0)
                load_first_inputs(tile_at<Policy>(p_, index, rank));
        }
        for (; index < p_.tiles; index += (1 + others) * step) {
            const TileOrder::Tile tile = tile_at<Policy>(p_, index, rank);
            copy_bias(tile);
            if (tiles.in_turns && index >= step) wait_for_turn();
            Sums sums;
            multiply(sums);
            if (tiles.in_turns && index + step < p_.tiles) pass_turn();
            await_sums(sums);
            const bool has_next = has_inputs && index + step < p_.tiles;
            finish(sums, tile, has_next,
                   has_next ? tile_at<Policy>(p_, index + step, rank) : TileOrder::Tile{});
            at_.advance(others * p_.depth_blocks);
            if constexpr (has_inputs) unit_at_.advance(others * units);
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

    /// A unit's block of 64 rows. Units of the same rows follow each other, so that accesses to a row of the
    /// matrix are close in time.
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
    /// The number of a unit's buffers. If there are buffers for all units of a tile, the number is known to
    /// the compiler.
    __device__ __forceinline__ int slot_of(int unit) const {
        return has_inputs && unit_buffers < units ? unit_at_.stage : unit % unit_buffers;
    }
    __device__ __forceinline__ std::uint32_t buffer_of(int slot, int output) const {
        const int owner = has_inputs ? warp_ : warpgroup_ * 4 + warp_;
        return base_ + Policy::unit_memory + owner * Policy::owner_bytes +
               (slot * Epilogue::outputs + output) * Policy::unit_bytes;
    }

    /// Starts to copy the bias of a tile, before the tile's products.
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

    /// The barrier of loads to a slot for a tile of `consumer`. Each consumer has its own barrier, because a
    /// wait names a phase by its parity: it must follow waits for all earlier phases.
    __device__ __forceinline__ Barrier with_barrier(int consumer, int slot) const {
        return Barrier(base_ + Policy::with_memory + ((consumer * 4 + warp_) * unit_buffers + slot) * 8);
    }
    __device__ __forceinline__ void load_inputs(int consumer, const TileOrder::Tile& tile, int unit,
                                                int slot) const {
        const Barrier full = with_barrier(consumer, slot);
        full.arrive_and_expect(Epilogue::inputs * Policy::unit_bytes);
#pragma unroll
        for (int input = 0; input < Epilogue::inputs; ++input) {
            const BoxPosition at = position_of(tile, unit);
            const std::uint32_t to = buffer_of(slot, input);
            if constexpr (Policy::has_activation) {
                load_streamed_box(to, p_.with[input], at, full);
            } else {
                load_box(to, p_.with[input], at, full);  // also A and B, which are read again
            }
        }
    }
    /// Starts to load as many units of the thread block's first tile as there are buffers.
    __device__ __forceinline__ void load_first_inputs(const TileOrder::Tile& tile) const {
#pragma unroll
        for (int unit = 0; unit < unit_buffers; ++unit) load_inputs(0, tile, unit, unit);
    }
    __device__ __forceinline__ void await_inputs(int slot) {
        with_barrier(warpgroup_, slot).wait(static_cast<int>(input_rounds_ >> slot & 1));
        input_rounds_ ^= 1u << slot;
    }

    /// Computes and stores the results of a tile. When the store of a unit has read its buffers, they receive
    /// the inputs of a later unit of the tile or, if has_next, of `next`, the other consumer's tile.
    __device__ __forceinline__ void finish(const Sums& c, const TileOrder::Tile& tile, bool has_next,
                                           const TileOrder::Tile& next) {
        if constexpr (Epilogue::has_bias) {
            wait_for_copies<0>();
            __syncwarp();
        }
        // All warps have read the previous tile's sums.
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
                if (lane_index() == 0) wait_until_stores_but_latest_have_read<unit_buffers - 1>();
                __syncwarp();
            }
            finish_unit(c[block_of(unit)], tile, unit, slot);
            if constexpr (has_inputs) {
                unit_at_.advance();
                if (unit > 0 && lane_index() == 0) {
                    wait_until_stores_but_latest_have_read<1>();
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
        if constexpr (Epilogue::sums_columns) store_column_sums(tile);
    }

    __device__ __forceinline__ void finish_unit(const FragmentC (&c)[tiles.columns / 8],
                                                const TileOrder::Tile& tile, int unit, int slot) {
        constexpr int row_bytes = Policy::unit_row_bytes;
        const int lane = lane_index(), first = first_column_of(unit);
        // The 16-byte chunks of a row are swizzled as TMA does.
        const int row = lane & 15, swizzle = row_bytes == 128 ? row & 7 : row >> 1 & 3;
        const auto chunk = static_cast<std::uint32_t>(row * row_bytes + (lane >> 4 ^ swizzle) * 16);
        const bool is_mirrored = Epilogue::symmetric && tile.row > tile.column;
        // The same for the transpose: the rows and columns of the four 8 x 8 matrices are exchanged.
        [[maybe_unused]] const int row_of_transposed = (lane & 7) + (lane >> 4) * 8;
        [[maybe_unused]] const auto transposed_chunk =
            static_cast<std::uint32_t>(row_of_transposed * row_bytes + ((lane >> 3 & 1) ^ (lane & 7)) * 16);
        constexpr int products = Epilogue::products, pieces = Policy::unit_columns / 16,
                      inputs = Epilogue::inputs == 0 ? 1 : Epilogue::inputs;
        FragmentA in[pieces][inputs]{};
        float x[pieces][products][8];
        typename Epilogue::Step steps[pieces];
        // A piece has 16 columns. A piece begins before the one before it ends, so that their latencies
        // overlap. With two inputs, two pieces would take too many registers.
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
                sum_rows(column_sums[k], transposed);
            }
        }
        if constexpr (Epilogue::sums_columns) write_column_sums(column_sums, unit);
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
            for (int output = 0; output < Epilogue::outputs; ++output) {
                const BoxPosition at = position_of(tile, unit);
                const std::uint32_t from = buffer_of(slot, output);
                if constexpr (Policy::has_activation) {
                    store_streamed_box(p_.to[output], at, from);
                } else {
                    store_box(p_.to[output], at, from);
                }
            }
            if constexpr (Epilogue::symmetric) {
                if (is_mirrored && warp_ == 0)
                    store_box(
                        p_.to[Epilogue::outputs],
                        {tile.row + first_row_ + block_of(unit) * 64, tile.column + first, 0, tile.matrix},
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

    /// The sums of the lane's two rows of a 16 x 16 matrix, lane / 4 and lane / 4 + 8. The four lanes with
    /// the same rows receive the same sums: those of a product with a matrix of ones, because tensor cores
    /// need few instructions.
    __device__ __forceinline__ static void sum_rows(float (&sums)[2], const FragmentA& x) {
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
    /// Writes the column sums of a unit to shared memory. Each of four lanes with the same sums writes those
    /// of one piece.
    __device__ __forceinline__ void write_column_sums(const float (&sums)[4][2], int unit) const {
        const int lane = lane_index(), piece = lane % 4, row = block_of(unit) * 4 + warp_;
        const std::uint32_t to = base_ + Policy::sums_memory + warpgroup_ * Policy::sums_bytes +
                                 (row * tiles.columns + first_column_of(unit) + piece * 16 + lane / 4) * 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float low = piece == 0 ? sums[0][i] : sums[1][i],
                        high = piece == 2 ? sums[2][i] : sums[3][i];
            asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + i * 32), "f"(piece < 2 ? low : high)
                         : "memory");
        }
    }
    /// Adds the column sums of the four warps and their units.
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
            for (int row = 0; row < Policy::sums_rows; ++row) {
                float part;
                asm volatile("ld.shared.f32 %0, [%1];"
                             : "=f"(part)
                             : "r"(from + row * tiles.columns * 4)
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
    StagePosition<Policy::unit_buffers> unit_at_;  ///< in the ring of the epilogue's inputs
    std::uint32_t input_rounds_ = 0;               ///< for each slot, the parity of this consumer's loads
    int last_stage_ = 0;                           ///< of the present tile's products
    std::uint32_t bias_ = 0;                       ///< of the present tile
    int bias_turn_ = 0;
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
        if constexpr (Policy::has_inputs)
            for (int i = 0; i < 4 * tiles.consumers * Policy::unit_buffers; ++i)
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
    // A thread block's memory must exist until the other ones of the cluster no longer write to it.
    if constexpr (tiles.cluster > 1) wait_for_cluster();
}

}  // namespace device
}  // namespace gradtile::cuda
