#pragma once
/// INTERNAL. The two implementations behind decode.h, and how a GPU divides the keys. decode() has checked
/// the arguments and resolved the options, for a whole context's keys.
#include <algorithm>

#include <gradtile/attention/decode.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile::attention {

/// How a GPU divides a decode() call. A query is one head of one new token. A thread block computes some of a
/// text's queries that share a K/V head, over one key split. The grid depends on the longest possible text
/// and not on the lengths, which are known only while the kernel runs: splits without keys end at once.
struct DecodePlan {
    static constexpr int max_queries_together = 8, max_splits = 64;
    /// Several tokens have kernels for at least this many queries.
    static constexpr int min_queries_of_tokens = 4;
    static constexpr int max_cluster = 8;  ///< splits that merge in shared memory; every Hopper GPU has 8
    /// A split with fewer keys would spend more time on starting than on its keys.
    static constexpr std::int64_t min_keys_of_split = 128;
    /// Merging results from several clusters takes as long as reading this many keys.
    static constexpr int min_keys_beyond_a_cluster = 512;
    /// Enough thread blocks to use the full bandwidth on a GPU with 132 multiprocessors.
    static constexpr std::int64_t enough_blocks = 264;

    int queries_together = 1;  ///< 1, 2, 4 or 8
    int query_sets = 1;        ///< thread blocks that share a K/V head and a split
    int splits = 1;            ///< 1, 2, 4 or a multiple of 8

    static DecodePlan of(std::int64_t texts, std::int64_t tokens, std::int64_t heads,
                         const DecodeCache& cache) {
        const std::int64_t kv_heads = cache.k.size(2), queries = tokens * (heads / kv_heads);
        DecodePlan plan{.queries_together = tokens > 1 ? min_queries_of_tokens : 1};
        while (plan.queries_together < std::min<std::int64_t>(queries, max_queries_together))
            plan.queries_together *= 2;
        plan.query_sets = static_cast<int>(ceil_div(queries, plan.queries_together));
        const std::int64_t blocks = texts * kv_heads * plan.query_sets, context = cache.context(),
                           wanted = ceil_div(enough_blocks, blocks);
        const auto covers = [&](std::int64_t keys_of_split) {
            return plan.splits >= wanted || plan.splits * keys_of_split >= context;
        };
        while (plan.splits < max_cluster && !covers(min_keys_of_split)) plan.splits *= 2;
        while (plan.splits >= max_cluster && plan.splits < max_splits && !covers(min_keys_beyond_a_cluster))
            plan.splits += max_cluster;
        return plan;
    }
};

namespace cpu {
void decode(const Context& ctx, const Tensor& o, const Tensor& lse, const DecodeInputs& in,
            const DecodeCache& cache, const ResolvedOptions& options, const DecodeScratch& scratch);
}
namespace cuda {
GRADTILE_CUDA_TWIN(decode);
}

}  // namespace gradtile::attention
