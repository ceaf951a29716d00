// Products with GELU or SwiGLU in a build without code for sm_90a.
#include <gradtile/layers/internal/activation_products.h>

namespace gradtile::cuda {

std::span<const std::uint64_t> product_kernels(ActivationProduct, const ProductOperands&) {
    return {};
}
void run_product(const Context&, ActivationProduct, const ProductOperands&, std::uint64_t) {
    throw Error("linear_activation: this build has no code for sm_90a");
}

}  // namespace gradtile::cuda
