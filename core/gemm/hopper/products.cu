// Products for Hopper without an activation.
#include <gradtile/core/gemm/hopper/internal/kernels.h>
#include <gradtile/core/gemm/hopper/epilogues.cuh>
#include <gradtile/core/gemm/hopper/launch.cuh>

namespace gradtile::cuda {
namespace {

using device::Order;

/// Calls f(kernels) with the ProductKernels of the operands. Returns its result.
template <class F>
auto visit_kernels(const ProductOperands& operands, F&& f) {
    const auto of_bias = [&]<class T, bool has_bias>() {
        using Epilogue = device::StoreProduct<T, has_bias>;
        if (operands.trans_a) {
            if (operands.trans_b) return f(ProductKernels<Epilogue, Order::output, Order::reduction>{});
            return f(ProductKernels<Epilogue, Order::output, Order::output>{});
        }
        if (operands.trans_b) return f(ProductKernels<Epilogue, Order::reduction, Order::reduction>{});
        return f(ProductKernels<Epilogue, Order::reduction, Order::output>{});
    };
    const auto of_type = [&]<class T>(TypeTag<T>) {
        return operands.bias.defined() ? of_bias.template operator()<T, true>()
                                       : of_bias.template operator()<T, false>();
    };
    return operands.a.dtype() == DType::bf16 ? of_type(TypeTag<bfloat16>{}) : of_type(TypeTag<float16>{});
}

}  // namespace

std::span<const std::uint64_t> compiled_product_kernels(const ProductOperands& operands) {
    return visit_kernels(
        operands, []<class Kernels>(Kernels) { return std::span<const std::uint64_t>(Kernels::numbers); });
}

void run_compiled_product(const Context& ctx, const ProductOperands& operands, std::uint64_t kernel) {
    visit_kernels(operands, [&]<class Kernels>(Kernels) { Kernels::run(ctx, operands, kernel); });
}

}  // namespace gradtile::cuda
