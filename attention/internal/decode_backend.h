#pragma once
/// INTERNAL. The two implementations behind decode.h, and how a GPU divides the keys. decode() has checked
/// the arguments.
#include <algorithm>

#include <gradtile/attention/decode.h>

namespace gradtile::attention {

/// The division of a call of decode() on a GPU. A thread block computes some query heads that share a K/V
/// head, over one of the splits of the keys. The grid depends on the longest possible text and not on the
/// lengths, which are known only while the kernel runs: splits without keys end at once.
struct DecodePlan {
    static constexpr int max_heads_together = 8, max_splits = 64;
    /// With fewer keys in a split, its start takes longer than its keys.
    static constexpr std::int64_t min_keys_of_split = 64;
    /// Enough thread blocks to use the bandwidth of a GPU with 132 multiprocessors.
    static constexpr std::int64_t enough_blocks = 528;

    int heads_together = 1;  ///< 1, 2, 4 or 8
    int head_sets = 1;       ///< thread blocks that share a K/V head
    int splits = 1;

    static DecodePlan of(std::int64_t rows, std::int64_t heads, const DecodeCache& cache) {
        const std::int64_t kv_heads = cache.k.size(2), group = heads / kv_heads;
        DecodePlan plan;
        while (plan.heads_together < std::min<std::int64_t>(group, max_heads_together))
            plan.heads_together *= 2;
        plan.head_sets = static_cast<int>((group + plan.heads_together - 1) / plan.heads_together);
        const std::int64_t blocks = rows * kv_heads * plan.head_sets,
                           of_context = (cache.k.size(1) + min_keys_of_split - 1) / min_keys_of_split,
                           wanted = (enough_blocks + blocks - 1) / blocks;
        plan.splits = static_cast<int>(std::clamp<std::int64_t>(std::min(of_context, wanted), 1, max_splits));
        return plan;
    }
};

namespace cpu {
void decode(const Context& ctx, const Tensor& o, const DecodeInputs& in, const DecodeCache& cache,
            const Options& options, const DecodeScratch& scratch);
}
namespace cuda {
void decode(const Context& ctx, const Tensor& o, const DecodeInputs& in, const DecodeCache& cache,
            const Options& options, const DecodeScratch& scratch);
}

}  // namespace gradtile::attention
