// No 16-bit flash kernels for the GPU yet.
#include <gradtile/attention/flash_kernels_cuda.h>
#include <gradtile/core/cuda_runtime.h>

namespace gradtile::attention::cuda {

void flash_16bit_forward(const Context&, const Resolved&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&) {
    gradtile::cuda::operator_absent();
}
void flash_16bit_backward(const Context&, const Resolved&, const Saved&, const Tensor&, const Gradients&) {
    gradtile::cuda::operator_absent();
}

}  // namespace gradtile::attention::cuda
