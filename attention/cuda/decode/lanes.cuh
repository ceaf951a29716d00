#pragma once
/// The kernel of decode.h for few queries per K/V head, and for float32. Each lane holds 16-byte vectors from
/// K and V rows, so that a warp reads whole cache lines. Tensor cores are not needed: with few queries, the
/// call takes only as long as reading K and V.
#include <gradtile/attention/cuda/decode/decode.cuh>

namespace gradtile::attention::cuda::decoding {

/// A thread block's layout. It computes up to `queries` query vectors, each one head of one new token, that
/// share a K/V head. `lanes` lanes read a key together; each lane reads `vectors` 16-byte vectors. Without
/// `several_tokens`, every text has one new token, and all queries see the same keys.
template <class T, int lanes_, int vectors_, int queries_, bool several_tokens_>
struct LanesBlock {
    static constexpr int lanes = lanes_, vectors = vectors_, queries = queries_;
    static constexpr bool several_tokens = several_tokens_;
    // With more queries there are fewer threads, because each warp's results take more shared memory.
    static constexpr int threads = queries > 4 ? 128 : 256, warps = threads / 32, parts = warps,
                         blocks_per_sm = 1;
    /// The keys that each thread reads at once. A 16-byte K vector and a 16-byte V vector together take 8
    /// registers.
    static constexpr int unroll = std::max(1, (queries > 4 ? 1 : queries > 2 ? 2 : 4) / vectors);
    static constexpr int warp_keys = 32 / lanes, keys = warps * warp_keys;  // keys read at once
    static constexpr int pass_keys = keys * unroll, first_key_step = 1;
    static constexpr int elements = 16 / static_cast<int>(sizeof(T)),  // in a vector
        columns = elements * vectors, max_dim = lanes * columns;
};

template <class Block>
struct LanesShared : MergeShared<Block> {
    alignas(16) float o[Block::warps][Block::queries][Block::max_dim];

    __device__ __forceinline__ float* part_o(int warp, int query, int column) {
        return &o[warp][query][column];
    }
};

/// decode_kernel() calls the public functions in their order.
template <class T, class Block_>
class LanesThread : public DecodeWork<T, Block_, LanesShared<Block_>> {
  public:
    using Block = Block_;
    using Parameters = DecodeParameters<T>;
    using Shared = LanesShared<Block>;

  private:
    using Work = DecodeWork<T, Block, Shared>;
    static constexpr int queries = Block::queries, lanes = Block::lanes, vectors = Block::vectors,
                         unroll = Block::unroll, n = Block::elements, columns = Block::columns;
    using Vector = kernels::Packed<T, n>;
    using Vectors = uint4[unroll][vectors];
    static constexpr unsigned nan_bits = ~0u;
    using Work::p_, Work::shared_, Work::lane_, Work::warp_, Work::text_, Work::kv_head_, Work::position_,
        Work::mask_, Work::keys_;
    using Work::token_of, Work::head_of, Work::last_key, Work::block_of;

  public:
    __device__ __forceinline__ LanesThread(const Parameters& p, Shared& shared) : Work(p, shared) {
        find_blocks(keys_.begin);
        this->require_new_blocks();
    }

    /// Reads all that no preceding kernel may still write: the first cached keys and values, and the rule.
    __device__ __forceinline__ void read_ahead() {
        load_cached(k_, p_.cached_k, keys_.begin, nan_bits);
        load_cached(v_, p_.cached_v, keys_.begin, 0);
        find_blocks(keys_.begin + Block::pass_keys);
#pragma unroll
        for (int h = 0; h < queries; ++h)
            formulas_[h] = p_.scores.template rule_of<float>(text_, head_of(h)).formula;
    }

    __device__ __forceinline__ void load_queries() {
        uint4 raw[queries][vectors];
#pragma unroll
        for (int h = 0; h < queries; ++h)
#pragma unroll
            for (int j = 0; j < vectors; ++j) {
                raw[h][j] = uint4{};
                if (column_of(j) < p_.head_dim)
                    raw[h][j] = *reinterpret_cast<const uint4*>(p_.q.at(text_, token_of(h), head_of(h)) +
                                                                column_of(j));
            }
        load_new(k_, p_.k, keys_.begin);
        load_new(v_, p_.v, keys_.begin);
        this->append();
#pragma unroll
        for (int h = 0; h < queries; ++h) {
            maximum_[h] = -std::numeric_limits<float>::max();
            sum_[h] = 0;
#pragma unroll
            for (int j = 0; j < vectors; ++j) {
                const Vector x = __builtin_bit_cast(Vector, raw[h][j]);
#pragma unroll
                for (int i = 0; i < n; ++i) {
                    q_[h][j * n + i] = kernels::convert<float>(x[i]) * p_.scale;
                    o_[h][j * n + i] = 0;
                }
            }
        }
    }

    /// Adds all keys in the split. The next pass's keys and values are read while this pass is computed.
    __device__ __forceinline__ void attend() {
        for (int pass = keys_.begin;; pass += Block::pass_keys) {
            const int next_pass = pass + Block::pass_keys;
            float score[queries][unroll];
            multiply_keys(score);
            apply_rule(score, pass);
            if (next_pass < keys_.end) {
                load_cached(k_, p_.cached_k, next_pass, nan_bits);
                load_new(k_, p_.k, next_pass);
            }
            add_values(score);
            if (next_pass >= keys_.end) break;
            load_cached(v_, p_.cached_v, next_pass, 0);
            load_new(v_, p_.v, next_pass);
            find_blocks(next_pass + Block::pass_keys);
        }
    }

    /// Reduces over each warp's keys, into shared memory.
    __device__ __forceinline__ void reduce_warps() {
#pragma unroll
        for (int h = 0; h < queries; ++h) {
            float all = maximum_[h];
#pragma unroll
            for (int distance = lanes; distance < 32; distance *= 2)
                all = fmaxf(all, __shfl_xor_sync(~0u, all, distance));
            const float weight = kernels::exponential(maximum_[h] - all);
            sum_[h] *= weight;
#pragma unroll
            for (int i = 0; i < columns; ++i) o_[h][i] *= weight;
#pragma unroll
            for (int distance = lanes; distance < 32; distance *= 2) {
                sum_[h] += __shfl_xor_sync(~0u, sum_[h], distance);
#pragma unroll
                for (int i = 0; i < columns; ++i) o_[h][i] += __shfl_xor_sync(~0u, o_[h][i], distance);
            }
            if (lane_ < lanes) {
#pragma unroll
                for (int j = 0; j < vectors; ++j)
#pragma unroll
                    for (int i = 0; i < n; ++i) shared_.o[warp_][h][column_of(j) + i] = o_[h][j * n + i];
            }
            if (lane_ == 0) shared_.part_sums[warp_][h] = {all, sum_[h]};
        }
        __syncthreads();
    }

  private:
    /// Vector j of a lane holds the columns from column_of(j) on; key u of a pass is key_of(pass, u).
    __device__ __forceinline__ int column_of(int j) const {
        return (j * lanes + lane_ % lanes) * n;
    }
    __device__ __forceinline__ int key_of(int pass, int u) const {
        return pass + u * Block::keys + warp_ * Block::warp_keys + lane_ / lanes;
    }

    /// Finds the blocks of a pass's keys. Called one pass ahead, so that no load of a key waits for the
    /// table.
    __device__ __forceinline__ void find_blocks(int pass) {
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int key = key_of(pass, u);
            if (key < min(keys_.end, position_)) blocks_of_keys_[u] = block_of(key);
        }
    }

    /// Loads all keys but the new ones, from the L2 cache and not from L1, because another multiprocessor may
    /// have written them. Keys in a block outside the cache become NaN, their values 0, which a query that
    /// does not see them needs: `missing` has the bits.
    __device__ __forceinline__ void load_cached(Vectors& to, const Heads<T>& from, int pass,
                                                unsigned missing) const {
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int key = key_of(pass, u), block = blocks_of_keys_[u];
            const bool is_cached = key < min(keys_.end, position_), is_held = p_.blocks.in_cache(block);
            const T* const head =
                from.at(is_cached && is_held ? block : 0, p_.blocks.row_in_block(key), kv_head_);
#pragma unroll
            for (int j = 0; j < vectors; ++j) {
                to[u][j] = uint4{};
                if (is_cached && column_of(j) < p_.head_dim)
                    to[u][j] = is_held ? __ldcg(reinterpret_cast<const uint4*>(head + column_of(j)))
                                       : uint4{missing, missing, missing, missing};
            }
        }
    }
    __device__ __forceinline__ void load_new(Vectors& to, const Heads<const T>& from, int pass) const {
        if (position_ >= min(pass + Block::pass_keys, keys_.end)) return;
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int key = key_of(pass, u), token = Block::several_tokens ? key - position_ : 0;
            const bool is_new =
                Block::several_tokens ? key >= position_ && key < keys_.end : key == position_;
#pragma unroll
            for (int j = 0; j < vectors; ++j)
                if (is_new && column_of(j) < p_.head_dim)
                    to[u][j] =
                        *reinterpret_cast<const uint4*>(from.at(text_, token, kv_head_) + column_of(j));
        }
    }
    __device__ __forceinline__ void multiply_keys(float (&score)[queries][unroll]) const {
#pragma unroll
        for (int u = 0; u < unroll; ++u)
#pragma unroll
            for (int h = 0; h < queries; ++h) {
                score[h][u] = 0;
#pragma unroll
                for (int j = 0; j < vectors; ++j) {
                    const Vector x = __builtin_bit_cast(Vector, k_[u][j]);
#pragma unroll
                    for (int i = 0; i < n; ++i)
                        score[h][u] = fmaf(q_[h][j * n + i], kernels::convert<float>(x[i]), score[h][u]);
                }
                score[h][u] = kernels::reduce_lanes<lanes>(score[h][u], kernels::Sum{});
            }
    }
    /// Turns products into scores: -inf for keys that a query does not see.
    __device__ __forceinline__ void apply_rule(float (&score)[queries][unroll], int pass) const {
#pragma unroll
        for (int h = 0; h < queries; ++h) {
            const ScoreFormula<float>& formula = formulas_[h];
            if (formula.changes_products())
#pragma unroll
                for (int u = 0; u < unroll; ++u)
                    score[h][u] = formula.template transform_product<device::PreciseMath>(score[h][u]).value;
            if (formula.has_distance_terms())
#pragma unroll
                for (int u = 0; u < unroll; ++u)
                    score[h][u] = formula.template add_distance_terms<device::PreciseMath>(
                        score[h][u], last_key(h) - key_of(pass, u));
#pragma unroll
            for (int u = 0; u < unroll; ++u) {
                const int key = key_of(pass, u);
                bool is_seen = key < keys_.end;
                if constexpr (Block::several_tokens)
                    is_seen = is_seen && key >= mask_.first_key(token_of(h)) && key <= last_key(h);
                if (!is_seen) score[h][u] = -INFINITY;
            }
        }
    }
    /// One step of the online softmax.
    __device__ __forceinline__ void add_values(const float (&score)[queries][unroll]) {
#pragma unroll
        for (int h = 0; h < queries; ++h) {
            float next = maximum_[h];
#pragma unroll
            for (int u = 0; u < unroll; ++u) next = fmaxf(next, score[h][u]);
            const float keep = kernels::exponential(maximum_[h] - next);
            maximum_[h] = next;
            sum_[h] *= keep;
#pragma unroll
            for (int i = 0; i < columns; ++i) o_[h][i] *= keep;
#pragma unroll
            for (int u = 0; u < unroll; ++u) {
                const float probability = kernels::exponential(score[h][u] - next);
                sum_[h] += probability;
#pragma unroll
                for (int j = 0; j < vectors; ++j) {
                    const Vector x = __builtin_bit_cast(Vector, v_[u][j]);
#pragma unroll
                    for (int i = 0; i < n; ++i)
                        o_[h][j * n + i] = fmaf(probability, kernels::convert<float>(x[i]), o_[h][j * n + i]);
                }
            }
        }
    }

    int blocks_of_keys_[unroll] = {};  // of the pass that is loaded next
    Vectors k_, v_;
    ScoreFormula<float> formulas_[queries];
    float q_[queries][columns], o_[queries][columns];
    float maximum_[queries], sum_[queries];
};

}  // namespace gradtile::attention::cuda::decoding
