// Products for Hopper without an activation.
#include <gradtile/core/gemm/internal/hopper_kernels.h>
#include <gradtile/core/gemm/device/epilogues.cuh>
#include <gradtile/core/gemm/device/launch.cuh>

namespace gradtile::cuda {
namespace {

using device::Order;

/// Calls f(kernels) with the ProductKernels for these operands. A linear layer has kernels for two products:
/// its output, x W^T plus a bias (zeros when there is none), and the gradient of x, dy W.
template <class F>
auto visit_kernels(const ProductOperands& operands, F&& f) {
    return visit_operand_type(operands, [&]<class T>(TypeTag<T>) {
        if (operands.trans_b) return f(ProductKernels<device::StoreProduct<T, true>, Order::reduction>{});
        return f(ProductKernels<device::StoreProduct<T, false>, Order::output>{});
    });
}

}  // namespace

std::span<const std::uint64_t> compiled_product_kernels(const ProductOperands& operands) {
    if (operands.trans_a || (operands.bias.defined() && !operands.trans_b)) return {};
    return visit_kernels(
        operands, []<class Kernels>(Kernels) { return std::span<const std::uint64_t>(Kernels::numbers); });
}

void run_hopper_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel) {
    visit_kernels(operands, [&]<class Kernels>(Kernels) { Kernels::run(ctx, operands, kernel); });
}

}  // namespace gradtile::cuda
