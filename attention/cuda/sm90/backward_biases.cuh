#pragma once
/// Biases in the backward pass, whose scores have keys as rows. The producer copies a bias tile with every
/// row block. Key biases stay in registers for all row blocks in a head.
#include <gradtile/attention/cuda/sm90/bias_tiles.cuh>

namespace gradtile::attention::cuda::device {

/// Shared memory for the bias tiles; empty for policies without biases.
template <class Policy, bool has_biases = Policy::rule == HopperRule::biases>
struct BackwardBiasShared {
    static constexpr int bytes = 0;
    struct Rings {
        __device__ void initialize_all(int) {}
    };
};
template <class Policy>
struct BackwardBiasShared<Policy, true> {
    using Tile = BiasTile<Policy::tiles.rows>;
    // For a row block, a float32 bias takes two stages and a 16-bit bias takes one.
    static constexpr int bytes = 64 << 10, stages = bytes / Tile::bytes;
    struct Rings {
        Ring<stages> matrix;
        __device__ void initialize_all(int consumer_warps) { initialize(matrix, consumer_warps); }
    };
};

/// Loads bias tiles in the producer. Without biases the functions do nothing.
template <class Policy, class Shared, bool has_biases = Policy::rule == HopperRule::biases>
class BackwardBiasProducer {
  public:
    __device__ __forceinline__ BackwardBiasProducer(std::uint32_t, typename Shared::Rings&) {}
    template <class Task>
    __device__ __forceinline__ void load(const HopperBackwardParameters&, const Task&, int, int) {}
};
template <class Policy, class Shared>
class BackwardBiasProducer<Policy, Shared, true> {
    using Tile = typename Shared::Biases::Tile;

  public:
    __device__ __forceinline__ BackwardBiasProducer(std::uint32_t base, typename Shared::Rings& rings)
        : base_(base), matrix_(rings.biases.matrix) {}
    /// Loads a head's bias tile for a row block. The row block's Q and dO must have been loaded before:
    /// consumers need them to release the previous tile.
    template <class Task>
    __device__ __forceinline__ void load(const HopperBackwardParameters& p, const Task& task, int head,
                                         int row) {
        if (p.biases.matrix == BiasMatrix::none) return;
        const int keys = bias_tile_keys(p.biases.matrix);
        for (int key = 0; key < Policy::tiles.keys; key += keys) {
            matrix_.wait_empty();
            matrix_.full().arrive_and_expect(Tile::bytes);
            load_bias_tile<Tile>(base_ + Shared::biases + matrix_.stage() * Tile::bytes, p.biases, task.batch,
                                 head, row, task.key + key, matrix_.full());
            matrix_.advance();
        }
    }

  private:
    std::uint32_t base_;
    RingPosition<Shared::Biases::stages> matrix_;
};

/// Adds biases to a consumer warp's scores. Without biases the functions do nothing.
template <class T, class Policy, class Shared, bool has_biases = Policy::rule == HopperRule::biases>
class BackwardBiasReader {
  public:
    __device__ __forceinline__ BackwardBiasReader(std::uint32_t, typename Shared::Rings&, int) {}
    template <class Task>
    __device__ __forceinline__ void begin(const HopperBackwardParameters&, const Task&) {}
    template <class Scores>
    __device__ __forceinline__ void add_to(const HopperBackwardParameters&, Scores&, int) {}
    template <class Scores>
    __device__ __forceinline__ bool make_large_probabilities(const HopperBackwardParameters&, Scores&,
                                                             const DeviceMask&, RowPosition, int) const {
        return false;
    }
};
template <class T, class Policy, class Shared>
class BackwardBiasReader<T, Policy, Shared, true> {
    using Tile = typename Shared::Biases::Tile;
    static constexpr int rows = Policy::tiles.rows;

  public:
    /// `key` is the warp's first key in a 128-key tile.
    __device__ __forceinline__ BackwardBiasReader(std::uint32_t base, typename Shared::Rings& rings, int key)
        : tiles_(base + Shared::biases), key_(key), matrix_(rings.biases.matrix) {}

    template <class Task>
    __device__ __forceinline__ void begin(const HopperBackwardParameters& p, const Task& task) {
        task_key_ = task.key;
        batch_ = task.batch;
        has_large_lse_ = *p.params.has_large_lse != 0;
        read_keys(p, task.head * p.params.sizes.group);
    }
    /// Computes the next row block's scores, in base 2 unless an LSE is large.
    __device__ __forceinline__ void add_to(const HopperBackwardParameters& p, FragmentC (&s)[1][rows / 8],
                                           int head) {
        if (head != head_) read_keys(p, head);  // each head in a group has its own biases
        const float scale = has_large_lse_ ? p.params.scale : p.params.scale_log2, unit = score_unit();
        if (p.biases.matrix == BiasMatrix::bits16) {
            matrix_.wait_full();
            const std::uint32_t tile =
                LanePointer<Tile>::paired(tiles_ + matrix_.stage() * Tile::bytes).at(0, key_);
#pragma unroll
            for (int n = 0; n < rows / 8; n += 2) {
                std::uint32_t matrices[4];
                load_matrices<true>(matrices, tile + n * 8 * Tile::row_bytes);
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    add(&s[0][n + i / 2][i % 2 * 2], scale, unit, unpack<T>(matrices[i]), key_biases_[i % 2]);
            }
            release(matrix_);
        } else if (p.biases.matrix == BiasMatrix::float32) {
#pragma unroll 1
            for (int first_key = 0; first_key < 128; first_key += 64) {
                matrix_.wait_full();
                if (const int key = key_ - first_key; key >= 0 && key < 64)
                    add_float32(s, tiles_ + matrix_.stage() * Tile::bytes, key, scale, unit);
                release(matrix_);
            }
        } else {
#pragma unroll
            for (int n = 0; n < rows / 8; ++n)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    add(&s[0][n][half * 2], scale, unit, {0, 0}, key_biases_[half]);
        }
    }

    /// Replaces the scores by P^T times p_factor if an LSE is large; otherwise returns false.
    __device__ __forceinline__ bool make_large_probabilities(const HopperBackwardParameters& p,
                                                             FragmentC (&s)[1][rows / 8],
                                                             const DeviceMask& seen, RowPosition position,
                                                             int key) const {
        if (!has_large_lse_) return false;
        const RowReferences references(
            p.params.lse, p.params.lse_remainder,
            static_cast<std::int64_t>(batch_) * p.params.sizes.heads + position.head, seen.queries);
#pragma unroll
        for (int n = 0; n < rows / 8; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const ExactLse row = references(position.row + n * 8 + lane_index() % 4 * 2 + e);
                s[0][n][e] = exact_probability(s[0][n][e], row, p_exponent);
                s[0][n][e + 2] = exact_probability(s[0][n][e + 2], row, p_exponent);
            }
        if (!seen.sees_all(position.row, rows, key, 16)) mask_transposed(s, 0, seen, key, position.row);
        return true;
    }

  private:
    __device__ __forceinline__ float score_unit() const {
        return has_large_lse_ ? 1.0f : log2_e;
    }
    __device__ __forceinline__ void read_keys(const HopperBackwardParameters& p, int head) {
        head_ = head;
        const KeyBiases biases(p.biases, batch_, head);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = task_key_ + key_ + half * 8 + lane_index() / 4;
            key_biases_[half] = key < p.params.mask.keys ? score_unit() * biases.template sum<T>(key) : 0.0f;
        }
    }
    /// `tile` has 64 keys, and `key` is the warp's first key in it.
    __device__ __forceinline__ void add_float32(FragmentC (&s)[1][rows / 8], std::uint32_t tile, int key,
                                                float scale, float unit) const {
        const int row = lane_index() % 4 * 2, lane_key = key + lane_index() / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int tile_key = lane_key + half * 8;
            const std::uint32_t panel_address = tile + tile_key / 32 * Tile::panel_bytes + tile_key % 4 * 4;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const std::uint32_t first = panel_address + Tile::offset(row + e, tile_key % 32 / 4);
#pragma unroll
                for (int n = 0; n < rows / 8; ++n) {
                    float term;
                    asm volatile("ld.shared.f32 %0, [%1];"
                                 : "=f"(term)
                                 : "r"(first + n * 8 * Tile::row_bytes)
                                 : "memory");
                    float& score = s[0][n][half * 2 + e];
                    score = fmaf(term, unit, fmaf(score, scale, key_biases_[half]));
                }
            }
        }
    }
    __device__ __forceinline__ static void add(float* pair, float scale, float unit, float2 terms,
                                               float key_bias) {
        pair[0] = fmaf(terms.x, unit, fmaf(pair[0], scale, key_bias));
        pair[1] = fmaf(terms.y, unit, fmaf(pair[1], scale, key_bias));
    }

    std::uint32_t tiles_;
    int key_;
    int task_key_ = 0, batch_ = 0, head_ = -1;
    bool has_large_lse_ = false;
    float key_biases_[2] = {};  ///< biases for a lane's two keys, in the scores' units
    RingPosition<Shared::Biases::stages> matrix_;
};

}  // namespace gradtile::attention::cuda::device
