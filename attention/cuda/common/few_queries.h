#pragma once
/// INTERNAL. Few queries against many keys, as when a model generates text: the plan for the kernels in
/// sm80/few_queries.cuh, sm90/few_queries.cuh and f32/few_queries.cu. This header is plain C++, so that tests
/// can check plans without a GPU.
///
/// One thread block computes all rows for a K/V head, that is, the queries from all query heads that share
/// the K/V head. If there are fewer such blocks than the GPU can run at the same time, the keys are split
/// between several blocks, whose results are merged by their LSE.
#include <algorithm>
#include <cstdint>

#include <gradtile/attention/cuda/common/exact_lse.h>
#include <gradtile/attention/internal/flash_plan.h>
#include <gradtile/attention/internal/key_splits.h>

namespace gradtile::attention::cuda {

/// Tiles for the 16-bit kernels.
struct FewQueriesTiles {
    static constexpr int threads = 128, keys = 64;
    static constexpr int max_rows = 64;
    int head_dim, row_tiles;  ///< row_tiles: 1, 2 or 4 tiles with 16 rows each

    /// K/V blocks in shared memory. They take 64 to 96 KB up to head dim 128, where two thread blocks share a
    /// multiprocessor, and 144 or 192 KB beyond.
    constexpr int stages() const { return head_dim <= 32 ? 8 : head_dim <= 64 ? 6 : head_dim <= 96 ? 4 : 3; }
    /// Row tiles per warp. Two tiles halve the K/V reads from shared memory; from 192 columns on, O for two
    /// tiles would take all registers.
    constexpr int warp_row_tiles() const { return row_tiles == 4 && head_dim <= 128 ? 2 : 1; }
    constexpr int shared_bytes() const { return 2 * head_dim * (16 * row_tiles + 2 * stages() * keys); }
    constexpr int blocks_per_sm() const { return head_dim <= 128 ? 2 : 1; }
};

/// Tiles for the float32 kernels, which use no tensor cores: with up to 16 rows, the products take less time
/// than reading K and V.
struct F32FewQueriesTiles {
    static constexpr int threads = 128, warps = 4, keys = 32;
    static constexpr int max_rows = 16;
    int head_dim, rows;  ///< rows: 1, 4, 8 or 16

    /// Rows per warp. A warp uses each K/V element that it reads from shared memory for all these rows.
    constexpr int warp_rows() const { return std::min(rows, 4); }
    /// K/V blocks in shared memory. They take 64 to 96 KB up to head dim 128, where two thread blocks share a
    /// multiprocessor, and 192 KB beyond.
    constexpr int stages() const { return head_dim <= 32 ? 8 : head_dim <= 64 ? 6 : 3; }
    constexpr int shared_bytes() const { return 4 * head_dim * (rows + 2 * stages() * keys); }
    constexpr int blocks_per_sm() const { return head_dim <= 128 ? 2 : 1; }
};

struct FewQueriesShape {
    std::int64_t batch, queries, keys;  ///< `keys` counts the keys that at least one query sees
    std::int64_t heads, group;          ///< query heads, and how many share a K/V head
    int head_dim;                       ///< the kernel's head dim
    /// True if heads have different score rules. A thread block then computes only one head's rows.
    bool rule_of_each_head;
    bool is_f32 = false;
};

/// The time that a thread block needs besides processing its keys. The unit is the time for one key block.
inline constexpr std::int64_t start_up = 2;

inline constexpr int max_splits = 256;
/// Keys are split into at most max_runs times as many thread blocks as can run at the same time. More blocks
/// save no time.
inline constexpr int max_runs = 4;
/// The most thread blocks that a GPU with up to 192 multiprocessors runs at the same time. A dry run without
/// a GPU uses this number.
inline constexpr int max_concurrent_blocks = 2 * 192;

inline int limit_of_splits(std::int64_t blocks_per_split, std::int64_t key_blocks, int concurrent_blocks) {
    const std::int64_t run_limit =
        std::max<std::int64_t>(1, std::int64_t{max_runs} * concurrent_blocks / blocks_per_split);
    return static_cast<int>(std::min<std::int64_t>({max_splits, key_blocks, run_limit}));
}

/// The work that a plan splits.
inline SplittableWork work_of(const FewQueriesPlan& plan, std::int64_t keys) {
    return {.key_blocks = (keys + FewQueriesTiles::keys - 1) / FewQueriesTiles::keys,
            .tasks_per_split = plan.blocks_per_split,
            .concurrent_tasks = plan.concurrent_blocks,
            .start_up = start_up};
}

inline void set_splits(FewQueriesPlan& plan, const KeySplits& splits) {
    plan.splits = static_cast<int>(splits.count);
    plan.keys_per_split = static_cast<int>(splits.blocks_per_split * FewQueriesTiles::keys);
}

/// Plans a call. `shared_bytes` is the shared memory that a thread block may use, in bytes.
inline FewQueriesPlan plan_few_queries(const FewQueriesShape& shape, int processors, int shared_bytes) {
    const int max_rows = shape.is_f32 ? F32FewQueriesTiles::max_rows : FewQueriesTiles::max_rows;
    if (shape.queries < 1 || shape.queries > max_rows || shape.batch * shape.heads == 0 ||
        shape.keys < min_keys_to_split)
        return {};
    FewQueriesPlan plan;
    plan.heads_together = shape.rule_of_each_head ? 1 : static_cast<int>(shape.group);
    while (shape.group % plan.heads_together != 0 || plan.heads_together * shape.queries > max_rows)
        --plan.heads_together;
    plan.rows = static_cast<int>(plan.heads_together * shape.queries);
    const FewQueriesTiles tiles{shape.head_dim, plan.rows <= 16 ? 1 : plan.rows <= 32 ? 2 : 4};
    const F32FewQueriesTiles f32_tiles{shape.head_dim, plan.rows <= 1   ? 1
                                                       : plan.rows <= 4 ? 4
                                                       : plan.rows <= 8 ? 8
                                                                        : 16};
    if ((shape.is_f32 ? f32_tiles.shared_bytes() : tiles.shared_bytes()) > shared_bytes) return {};
    plan.blocks_per_split = shape.batch * (shape.heads / plan.heads_together);
    plan.concurrent_blocks = processors * (shape.is_f32 ? f32_tiles.blocks_per_sm() : tiles.blocks_per_sm());
    const SplittableWork work = work_of(plan, shape.keys);
    set_splits(plan, work.fewest_splits(
                         limit_of_splits(plan.blocks_per_split, work.key_blocks, plan.concurrent_blocks)));
    return plan;
}

/// How a forward pass splits its keys.
struct SplitParameters {
    int heads_together, splits, keys_per_split;
    int first_key, end_key;  ///< the keys that at least one query sees
    std::int64_t all_rows;   ///< B * Hq * Sq
    int columns;             ///< the row length in `o`
    float* o;                ///< [splits, all_rows, columns]; unused without splits
    ExactLse* lse;           ///< [splits, all_rows]; unused without splits
};

/// `o` and `lse` are a plan's scratch tensors split_o and split_lse.
inline SplitParameters split_parameters(const FewQueriesPlan& plan, const Mask& mask, const Tensor& o,
                                        const Tensor& lse) {
    const IndexRange visible = mask.visible_keys({0, mask.queries});
    return {.heads_together = plan.heads_together,
            .splits = plan.splits,
            .keys_per_split = plan.keys_per_split,
            .first_key = static_cast<int>(visible.begin),
            .end_key = static_cast<int>(visible.end),
            .all_rows = o.size(1),
            .columns = static_cast<int>(o.size(2)),
            .o = o.data<float>(),
            .lse = reinterpret_cast<ExactLse*>(lse.data<float>())};
}

}  // namespace gradtile::attention::cuda
