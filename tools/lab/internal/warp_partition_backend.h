#pragma once
/// INTERNAL. The GPU side of lab/warp_partition.h. The caller has checked the arguments.
#include <gradtile/core/internal/cuda_function.h>
#include <gradtile/tools/lab/warp_partition.h>

namespace gradtile::attention::cuda {

GRADTILE_CUDA_FUNCTION(void(const Context& ctx, lab::WarpPartition partition, lab::GridOrder order,
                            const Tensor& q, const Tensor& k, const Tensor& v, bool causal, const Tensor& o,
                            const Tensor& lse),
                       partitioned_forward);

}  // namespace gradtile::attention::cuda
