#pragma once
/// INTERNAL. The two implementations behind decode.h, and how a GPU divides the keys. decode() has checked
/// the arguments and resolved the options, for a whole context's keys.
#include <algorithm>

#include <gradtile/attention/decode.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/host_device.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile::attention {

/// How a GPU divides a decode() call. A query is one head of one new token. A thread block computes some of a
/// text's queries that share a K/V head, over one key split. The grid depends on the longest possible text
/// and not on the lengths, which are known only while the kernel runs: splits without keys end at once.
struct DecodePlan {
    static constexpr int max_splits = 64;
    /// The kernels without tensor cores take at most 8 queries, several tokens with at least 4. In 16 bits
    /// more than 2 queries are computed on tensor cores, because elsewhere their arithmetic takes longer than
    /// reading K and V; beyond 128 columns their tiles do not fit in every GPU's shared memory.
    static constexpr int max_queries_in_lanes = 8, min_queries_of_tokens = 4, max_queries_in_16_bit_lanes = 2;
    static constexpr std::int64_t max_dim_in_tiles = 128;
    /// On tensor cores 16, 32 or 64 queries, whose partial results must fit in shared memory.
    static constexpr std::int64_t max_queries_in_tiles(std::int64_t head_dim) {
        return head_dim <= 64 ? 64 : 32;
    }
    static constexpr int max_cluster = 8;  ///< splits that merge in shared memory; every Hopper GPU has 8
    /// A split with fewer keys would spend more time on starting than on its keys.
    static constexpr std::int64_t min_keys_of_split = 128;
    /// Merging results from several clusters takes as long as reading this many keys.
    static constexpr int min_keys_beyond_a_cluster = 512;
    bool uses_tiles = false;   ///< on tensor cores
    int queries_together = 1;  ///< 1, 2, 4 or 8; in tiles 16, 32 or 64
    int query_sets = 1;        ///< thread blocks that share a K/V head and a split
    int splits = 1;            ///< 1, 2, 4 or a multiple of 8

    static DecodePlan of(std::int64_t texts, std::int64_t tokens, std::int64_t heads,
                         const DecodeCache& cache) {
        const std::int64_t kv_heads = cache.k.size(2), queries = tokens * (heads / kv_heads);
        DecodePlan plan{.uses_tiles = size_of(cache.k.dtype()) == 2 && cache.k.size(3) <= max_dim_in_tiles &&
                                      (tokens > 1 || queries > max_queries_in_16_bit_lanes)};
        plan.queries_together = plan.uses_tiles ? 16 : tokens > 1 ? min_queries_of_tokens : 1;
        const std::int64_t most =
            plan.uses_tiles ? max_queries_in_tiles(cache.k.size(3)) : max_queries_in_lanes;
        while (plan.queries_together < std::min(queries, most)) plan.queries_together *= 2;
        plan.query_sets = static_cast<int>(ceil_div(queries, plan.queries_together));
        const std::int64_t blocks = texts * kv_heads * plan.query_sets, context = cache.context(),
                           row_bytes = cache.k.size(3) * static_cast<std::int64_t>(size_of(cache.k.dtype())),
                           wanted = ceil_div(plan.enough_blocks(row_bytes), blocks);
        const auto covers = [&](std::int64_t keys_of_split) {
            return plan.splits >= wanted || plan.splits * keys_of_split >= context;
        };
        while (plan.splits < max_cluster && !covers(min_keys_of_split)) plan.splits *= 2;
        while (plan.splits >= max_cluster && plan.splits < max_splits && !covers(min_keys_beyond_a_cluster))
            plan.splits += max_cluster;
        return plan;
    }

  private:
    /// Enough thread blocks to use an H200's bandwidth, as measured there. Texts times heads is usually a
    /// power of two. If this number is one, too, one wave of blocks reads all keys; a second wave would leave
    /// most multiprocessors idle at its end.
    std::int64_t enough_blocks(std::int64_t row_bytes) const {
        if (row_bytes <= 128) return 256;
        if (!uses_tiles) return 264;
        return query_sets == 1 ? 128 : 256;
    }
};

/// A split's keys.
struct KeysOfSplit {
    int begin, end;
    int splits;  ///< splits that have keys
};

/// Divides a text's keys. Few keys are divided into few splits: one split per pass of a thread block, until
/// there are `cheap_splits`, whose results are merged at low cost. `step_keys` divides a split's length;
/// `pass_keys` are the keys that a thread block reads in one pass.
GRADTILE_HOST_DEVICE inline KeysOfSplit keys_of_split(int first_key, int end_key, int split, int splits,
                                                      int cheap_splits, int step_keys, int pass_keys) {
    const auto ceil_div = [](int a, int b) { return (a + b - 1) / b; };
    const auto smaller = [](int a, int b) { return a < b ? a : b; };
    const int keys = end_key - first_key, few = smaller(cheap_splits, ceil_div(keys, pass_keys)),
              many = ceil_div(keys, DecodePlan::min_keys_beyond_a_cluster),
              length = ceil_div(keys, smaller(splits, few > many ? few : many) * step_keys) * step_keys,
              begin = first_key + split * length;
    return {begin, smaller(begin + length, end_key), ceil_div(keys, length)};
}

namespace cpu {
void decode(const Context& ctx, const Tensor& o, const Tensor& lse, const DecodeInputs& in,
            const DecodeCache& cache, const ResolvedOptions& options, const DecodeScratch& scratch);
}
namespace cuda {
GRADTILE_CUDA_TWIN(decode);
}

}  // namespace gradtile::attention
