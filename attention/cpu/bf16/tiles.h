#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. Everything has internal linkage, so
/// that the linker cannot use code compiled for AVX-512 in place of a portable function.
///
/// The matrix products for the bf16 kernels. A left operand is stored in tiles of 16 rows x 32 elements along
/// the summed axis. A right operand is stored in tiles of 16 columns x 32 elements, in pairs: tile element
/// (p, 2 j + e) is element 2 p + e of column j.
///
/// The kernels' template parameter `Tiles` is a class for which multiply_square() exists. AVX-512 has its
/// own; for AMX it is a template here, over a tile algebra: a class with eight tiles, each 16 rows x 64
/// bytes. Tiles 0 to 3 are accumulators, tiles 4 to 7 operands:
///   zero<t>(), load<t>(float*, stride), store<t>(float*, stride)    t is an accumulator, 16 x 16 float32
///   load<t>(bfloat16*)                                              t is an operand, 1 KB of adjacent memory
///   multiply_add<c, a, b>()                                         c += a b, summed over 32 elements
#include <cstddef>
#include <cstdint>

#include <gradtile/attention/cpu/index_math.h>
#include <gradtile/core/dtype.h>

namespace gradtile::attention::cpu {
namespace {

constexpr std::int64_t tile_rows = 16;
constexpr std::int64_t tile_depth = 32;  ///< elements along the summed axis in one product
constexpr std::int64_t tile_elements = tile_rows * tile_depth;
/// Products are computed in squares of 2 x 2 accumulators: four products for four operand loads.
constexpr std::int64_t square = 2 * tile_rows;

/// A matrix divided into operand tiles. tile(i, k) contains 16 rows (left operand) or 16 columns (right
/// operand) from 16 i on, and 32 elements along the summed axis from 32 k on.
struct Operand {
    bfloat16* data;
    std::int64_t depth;  ///< tiles along the summed axis
    bfloat16* tile(std::int64_t i, std::int64_t k) const { return data + (i * depth + k) * tile_elements; }
};

/// A row-major float32 matrix.
struct Matrix {
    float* data;
    std::int64_t stride;
    float* at(std::int64_t i, std::int64_t j) const { return data + i * stride + j; }
};

enum class Sum : std::uint8_t { overwrite, accumulate };

/// Computes one square of a product: c [32, 32] = a b, or c += a b. Rows 32 i to 32 i + 31 of a are
/// multiplied by columns 32 j to 32 j + 31 of b, summed over the tiles `depth` along the summed axis.
template <class Tiles>
[[gnu::noinline]] void multiply_square(Tiles& tiles, const Matrix& c, const Operand& a, std::int64_t i,
                                       const Operand& b, std::int64_t j, IndexRange depth, Sum sum) {
    const std::int64_t stride = c.stride;
    float* const c00 = c.data;
    float* const c01 = c.at(0, tile_rows);
    float* const c10 = c.at(tile_rows, 0);
    float* const c11 = c.at(tile_rows, tile_rows);
    if (sum == Sum::accumulate) {
        tiles.template load<0>(c00, stride);
        tiles.template load<1>(c01, stride);
        tiles.template load<2>(c10, stride);
        tiles.template load<3>(c11, stride);
    } else {
        tiles.template zero<0>();
        tiles.template zero<1>();
        tiles.template zero<2>();
        tiles.template zero<3>();
    }
    const bfloat16 *a0 = a.tile(2 * i, depth.begin), *a1 = a.tile(2 * i + 1, depth.begin);
    const bfloat16 *b0 = b.tile(2 * j, depth.begin), *b1 = b.tile(2 * j + 1, depth.begin);
    for (std::int64_t k = depth.begin; k < depth.end; ++k) {
        tiles.template load<4>(a0);
        tiles.template load<6>(b0);
        tiles.template multiply_add<0, 4, 6>();
        tiles.template load<7>(b1);
        tiles.template multiply_add<1, 4, 7>();
        tiles.template load<5>(a1);
        tiles.template multiply_add<2, 5, 6>();
        tiles.template multiply_add<3, 5, 7>();
        a0 += tile_elements, a1 += tile_elements;
        b0 += tile_elements, b1 += tile_elements;
    }
    tiles.template store<0>(c00, stride);
    tiles.template store<1>(c01, stride);
    tiles.template store<2>(c10, stride);
    tiles.template store<3>(c11, stride);
}

}  // namespace
}  // namespace gradtile::attention::cpu
