#pragma once
/// INTERNAL. The two implementations behind decode.h, and how a GPU divides the keys. decode() has checked
/// the arguments and resolved the options, for a whole context's keys.
#include <algorithm>
#include <cstdint>

#include <gradtile/attention/decode.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile::attention {

/// The kernels of decode() on a GPU.
enum class DecodeKernel : std::uint8_t {
    lanes,      ///< without tensor cores
    tiles,      ///< on tensor cores; warps take 16 or 32 queries
    warpgroups  ///< on Hopper's tensor cores; warpgroups take 64 queries
};

/// A decode() call in numbers. A query is one head of one new token.
struct DecodeProblem {
    std::int64_t texts, tokens, heads, kv_heads, head_dim, context;
    DType dtype;

    DecodeProblem(std::int64_t text_count, std::int64_t token_count, std::int64_t head_count,
                  const DecodeCache& cache)
        : DecodeProblem(text_count, token_count, head_count, cache.k.size(2), cache.k.size(3),
                        cache.context(), cache.k.dtype()) {}
    DecodeProblem(std::int64_t text_count, std::int64_t token_count, std::int64_t head_count,
                  std::int64_t kv_head_count, std::int64_t elements, std::int64_t longest_text, DType type)
        : texts(text_count),
          tokens(token_count),
          heads(head_count),
          kv_heads(kv_head_count),
          head_dim(elements),
          context(longest_text),
          dtype(type) {}
    /// Queries of a text that share a K/V head.
    std::int64_t queries() const { return tokens * (heads / kv_heads); }
};

/// How a GPU divides a decode() call. A thread block computes some of a text's queries that share a K/V head,
/// over one key split. The grid depends on the longest possible text and not on the lengths, which are known
/// only while the kernel runs: splits without keys end at once.
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
    /// In warpgroups 64 queries, if there are more than in one tile.
    static constexpr std::int64_t min_queries_in_warpgroups = 33, max_queries_in_warpgroups = 64,
                                  min_dim_in_warpgroups = 33;
    static constexpr int max_cluster = 8;  ///< splits that merge in shared memory; every Hopper GPU has 8
    /// A split with fewer keys would spend more time on starting than on its keys.
    static constexpr std::int64_t min_keys_of_split = 128;
    /// Merging results from several clusters takes as long as reading this many keys.
    static constexpr int min_keys_beyond_a_cluster = 512;
    DecodeKernel kernel = DecodeKernel::lanes;
    int queries_together = 1;  ///< in lanes 1, 2, 4 or 8; in tiles 16, 32 or 64; in warpgroups 64
    int query_sets = 1;        ///< thread blocks that share a K/V head and a split
    int splits = 1;            ///< 1, 2, 4 or a multiple of 8

    /// `has_warpgroups`: whether the GPU has the kernel for warpgroups.
    static DecodePlan of(const DecodeProblem& problem, bool has_warpgroups) {
        DecodePlan plan;
        plan.kernel = kernel_of(problem, has_warpgroups);
        plan.set_queries(problem);
        plan.set_splits(problem);
        return plan;
    }

  private:
    static DecodeKernel kernel_of(const DecodeProblem& problem, bool has_warpgroups) {
        if (size_of(problem.dtype) != 2 || problem.head_dim > max_dim_in_tiles ||
            (problem.tokens == 1 && problem.queries() <= max_queries_in_16_bit_lanes))
            return DecodeKernel::lanes;
        return has_warpgroups && problem.head_dim >= min_dim_in_warpgroups &&
                       problem.queries() >= min_queries_in_warpgroups
                   ? DecodeKernel::warpgroups
                   : DecodeKernel::tiles;
    }
    void set_queries(const DecodeProblem& problem) {
        std::int64_t most = max_queries_in_lanes;
        if (kernel == DecodeKernel::lanes) {
            queries_together = problem.tokens > 1 ? min_queries_of_tokens : 1;
        } else if (kernel == DecodeKernel::tiles) {
            queries_together = 16;
            most = max_queries_in_tiles(problem.head_dim);
        } else {
            queries_together = 64;
            most = max_queries_in_warpgroups;
        }
        while (queries_together < std::min(problem.queries(), most)) queries_together *= 2;
        query_sets = static_cast<int>(ceil_div(problem.queries(), queries_together));
    }
    void set_splits(const DecodeProblem& problem) {
        const std::int64_t blocks = problem.texts * problem.kv_heads * query_sets,
                           wanted = ceil_div(enough_blocks(problem), blocks);
        const auto covers = [&](std::int64_t keys_of_split) {
            return splits >= wanted || splits * keys_of_split >= problem.context;
        };
        while (splits < max_cluster && !covers(min_keys_of_split)) splits *= 2;
        while (splits >= max_cluster && splits < max_splits && !covers(min_keys_beyond_a_cluster))
            splits += max_cluster;
    }
    /// Enough thread blocks to use an H200's bandwidth, as measured there. Texts times heads is usually a
    /// power of two. If this number is one, too, one wave of blocks reads all keys; a second wave would leave
    /// most multiprocessors idle at its end.
    std::int64_t enough_blocks(const DecodeProblem& problem) const {
        const std::int64_t row_bytes = problem.head_dim * static_cast<std::int64_t>(size_of(problem.dtype));
        if (kernel == DecodeKernel::warpgroups) return 256;
        if (row_bytes <= 128) return 256;
        if (kernel == DecodeKernel::lanes) return 264;
        return query_sets == 1 ? 128 : 256;
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
