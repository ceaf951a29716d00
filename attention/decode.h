#pragma once
/// Attention for one generation step: a few new tokens for each of several texts, with a key/value cache. The
/// text lengths are in device memory, so that the step's captured graph can be replayed for every length.
#include <cstdint>

#include <gradtile/attention/attention.h>

namespace gradtile::attention {

/// The most new tokens per text that decode() takes in one call, for example drafts that a model verifies.
/// For more tokens, forward() is faster.
inline constexpr std::int64_t max_decode_tokens = 16;

/// The queries, keys and values for each text's new tokens, and the text's cache slot. All tensors are on the
/// context's device; a head's elements are adjacent.
struct DecodeInputs {
    Tensor q;          ///< [R, T, Hq, D], T from 1 to max_decode_tokens
    Tensor k, v;       ///< [R, T, Hkv, D]
    Tensor slots;      ///< int32 [R]: the text's row in the cache's table; all different
    Tensor positions;  ///< int32 [R]: the first new token's position, which is the number of the text's keys
                       ///< in the cache; all T positions must be below context()
};

/// Keys and values in blocks, so that texts of different lengths share memory: key i of a text is key
/// i % block tokens of block table[slot][i / block tokens]. Without a table each slot has one block, which
/// has the slot's number.
struct DecodeCache {
    Tensor k, v;  ///< [blocks, block tokens, Hkv, D] in q's dtype; with a table a power of two of at least 16
                  ///< block tokens
    /// int32 [slots, blocks of a slot], contiguous. Only entries of blocks with a key that a token sees are
    /// read. Texts must not share a block that receives new keys.
    Tensor table = {};

    /// The most keys of a text.
    std::int64_t context() const { return table.defined() ? table.size(1) * k.size(1) : k.size(1); }
};

/// Memory for partial results from thread blocks that share a text's keys. The counters are zero between
/// calls.
struct DecodeScratch {
    Tensor counters;  ///< int32
    Tensor o, sums;   ///< float32

    /// Allocates memory for up to `texts` texts, `heads` query heads, `cache`'s shape and exactly `tokens`
    /// new tokens per text; nothing on the CPU.
    DecodeScratch(const Context& ctx, std::int64_t texts, std::int64_t heads, const DecodeCache& cache,
                  std::int64_t tokens = 1);
};

/// Whether decode() accepts this dtype, head dim and these options on a device. On a GPU the dtype must not
/// be float64, and a head must have at most 256 elements and a multiple of 16 bytes.
bool can_decode(Device device, DType dtype, std::int64_t head_dim, const Options& options);

/// Appends each text's k and v to its cache, and computes o [R, T, Hq, D] = softmax(scores) V over the cached
/// keys that a token sees: all earlier ones and its own, or with window.left only the last `left` earlier
/// ones and its own. If `lse` [R, Hq, T] is defined, it receives each row's natural log-sum-exp; it must be
/// contiguous, in float32, or in float64 for float64 inputs. `options` must be causal, and may set the scale,
/// the sink, and score formula options (softcap, alibi_slopes); `deterministic` has no effect. Other options
/// throw Error with their name: another algorithm, top_left, biases, packed sequences, row ranges, kernels,
/// and dropout with a key that drops. For positions, a slot or a block of new keys outside the cache, the CPU
/// throws Error, and a GPU writes NaN to that text's o and lse and leaves the cache as it is. For another
/// block outside the cache, the CPU throws Error, and a GPU writes NaN to the o and lse of the tokens that
/// see a key of the block. A GPU may read slots, positions, the table, slopes and earlier keys and values
/// while the stream's preceding kernel still runs, so that kernel must not write them; it may write q, k and
/// v. Throws Error on other shapes, dtypes or options, and if o, lse, the cached k or the cached v share
/// memory with each other or with another operand.
void decode(const Context& ctx, const Tensor& o, const DecodeInputs& in, const DecodeCache& cache,
            const Options& options, const DecodeScratch& scratch, const Tensor& lse = {});

}  // namespace gradtile::attention
