#pragma once
/// The part of a bias gradient that one thread block computes, and the pair tiles that it sums.
#include <gradtile/attention/cuda/common/bias_gradients.h>
#include <gradtile/core/check.h>
#include <gradtile/attention/cuda/common/block_sequence.cuh>
#include <gradtile/core/cuda/device/convert.cuh>

namespace gradtile::attention::cuda::device {

/// Returns how many thread blocks compute one gradient: one per tile (rows and keys) in each gradient batch
/// and head.
inline unsigned bias_blocks(const BiasGradient& g, std::int64_t queries, std::int64_t keys, int tile_rows,
                            int tile_keys) {
    const std::int64_t row_tiles = g.sums_rows ? 1 : (queries + tile_rows - 1) / tile_rows;
    const std::int64_t key_tiles = g.sums_keys ? 1 : (keys + tile_keys - 1) / tile_keys;
    const std::int64_t blocks = row_tiles * key_tiles * g.batches * g.heads;
    check(blocks <= INT32_MAX, "attention: a bias gradient of ", blocks,
          " tiles; CUDA launches at most 2^31 - 1 blocks");
    return static_cast<unsigned>(blocks);
}

template <class A>
__device__ __forceinline__ void store_bias_gradient(const BiasGradient& g, int batch, int head,
                                                    std::int64_t i, std::int64_t j, A sum) {
    const std::int64_t offset =
        batch * g.strides[0] + head * g.strides[1] + i * g.strides[2] + j * g.strides[3];
    const auto store = [&]<class T>(T) {
        reinterpret_cast<T*>(g.data)[offset] = gradtile::cuda::device::convert<T>(sum);
    };
    if (g.dtype == DType::f32) return store(0.0f);
    if (g.dtype == DType::f64) return store(0.0);
    if (g.dtype == DType::bf16) return store(bfloat16{});
    store(float16{});
}

struct BiasBlock {
    int batch, head;        ///< gradient batch and head
    std::int64_t row, key;  ///< the tile's first pair; 0 along summed axes
    std::int64_t end_row, end_key;
    int tile_rows, tile_keys;

    /// `index` is the tile's number.
    __device__ BiasBlock(const BiasGradient& g, std::int64_t queries, std::int64_t keys, int rows_of_tile,
                         int keys_of_tile, std::int64_t index = blockIdx.x)
        : tile_rows(rows_of_tile), tile_keys(keys_of_tile) {
        const std::int64_t row_tiles = g.sums_rows ? 1 : (queries + tile_rows - 1) / tile_rows;
        const std::int64_t key_tiles = g.sums_keys ? 1 : (keys + tile_keys - 1) / tile_keys;
        key = index % key_tiles * tile_keys;
        index /= key_tiles;
        row = index % row_tiles * tile_rows;
        index /= row_tiles;
        head = static_cast<int>(index % g.heads);
        batch = static_cast<int>(index / g.heads);
        end_row = g.sums_rows ? queries : row + 1;
        end_key = g.sums_keys ? keys : key + 1;
    }

    /// A pair tile in one q head.
    struct Pairs {
        int batch, head;
        std::int64_t row, key;
    };
    /// Returns how many pair tiles contribute to this block's sum.
    __device__ int count(const BiasGradient& g) const {
        return g.summed_batches * g.summed_heads * row_steps() * key_steps();
    }
    __device__ Pairs operator()(const BiasGradient& g, int index) const {
        const int key_step = index % key_steps();
        index /= key_steps();
        const int row_step = index % row_steps();
        index /= row_steps();
        return {batch * g.summed_batches + index / g.summed_heads,
                head * g.summed_heads + index % g.summed_heads, row + std::int64_t{row_step} * tile_rows,
                key + std::int64_t{key_step} * tile_keys};
    }

    /// Writes the tile's element (x, y), unless it lies beyond the gradient's end.
    template <class A>
    __device__ __forceinline__ void store(const BiasGradient& g, int x, int y, A sum, std::int64_t queries,
                                          std::int64_t keys) const {
        const std::int64_t i = row + x, j = key + y;
        if ((!g.sums_rows && i >= queries) || (!g.sums_keys && j >= keys)) return;
        store_bias_gradient(g, batch, head, i, j, sum);
    }

  private:
    __device__ int row_steps() const { return static_cast<int>((end_row - row + tile_rows - 1) / tile_rows); }
    __device__ int key_steps() const { return static_cast<int>((end_key - key + tile_keys - 1) / tile_keys); }
};

/// A bias gradient in a packed call, and the sequences that add to one of its tiles. Its rows and keys count
/// from a sequence's start, or its keys are positions in k.
struct PackedBiasGradient {
    BiasGradient gradient;
    std::int64_t rows, keys;  ///< lengths of the gradient's last two axes
    bool has_packed_keys;
    PackedOffsets packed;

    PackedBiasGradient(const Tensor& into, const ScoreOptions::Bias& bias, const ResolvedOptions& options,
                       std::int64_t query_heads)
        : gradient(into, bias, options.packed.count, query_heads),
          rows(into.size(2)),
          keys(into.size(3)),
          has_packed_keys(bias.has_packed_keys),
          packed(options) {}

    __device__ IndexRange sequences_of(const BiasBlock& block) const {
        if (has_packed_keys && !gradient.sums_keys) {
            const int last = static_cast<int>(min(block.key + block.tile_keys, keys)) - 1;
            return {packed.sequence_of_key(static_cast<int>(block.key)),
                    min(packed.sequence_of_key(last) + 1, packed.count)};
        }
        const int first = block.batch * gradient.summed_batches;
        return {first, min(first + gradient.summed_batches, packed.count)};
    }
    /// The pairs of one sequence that add to a tile, counted from the sequence's start. The ranges of a tile
    /// that does not sum may exceed the sequence.
    struct Pairs {
        IndexRange rows, keys;
    };
    __device__ Pairs pairs_of(const BiasBlock& block, const SequenceOfPair& sequence) const {
        Pairs pairs{{block.row, block.row + block.tile_rows}, {block.key, block.key + block.tile_keys}};
        if (has_packed_keys) {
            pairs.keys.begin -= sequence.first_key;
            pairs.keys.end -= sequence.first_key;
        }
        if (gradient.sums_rows) pairs.rows = {0, sequence.mask.queries};
        if (gradient.sums_keys) pairs.keys = {0, sequence.mask.keys};
        return pairs;
    }
};

}  // namespace gradtile::attention::cuda::device
