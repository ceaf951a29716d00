#include <gradtile/tools/lab/key_splits.h>

#include <gradtile/attention/cuda/common/few_queries.h>

namespace gradtile::cli {

std::vector<KeySplit> key_splits(std::int64_t keys, std::int64_t head_dim) {
    using namespace attention::cuda;
    int kernel_head_dim = 0;
    for (const int width : {256, 192, 128, 96, 64, 32})
        if (head_dim <= width) kernel_head_dim = width;
    std::vector<KeySplit> splits;
    for (const std::int64_t heads : {1, 4, 16, 64, 256, 1024}) {
        const FewQueriesShape shape{.batch = 1,
                                    .queries = 1,
                                    .keys = keys,
                                    .heads = heads,
                                    .group = 1,
                                    .head_dim = kernel_head_dim,
                                    .rule_of_each_head = false};
        const attention::FewQueriesPlan plan =
            plan_few_queries(shape, example_multiprocessors, example_shared_bytes);
        if (!plan) return {};
        const attention::SplittableWork work = work_of(plan, keys);
        splits.push_back({.heads = heads,
                          .splits = plan.splits,
                          .occupancy_of_one = work.occupancy(work.split(1)),
                          .occupancy = work.occupancy(work.split(plan.splits))});
    }
    return splits;
}

}  // namespace gradtile::cli
