#include <gradtile/tools/lab/warp_partition.h>

#include <gradtile/core/check.h>
#include <gradtile/core/internal/overlap.h>
#include <gradtile/tools/lab/internal/warp_partition_backend.h>

namespace gradtile::attention::lab {

SharedTraffic shared_traffic(WarpPartition partition, std::int64_t heads, std::int64_t queries,
                             std::int64_t keys, std::int64_t head_dim) {
    constexpr std::int64_t warps = partition_warps, rows = partition_rows, tile_keys = partition_keys;
    constexpr std::int64_t size_16_bit = 2, size_f32 = 4;
    const std::int64_t tiles = heads * ceil_div(queries, rows) * ceil_div(keys, tile_keys);
    const std::int64_t q = rows * head_dim * size_16_bit, k_and_v = 2 * tile_keys * head_dim * size_16_bit;
    if (partition == WarpPartition::split_q) return {.loads = tiles * (q + warps * k_and_v)};
    // For each row of a warp: its maximum and sum in the tile, and its partial O.
    const std::int64_t statistic_bytes = warps * rows * size_f32, parts_of_o = statistic_bytes * head_dim;
    const std::int64_t running_maximum = rows * size_f32;
    return {.loads = tiles * (warps * q + k_and_v                            // products
                              + warps * (statistic_bytes + running_maximum)  // maxima, by every warp
                              + statistic_bytes + running_maximum  // again, by the warp that owns the row
                              + statistic_bytes + parts_of_o),     // sums, O
            .stores = tiles * (statistic_bytes + statistic_bytes + running_maximum + parts_of_o)};
}

void partitioned_forward(const Context& ctx, WarpPartition partition, GridOrder order, const Tensor& q,
                         const Tensor& k, const Tensor& v, bool causal, const Tensor& o, const Tensor& lse) {
    check(ctx.device().is_cuda(), "warp partition: the kernel runs on cuda, not on ", ctx.device());
    check(q.rank() == 4 && k.rank() == 4 && is_16_bit(q.dtype()) && (q.size(3) == 64 || q.size(3) == 128),
          "warp partition: q ", q, ", expected bfloat16 or float16 [B, S, H, 64 or 128]");
    const Shape keys{q.size(0), k.size(1), q.size(2), q.size(3)};
    for (const Tensor* x : {&k, &v})
        check(x->shape() == keys && x->dtype() == q.dtype(), "warp partition: k or v is ", *x, ", expected ",
              keys, ' ', q.dtype());
    check(o.shape() == q.shape() && o.dtype() == q.dtype(), "warp partition: o ", o, ", expected ", q.shape(),
          ' ', q.dtype());
    check(lse.shape() == Shape{q.size(0), q.size(2), q.size(1)} && lse.dtype() == DType::f32,
          "warp partition: lse ", lse, ", expected float32 [B, H, Sq]");
    for (const Tensor* x : {&q, &k, &v, &o, &lse})
        check(x->is_contiguous() && x->device() == ctx.device(), "warp partition: ", *x,
              ", expected contiguous on ", ctx.device());
    check_sharing(ctx, "warp partition", {"o", o}, {{"q", q}, {"k", k}, {"v", v}, {"lse", lse}});
    check_sharing(ctx, "warp partition", {"lse", lse}, {{"q", q}, {"k", k}, {"v", v}});
    cuda::partitioned_forward(ctx, partition, order, q, k, v, causal, o, lse);
}

}  // namespace gradtile::attention::lab
