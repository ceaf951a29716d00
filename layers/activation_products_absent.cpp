// Products with GELU or SwiGLU in a build without code for sm_90a.
#include <gradtile/layers/internal/activation_products.h>

namespace gradtile::cuda {

std::span<const std::uint64_t> gelu_product_kernels(const ProductOperands&) {
    return {};
}
void run_gelu_product(const Context&, const ProductOperands&, std::uint64_t) {
    throw Error("linear_activation: this build has no code for sm_90a");
}
std::span<const std::uint64_t> gelu_gradient_product_kernels(const ProductOperands&) {
    return {};
}
void run_gelu_gradient_product(const Context&, const ProductOperands&, std::uint64_t) {
    throw Error("linear_activation: this build has no code for sm_90a");
}
std::span<const std::uint64_t> swiglu_product_kernels(const ProductOperands&) {
    return {};
}
void run_swiglu_product(const Context&, const ProductOperands&, std::uint64_t) {
    throw Error("linear_activation: this build has no code for sm_90a");
}
std::span<const std::uint64_t> swiglu_gradient_product_kernels(const ProductOperands&) {
    return {};
}
void run_swiglu_gradient_product(const Context&, const ProductOperands&, std::uint64_t) {
    throw Error("linear_activation: this build has no code for sm_90a");
}

}  // namespace gradtile::cuda
