#pragma once
/// The kernel of decode.h for several queries per K/V head: the query heads that share it, of one or more new
/// tokens. Each query costs as many multiplications per key, which take longer than reading the key outside
/// the tensor cores. So K and V are copied to shared memory asynchronously, tile by tile, and multiplied as
/// in sm80/few_queries.cuh: the warps divide the queries, and the keys of each tile. sm90/decode.cuh
/// multiplies in another way, and uses the rest of this file.
#include <gradtile/attention/cuda/common/shared_memory_limits.h>
#include <gradtile/attention/cuda/common/shared_tile.cuh>
#include <gradtile/attention/cuda/common/softmax.cuh>
#include <gradtile/attention/cuda/decode/decode.cuh>

namespace gradtile::attention::cuda::decoding {

/// A thread block's layout: up to 16 row_tiles queries, and tiles of K and V in a ring of `stages` stages.
/// All shared memory is at most 99 KB, which every GPU has; two blocks share an H200's multiprocessor. At
/// head dim 128 a third stage gained at most 1%.
template <class T, int max_dim_, int row_tiles>
struct TilesBlock {
    static constexpr int max_dim = max_dim_, queries = 16 * row_tiles, threads = 128, warps = 4;
    static constexpr bool several_tokens = true;
    static constexpr int keys = 64, pass_keys = keys, first_key_step = keys;
    static constexpr int stages = max_dim <= 32 ? 8 : max_dim <= 64 ? 4 : 2;
    /// Row tiles per warp. Two tiles halve the reads of K and V from shared memory.
    static constexpr int m_tiles = row_tiles == 4 ? 2 : 1;
    static constexpr int parts = warps * m_tiles / row_tiles, warp_keys = keys / parts;
    static constexpr int blocks_per_sm = 2;
    using QTile = device::Tile<queries, max_dim>;
    using KvTile = device::Tile<keys, max_dim>;
    static constexpr int tile_alignment = 128;
};

template <class Block>
struct RingShared : MergeShared<Block> {
    static constexpr int stage_bytes = 2 * Block::KvTile::bytes;
    /// K, then V, of each stage.
    alignas(Block::tile_alignment) unsigned char stages[Block::stages * stage_bytes];

    /// After the last tile, the parts' o take the place of K and V. The columns between rows let the rows
    /// that a warp stores at once lie in different banks.
    static constexpr int o_stride = Block::max_dim + 8;
    __device__ __forceinline__ float* part_o(int part, int query, int column) {
        return reinterpret_cast<float*>(stages) + (part * Block::queries + query) * o_stride + column;
    }
    static_assert(Block::parts * Block::queries * o_stride * 4 <= Block::stages * stage_bytes);
};

/// Both kernels with tensor cores derive from this class. They add how queries are copied and multiplied.
template <class T, class Block_, class Shared_>
class TilesWork : public DecodeWork<T, Block_, Shared_> {
  public:
    using Block = Block_;
    using Parameters = DecodeParameters<T>;
    using Shared = Shared_;

  protected:
    using Work = DecodeWork<T, Block, Shared>;
    using KvTile = typename Block::KvTile;
    static constexpr int max_dim = Block::max_dim, m_tiles = Block::m_tiles, stages = Block::stages,
                         row_chunks = KvTile::row_chunks;
    /// Each thread copies one 16-byte chunk of every row_step-th row.
    static constexpr int row_step = Block::threads / row_chunks;
    static_assert(Block::threads % row_chunks == 0 && Block::keys % row_step == 0);
    using Work::p_, Work::shared_, Work::thread_, Work::lane_, Work::warp_, Work::text_, Work::kv_head_,
        Work::position_, Work::mask_, Work::first_seen_key_, Work::keys_;
    using Work::token_of, Work::head_of, Work::last_key, Work::block_of;

  public:
    __device__ __forceinline__ TilesWork(const Parameters& p, Shared& shared)
        : Work(p, shared),
          warp_row_(warp_ / Block::parts * m_tiles * 16),
          part_(warp_ % Block::parts),
          softmax_(device::log2_e) {
        find_block(0);
        this->require_new_blocks();
    }

    /// Reads all that no preceding kernel may still write: the first tiles' cached keys and values, and the
    /// rule.
    __device__ __forceinline__ void read_ahead() {
        // Not unrolled, like the other loops around copies: a short text's time is that of reading the code.
#pragma unroll 1
        for (int tile = 0; tile < stages - 1; ++tile) load_cached(tile);
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const int h = row_of(i), token = token_of(h);
            formulas_[i] = p_.scores.template rule_of<float>(text_, head_of(h)).formula;
            first_key_[i] = mask_.first_key(token);
            end_key_[i] = min(keys_.end, last_key(h) + 1);
        }
        first_common_key_ = mask_.first_key(token_of(Block::queries - 1));
        end_common_key_ = min(keys_.end, last_key(0) + 1);
    }

    /// Stores each warp's normalized o and, as its maximum, the LSE. The sum is then exp() of what the LSE
    /// lost when it was rounded.
    __device__ __forceinline__ void reduce_warps() {
        ExactLse lse[2 * m_tiles];
        softmax_.finish(o_, lse);
        kernels::wait_for_copies<0>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const int h = row_of(i);
            const float sum = lse[i].lse == -INFINITY ? 0.0f : 1.0f + lse[i].remainder;
#pragma unroll
            for (int n = 0; n < max_dim / 8; ++n) {
                const float* const pair = &o_[i / 2][n][i % 2 * 2];
                *reinterpret_cast<float2*>(shared_.part_o(part_, h, n * 8 + lane_ % 4 * 2)) =
                    float2{sum * pair[0], sum * pair[1]};
            }
            if (lane_ % 4 == 0) shared_.part_sums[part_][h] = {lse[i].lse, sum};
        }
        __syncthreads();
    }

  protected:
    /// The query of the lane's accumulator row i.
    __device__ __forceinline__ int row_of(int i) const {
        return warp_row_ + i * 8 + lane_ / 4;
    }
    __device__ __forceinline__ int first_key_of(int tile) const {
        return keys_.begin + tile * Block::keys;
    }
    __device__ __forceinline__ int chunk() const {
        return thread_ % row_chunks;
    }
    __device__ __forceinline__ unsigned char* stage_of(int tile) const {
        return shared_.stages + tile % stages * Shared::stage_bytes;
    }

    /// Finds the block of a tile's first key. Called one tile ahead, so that no copy of a key waits for the
    /// table.
    __device__ __forceinline__ void find_block(int tile) {
        const int key = first_key_of(tile);
        if (key < min(keys_.end, position_)) next_block_ = block_of(key);
    }
    /// Starts to copy a tile's cached keys and values.
    __device__ __forceinline__ void load_cached(int tile) {
        const int first = first_key_of(tile);
        if (first < keys_.end) {
            if (first >= first_seen_key_ && first + Block::keys <= position_ &&
                p_.blocks.share_block(first, Block::keys) && p_.blocks.in_cache(next_block_)) {
                copy_rows(p_.cached_k, tile, 0);
                copy_rows(p_.cached_v, tile, KvTile::bytes);
            } else {
                copy_row_by_row(tile);
            }
            find_block(tile + 1);
        }
        kernels::commit_copies();
    }
    /// Copies a tile of cached keys in one block.
    __device__ __forceinline__ void copy_rows(const Heads<T>& from, int tile, int tile_offset) const {
        device::load_tile_async<KvTile, Block::threads>(
            kernels::shared_address(stage_of(tile)) + tile_offset,
            from.at(next_block_, p_.blocks.row_in_block(first_key_of(tile)), kv_head_), from.row_stride,
            Block::keys, p_.head_dim);
    }
    /// Copies a tile's cached keys that a query sees. Rows before and after them become 0. Keys in a block
    /// outside the cache become NaN, their values 0, which a query that does not see them needs.
    __device__ __forceinline__ void copy_row_by_row(int tile) const {
        const std::uint32_t stage = kernels::shared_address(stage_of(tile));
        const int column = chunk() * 8;
#pragma unroll 1
        for (int row = thread_ / row_chunks; row < Block::keys; row += row_step) {
            const int key = first_key_of(tile) + row;
            if (key >= position_ && key < keys_.end) continue;  // see store_new()
            const bool is_seen = key >= first_seen_key_ && key < keys_.end;
            const int block = is_seen ? block_of(key) : -1;
            const bool is_held = p_.blocks.in_cache(block), is_read = is_held && column < p_.head_dim;
            const std::uint32_t to = KvTile::offset(row, chunk());
            const auto start = [&](const Heads<T>& from, int tile_offset) {
                kernels::copy_16_bytes_async(
                    stage + tile_offset + to,
                    is_read ? from.at(block, p_.blocks.row_in_block(key), kv_head_) + column : from.data,
                    is_read);
            };
            if (is_seen && !is_held) {
                *reinterpret_cast<uint4*>(stage_of(tile) + to) = uint4{~0u, ~0u, ~0u, ~0u};
            } else {
                start(p_.cached_k, 0);
            }
            start(p_.cached_v, KvTile::bytes);
        }
    }
    /// Stores the new keys and values of the tiles that read_ahead() has begun to copy.
    __device__ __forceinline__ void store_first_new() const {
#pragma unroll 1
        for (int tile = 0; tile < stages - 1; ++tile) store_new(tile);
    }
    /// Stores a tile's new keys and values, which the preceding kernel has written.
    __device__ __forceinline__ void store_new(int tile) const {
        const int first = first_key_of(tile);
        if (first >= keys_.end || first + Block::keys <= position_) return;
#pragma unroll 1
        for (int row = thread_ / row_chunks; row < Block::keys; row += row_step) {
            const int key = first + row;
            if (key < position_ || key >= keys_.end) continue;
            const auto copy = [&](const Heads<const T>& from, int tile_offset) {
                uint4 values{};
                if (chunk() * 8 < p_.head_dim)
                    values = *reinterpret_cast<const uint4*>(from.at(text_, key - position_, kv_head_) +
                                                             chunk() * 8);
                *reinterpret_cast<uint4*>(stage_of(tile) + tile_offset + KvTile::offset(row, chunk())) =
                    values;
            };
            copy(p_.k, 0);
            copy(p_.v, KvTile::bytes);
        }
    }

    /// Turns products into scores: -inf for keys that a query does not see.
    template <int n_tiles>
    __device__ __forceinline__ void apply_rule(kernels::FragmentC (&s)[m_tiles][n_tiles],
                                               int first_key) const {
        const bool all_see_all =
            first_key >= first_common_key_ && first_key + Block::warp_keys <= end_common_key_;
#pragma unroll
        for (int i = 0; i < 2 * m_tiles; ++i) {
            const auto for_each_key = [&](auto&& change) {
#pragma unroll
                for (int n = 0; n < n_tiles; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e)
                        change(s[i / 2][n][i % 2 * 2 + e], first_key + n * 8 + lane_ % 4 * 2 + e);
            };
            const ScoreFormula<float>& formula = formulas_[i];
            for_each_key([&](float& score, int) { score *= p_.scale; });
            if (formula.changes_products())
                for_each_key([&](float& score, int) {
                    score = formula.template transform_product<device::FastMath>(score).value;
                });
            if (formula.has_distance_terms())
                for_each_key([&](float& score, int key) {
                    score = formula.template add_distance_terms<device::PreciseMath>(
                        score, last_key(row_of(i)) - key);
                });
            if (!all_see_all)
                for_each_key([&](float& score, int key) {
                    if (key < first_key_[i] || key >= end_key_[i]) score = -INFINITY;
                });
        }
    }
    int warp_row_, part_;
    int next_block_ = -1;  // of the tile that is loaded next
    ScoreFormula<float> formulas_[2 * m_tiles];
    int first_key_[2 * m_tiles], end_key_[2 * m_tiles];  // of the keys that the lane's rows see
    int first_common_key_, end_common_key_;              // of the keys that all queries see
    kernels::FragmentC o_[m_tiles][max_dim / 8];
    device::LazyOnlineSoftmax<m_tiles, true> softmax_;
};

template <class Block>
struct TilesShared : RingShared<Block> {
    alignas(128) unsigned char q[Block::QTile::bytes];
};

/// decode_kernel() calls the public functions in their order.
template <class T, class Block_>
class TilesThread : public TilesWork<T, Block_, TilesShared<Block_>> {
    using Base = TilesWork<T, Block_, TilesShared<Block_>>;
    using QTile = typename Block_::QTile;
    using Base::m_tiles, Base::max_dim, Base::row_chunks, Base::stages;
    using Base::p_, Base::shared_, Base::thread_, Base::text_, Base::keys_, Base::o_, Base::part_,
        Base::softmax_, Base::warp_row_;
    using typename Base::KvTile;
    static_assert(sizeof(TilesShared<Block_>) <= min_shared_memory);

  public:
    using Block = Block_;
    using Base::Base;

    __device__ __forceinline__ void load_queries() {
        this->store_first_new();
        for (int i = thread_; i < Block::queries * row_chunks; i += Block::threads) {
            const int h = i / row_chunks, chunk = i % row_chunks;
            uint4 values{};
            if (chunk * 8 < p_.head_dim)
                values = *reinterpret_cast<const uint4*>(p_.q.at(text_, this->token_of(h), this->head_of(h)) +
                                                         chunk * 8);
            *reinterpret_cast<uint4*>(shared_.q + QTile::offset(h, chunk)) = values;
        }
        this->append();
        device::clear(o_);
    }

    /// Adds all keys in the split. The next tiles are copied while a tile is computed.
    __device__ __forceinline__ void attend() {
        for (int tile = 0; this->first_key_of(tile) < keys_.end; ++tile) {
            kernels::wait_for_copies<stages - 2>();
            // The tile is in shared memory, and no warp reads the stage that is loaded next.
            __syncthreads();
            this->load_cached(tile + stages - 1);
            this->store_new(tile + stages - 1);
            kernels::FragmentC s[m_tiles][Block::warp_keys / 8];
            multiply_keys(s, tile);
            this->apply_rule(s, this->first_key_of(tile) + part_ * Block::warp_keys);
            softmax_.update(s, o_);
            add_values(s, tile);
        }
    }

  private:
    /// Returns the address at which the warp's keys begin, in a tile's K or V.
    __device__ __forceinline__ std::uint32_t warp_tile(int tile, int tile_offset) const {
        return kernels::shared_address(this->stage_of(tile)) + tile_offset +
               part_ * Block::warp_keys * KvTile::row_bytes;
    }
    template <int n_tiles>
    __device__ __forceinline__ void multiply_keys(kernels::FragmentC (&s)[m_tiles][n_tiles], int tile) const {
        device::clear(s);
        device::multiply_a_bt<T, max_dim, 4>(
            s,
            device::LanePointer<QTile>::stacked(kernels::shared_address(shared_.q) +
                                                warp_row_ * QTile::row_bytes),
            device::LanePointer<KvTile>::paired(warp_tile(tile, 0)));
    }
    template <int n_tiles>
    __device__ __forceinline__ void add_values(const kernels::FragmentC (&p)[m_tiles][n_tiles], int tile) {
        kernels::FragmentA probabilities[n_tiles / 2][m_tiles];
        device::as_operand_a<T>(probabilities, p);
        device::multiply_a_b<T>(o_, probabilities,
                                device::LanePointer<KvTile>::stacked(warp_tile(tile, KvTile::bytes)));
    }
};

}  // namespace gradtile::attention::cuda::decoding
