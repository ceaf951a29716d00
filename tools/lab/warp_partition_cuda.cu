// Launches the kernels of lab/warp_partition.h.
#include <cmath>
#include <numbers>

#include <gradtile/tools/lab/internal/warp_partition_backend.h>
#include <gradtile/core/cuda/device/launch.cuh>
#include <gradtile/tools/lab/warp_partition.cuh>

namespace gradtile::attention::cuda {
namespace {

template <class T, int head_dim, lab::WarpPartition partition>
void launch_typed(const Context& ctx, const partition::Parameters<T>& p, std::int64_t blocks) {
    constexpr int bytes = partition::Layout<head_dim, partition>::bytes;
    static_assert(bytes <= 227 * 1024);
    const int available = gradtile::cuda::shared_memory_of_a_block();
    check(bytes <= available, "warp partition: head_dim ", head_dim, " needs ", bytes,
          " bytes of shared memory in a thread block; this GPU has ", available);
    gradtile::cuda::launch(ctx, partition::partitioned_forward_kernel<T, head_dim, partition>,
                           dim3(static_cast<unsigned>(blocks)),
                           {.threads = partition::threads, .shared_bytes = bytes}, p);
}

template <class T>
void partitioned_forward_typed(const Context& ctx, lab::WarpPartition partition, lab::GridOrder order,
                               const Tensor& q, const Tensor& k, const Tensor& v, bool causal,
                               const Tensor& o, const Tensor& lse) {
    using enum lab::WarpPartition;
    const Mask mask{.queries = q.size(1),
                    .keys = k.size(1),
                    .offset = k.size(1) - q.size(1),
                    .left = -1,
                    .right = causal ? 0 : -1};
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
    const partition::Parameters<T> parameters{.q = device::tensor_view<const T>(q),
                                              .k = device::tensor_view<const T>(k),
                                              .v = device::tensor_view<const T>(v),
                                              .o = device::tensor_view<T>(o),
                                              .lse = lse.data<float>(),
                                              .heads = static_cast<int>(q.size(2)),
                                              .head_dim = static_cast<int>(q.size(3)),
                                              .mask = device::DeviceMask(mask),
                                              .scale_log2 = static_cast<float>(scale * std::numbers::log2e),
                                              .order = order};
    const std::int64_t blocks =
        q.size(0) * q.size(2) * ceil_div(q.size(1), std::int64_t{lab::partition_rows});
    check(blocks <= INT32_MAX, "warp partition: ", blocks, " thread blocks; CUDA launches at most 2^31 - 1");
    if (blocks == 0) return;
    gradtile::cuda::use_device(ctx.device());
    if (q.size(3) == 64) {
        partition == split_q ? launch_typed<T, 64, split_q>(ctx, parameters, blocks)
                             : launch_typed<T, 64, split_k>(ctx, parameters, blocks);
    } else {
        partition == split_q ? launch_typed<T, 128, split_q>(ctx, parameters, blocks)
                             : launch_typed<T, 128, split_k>(ctx, parameters, blocks);
    }
}

}  // namespace

void partitioned_forward(const Context& ctx, lab::WarpPartition partition, lab::GridOrder order,
                         const Tensor& q, const Tensor& k, const Tensor& v, bool causal, const Tensor& o,
                         const Tensor& lse) {
    const auto forward =
        q.dtype() == DType::bf16 ? partitioned_forward_typed<bfloat16> : partitioned_forward_typed<float16>;
    if (!ctx.is_planning()) forward(ctx, partition, order, q, k, v, causal, o, lse);
}

}  // namespace gradtile::attention::cuda
