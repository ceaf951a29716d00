// The CUDA side of linear_gelu.h, until there is one.
#include <gradtile/core/cuda_runtime.h>
#include <gradtile/layers/linear_gelu_backend.h>

namespace gradtile::cuda {

void linear_gelu_forward(const Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, Gelu::Form) {
    operator_absent();
}
void linear_gelu_backward(const Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          Gelu::Form) {
    operator_absent();
}

}  // namespace gradtile::cuda
