// Products with GELU or SwiGLU by gradtile's kernels for Hopper.
#include <gradtile/core/internal/unknown_enumerator.h>
#include <gradtile/layers/internal/activation_products.h>
#include <gradtile/core/gemm/device/launch.cuh>
#include <gradtile/layers/device/product_epilogues.cuh>

namespace gradtile::cuda {
namespace {

using device::Order;

/// Calls f(kernels) with the ProductKernels for this product and dtype. The forward products x W^T have the
/// reduction as both operands' last axis; the gradients are dy W.
template <class F>
auto visit_kernels(ActivationProduct product, const ProductOperands& operands, F&& f) {
    return visit_operand_type(operands, [&]<class T>(TypeTag<T>) {
        switch (product) {
            case ActivationProduct::gelu:
                return f(ProductKernels<device::StoreGelu<T>, Order::reduction>{});
            case ActivationProduct::gelu_gradient:
                if (operands.column_sums.defined())
                    return f(ProductKernels<device::StoreGeluGradient<T, true>, Order::output>{});
                return f(ProductKernels<device::StoreGeluGradient<T, false>, Order::output>{});
            case ActivationProduct::swiglu:
                return f(ProductKernels<device::StoreSwiGlu<T>, Order::reduction>{});
            case ActivationProduct::swiglu_gradient:
                return f(ProductKernels<device::StoreSwiGluGradient<T>, Order::output>{});
        }
        refuse_unknown("linear_activation: unknown product");
    });
}

}  // namespace

std::span<const std::uint64_t> product_kernels(ActivationProduct product, const ProductOperands& operands) {
    const bool is_forward = product == ActivationProduct::gelu || product == ActivationProduct::swiglu;
    if (operands.trans_a || operands.trans_b != is_forward || why_not_hopper_product(operands) != nullptr)
        return {};
    return visit_kernels(product, operands, []<class Kernels>(Kernels) {
        return std::span<const std::uint64_t>(Kernels::numbers);
    });
}

void run_product(const Context& ctx, ActivationProduct product, const ProductOperands& operands,
                 std::uint64_t kernel) {
    visit_kernels(product, operands, [&]<class Kernels>(Kernels) { Kernels::run(ctx, operands, kernel); });
}

}  // namespace gradtile::cuda
