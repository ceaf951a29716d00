#pragma once
/// INTERNAL. The two implementations behind decode.h, and how a GPU chooses a kernel and divides the keys.
/// decode() has checked the arguments and resolved the options, for a whole context's keys.
#include <algorithm>
#include <cstdint>
#include <limits>

#include <gradtile/attention/decode.h>
#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/host_device.h>
#include <gradtile/core/internal/cuda_function.h>

namespace gradtile::attention {

/// How many clusters of a kernel's thread blocks run at the same time on a GPU. Fewer thread blocks run in
/// large clusters, whose blocks must fit on neighbouring multiprocessors.
struct ClustersAtOnce {
    static constexpr int unlimited = std::numeric_limits<int>::max();
    int of_2 = unlimited, of_4 = unlimited, of_8 = unlimited;

    int of(int cluster) const {
        return cluster == 8 ? of_8 : cluster == 4 ? of_4 : cluster == 2 ? of_2 : unlimited;
    }
};

/// The kernels of decode() on a GPU.
enum class DecodeKernel : std::uint8_t {
    lanes,      ///< without tensor cores
    tiles,      ///< on tensor cores; warps take 16 or 32 queries
    warpgroups  ///< on Hopper's asynchronous tensor cores; warpgroups take 64 queries
};

/// A decode() call in numbers. A query is one head of one new token.
struct DecodeProblem {
    std::int64_t texts, tokens, heads, kv_heads, head_dim, context;
    DType dtype;

    static DecodeProblem of(std::int64_t texts, std::int64_t tokens, std::int64_t heads,
                            const DecodeCache& cache) {
        return {texts, tokens, heads, cache.k.size(2), cache.k.size(3), cache.context(), cache.k.dtype()};
    }
    /// A text's queries that share a K/V head.
    std::int64_t queries() const { return tokens * (heads / kv_heads); }
};

/// How a GPU computes a decode() call. A thread block computes some of a text's queries that share a K/V
/// head, over one key split. The grid depends on the longest possible text and not on the lengths, which are
/// known only while the kernel runs: splits without keys end at once.
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
    /// A warpgroup multiplies 64 rows at a time, so calls with fewer queries would not fill it. Up to 32
    /// columns its kernel has no layout.
    static constexpr int queries_in_warpgroups = 64;
    static constexpr std::int64_t min_dim_in_warpgroups = 33;
    static constexpr int max_cluster = 8;  ///< every Hopper GPU has clusters of 8
    /// A split with fewer keys would spend more time on starting than on its keys.
    static constexpr std::int64_t min_keys_of_split = 128;
    /// Merging results from several clusters takes as long as reading this many keys.
    static constexpr int min_keys_beyond_a_cluster = 512;
    DecodeKernel kernel = DecodeKernel::lanes;
    int queries_together = 1;  ///< in lanes 1, 2, 4 or 8; in tiles 16, 32 or 64; in warpgroups 64
    int query_sets = 1;        ///< thread blocks that share a K/V head and a split
    int splits = 1;            ///< 1, 2, 4 or a multiple of 8
    int cluster = 1;           ///< splits that merge in shared memory: 1, 2, 4 or 8; divides `splits`

    /// `has_warpgroups`: whether the GPU and this build have the kernel for warpgroups. Only `splits` and
    /// `cluster` depend on `at_once`. Without it, `splits` is the most that this kernel may have.
    static DecodePlan of(const DecodeProblem& problem, bool has_warpgroups,
                         const ClustersAtOnce& at_once = {}) {
        DecodePlan plan;
        plan.kernel = kernel_of(problem, has_warpgroups);
        plan.divide_queries(problem);
        plan.divide_keys(problem, at_once);
        return plan;
    }
    void divide_keys(const DecodeProblem& problem, const ClustersAtOnce& at_once) {
        const std::int64_t blocks = problem.texts * problem.kv_heads * query_sets;  // per split
        splits = 1;
        while (blocks * splits < enough_blocks && splits < max_splits) {
            const int next = splits < max_cluster ? 2 * splits : splits + max_cluster;
            const std::int64_t min_keys =
                cluster_of(next, blocks, at_once) < next ? min_keys_beyond_a_cluster : min_keys_of_split;
            if (splits * min_keys >= problem.context) break;
            splits = next;
        }
        cluster = cluster_of(splits, blocks, at_once);
    }

  private:
    static DecodeKernel kernel_of(const DecodeProblem& problem, bool has_warpgroups) {
        const std::int64_t queries = problem.queries();
        if (size_of(problem.dtype) != 2 || problem.head_dim > max_dim_in_tiles ||
            (problem.tokens == 1 && queries <= max_queries_in_16_bit_lanes))
            return DecodeKernel::lanes;
        return has_warpgroups && queries >= queries_in_warpgroups &&
                       problem.head_dim >= min_dim_in_warpgroups && fills_gpu_with_warpgroups(problem)
                   ? DecodeKernel::warpgroups
                   : DecodeKernel::tiles;
    }
    /// Tiles may take fewer queries than warpgroups, and then have more thread blocks. For 16 MiB of one text
    /// with 4 K/V heads and 128 queries each, an H200 took 32 us in tiles and 45 us in warpgroups.
    static bool fills_gpu_with_warpgroups(const DecodeProblem& problem) {
        return max_queries_in_tiles(problem.head_dim) == queries_in_warpgroups ||
               problem.texts * problem.kv_heads * ceil_div(problem.queries(), queries_in_warpgroups) *
                       ceil_div(problem.context, min_keys_beyond_a_cluster) >=
                   enough_blocks;
    }
    void divide_queries(const DecodeProblem& problem) {
        std::int64_t most = queries_in_warpgroups;
        if (kernel == DecodeKernel::lanes) {
            queries_together = problem.tokens > 1 ? min_queries_of_tokens : 1;
            most = max_queries_in_lanes;
        } else if (kernel == DecodeKernel::tiles) {
            queries_together = 16;
            most = max_queries_in_tiles(problem.head_dim);
        } else {
            queries_together = queries_in_warpgroups;
        }
        while (queries_together < std::min(problem.queries(), most)) queries_together *= 2;
        query_sets = static_cast<int>(ceil_div(problem.queries(), queries_together));
    }

    /// Enough thread blocks to use an H200's bandwidth, as measured there: two per multiprocessor. Texts
    /// times heads is usually a power of two. As this number is one, too, all blocks run at the same time; a
    /// second wave of blocks would leave most multiprocessors idle at its end.
    static constexpr std::int64_t enough_blocks = 256;

    /// The largest cluster with which all thread blocks run at the same time. On an H200, 132 clusters of 2,
    /// 62 of 4 or 30 of 8 run at once, if two blocks fit on a multiprocessor. 256 blocks of 32 K/V heads at
    /// head dim 128 took 71 us in clusters of 2, and 106 us in clusters of 4.
    static int cluster_of(int splits, std::int64_t blocks, const ClustersAtOnce& at_once) {
        int cluster = std::min(splits, max_cluster);
        while (cluster > 1 && blocks * splits / cluster > at_once.of(cluster)) cluster /= 2;
        return cluster;
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
