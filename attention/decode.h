#pragma once
/// Attention of a step of generation: one new token for each of several texts, with a cache of keys and
/// values. The lengths of the texts are in device memory, so that a captured graph of the step can be
/// replayed for every length.
#include <cstdint>

#include <gradtile/attention/attention.h>

namespace gradtile::attention {

/// The query, key and value of the new token of each text, and the text's slot in the cache. All tensors are
/// on the context's device; the elements of a head are adjacent.
struct DecodeInputs {
    Tensor q;          ///< [R, Hq, D]
    Tensor k, v;       ///< [R, Hkv, D]
    Tensor slots;      ///< int32 [R]: the text's index in the batch of the cache; all different
    Tensor positions;  ///< int32 [R]: the number of the text's keys in the cache, below its context
};

/// Keys and values [slots, context, Hkv, D] in the dtype of q.
struct DecodeCache {
    Tensor k, v;
};

/// Memory for the results of thread blocks that share a text's keys. The counters are zero between calls.
struct DecodeScratch {
    Tensor counters;  ///< int32
    Tensor o, sums;   ///< float32

    /// Allocates memory for up to `rows` texts, `heads` query heads and the shape of `cache`; nothing on the
    /// CPU.
    DecodeScratch(const Context& ctx, std::int64_t rows, std::int64_t heads, const DecodeCache& cache);
};

/// Whether decode() accepts this dtype and head dim on a device. On a GPU the dtype must not be float64, and
/// a head must have at most 256 elements and a multiple of 16 bytes.
bool can_decode(Device device, DType dtype, std::int64_t head_dim);

/// Appends k and v of each row to its cache, and computes o [R, Hq, D] = softmax(scores) V over the keys of
/// the cache that the row sees: all earlier ones and its own, or with window.left only the last `left`
/// earlier ones and its own. `options` must be causal, and may set the scale, the sink, and options of the
/// scores' formula (softcap, alibi_slopes); `deterministic` has no effect. Other options throw Error with
/// their name: another algorithm, top_left, biases, packed sequences, and dropout with a key that drops. For
/// a position or slot outside the cache, the CPU throws Error, and a GPU writes NaN to that row of o. A GPU
/// may read slots, positions, slopes and earlier keys and values while the preceding kernel of the stream
/// still runs, so that kernel must not write them; it may write q, k and v. Throws Error on other shapes,
/// dtypes or options, and if o, the cached k or the cached v share memory with each other or with another
/// operand.
void decode(const Context& ctx, const Tensor& o, const DecodeInputs& in, const DecodeCache& cache,
            const Options& options, const DecodeScratch& scratch);

}  // namespace gradtile::attention
