// The lab's CUDA side in a build without the CUDA toolkit.
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/tools/lab/internal/warp_partition_backend.h>

namespace gradtile::attention::cuda {

void partitioned_forward(const Context&, lab::WarpPartition, lab::GridOrder, const Tensor&, const Tensor&,
                         const Tensor&, bool, const Tensor&, const Tensor&) {
    gradtile::cuda::operator_absent();
}

}  // namespace gradtile::attention::cuda
