// Products with GELU or SwiGLU by gradtile's kernels for Hopper.
#include <gradtile/layers/internal/activation_products.h>
#include <gradtile/core/gemm/device/launch.cuh>
#include <gradtile/layers/device/product_epilogues.cuh>

namespace gradtile::cuda {
namespace {

using device::Order;

template <class F>
auto visit_16_bit(DType dtype, F&& f) {
    return dtype == DType::bf16 ? f(TypeTag<bfloat16>{}) : f(TypeTag<float16>{});
}

/// Calls f(kernels) for x W^T, whose operands have the reduction as their last axis.
template <class F>
auto visit_forward(const ProductOperands& operands, F&& f) {
    return visit_16_bit(operands.a.dtype(), [&]<class T>(TypeTag<T>) {
        return f(ProductKernels<device::StoreGelu<T>, Order::reduction>{});
    });
}

/// Calls f(kernels) for dy W.
template <class F>
auto visit_backward(const ProductOperands& operands, F&& f) {
    return visit_16_bit(operands.a.dtype(), [&]<class T>(TypeTag<T>) {
        if (operands.column_sums.defined())
            return f(ProductKernels<device::StoreGeluGradient<T, true>, Order::output>{});
        return f(ProductKernels<device::StoreGeluGradient<T, false>, Order::output>{});
    });
}

template <class F>
auto visit_gated_forward(const ProductOperands& operands, F&& f) {
    return visit_16_bit(operands.a.dtype(), [&]<class T>(TypeTag<T>) {
        return f(ProductKernels<device::StoreSwiGlu<T>, Order::reduction>{});
    });
}
template <class F>
auto visit_gated_backward(const ProductOperands& operands, F&& f) {
    return visit_16_bit(operands.a.dtype(), [&]<class T>(TypeTag<T>) {
        return f(ProductKernels<device::StoreSwiGluGradient<T>, Order::output>{});
    });
}

constexpr auto numbers_of = []<class Kernels>(Kernels) {
    return std::span<const std::uint64_t>(Kernels::numbers);
};

}  // namespace

std::span<const std::uint64_t> gelu_product_kernels(const ProductOperands& operands) {
    if (operands.trans_a || !operands.trans_b || why_not_hopper_product(operands) != nullptr) return {};
    return visit_forward(operands, numbers_of);
}
void run_gelu_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel) {
    visit_forward(operands, [&]<class Kernels>(Kernels) { Kernels::run(ctx, operands, kernel); });
}

std::span<const std::uint64_t> gelu_gradient_product_kernels(const ProductOperands& operands) {
    if (operands.trans_a || operands.trans_b || why_not_hopper_product(operands) != nullptr) return {};
    return visit_backward(operands, numbers_of);
}
void run_gelu_gradient_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel) {
    visit_backward(operands, [&]<class Kernels>(Kernels) { Kernels::run(ctx, operands, kernel); });
}

std::span<const std::uint64_t> swiglu_product_kernels(const ProductOperands& operands) {
    if (operands.trans_a || !operands.trans_b || why_not_hopper_product(operands) != nullptr) return {};
    return visit_gated_forward(operands, numbers_of);
}
void run_swiglu_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel) {
    visit_gated_forward(operands, [&]<class Kernels>(Kernels) { Kernels::run(ctx, operands, kernel); });
}

std::span<const std::uint64_t> swiglu_gradient_product_kernels(const ProductOperands& operands) {
    if (operands.trans_a || operands.trans_b || why_not_hopper_product(operands) != nullptr) return {};
    return visit_gated_backward(operands, numbers_of);
}
void run_swiglu_gradient_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel) {
    visit_gated_backward(operands, [&]<class Kernels>(Kernels) { Kernels::run(ctx, operands, kernel); });
}

}  // namespace gradtile::cuda
