#include <gradtile/core/gemm/internal/hopper_product.h>

#include <limits>

#include <gradtile/core/cuda/internal/tensor_map.h>
#include <gradtile/core/gemm/internal/gemm_backend.h>
#include <gradtile/core/gemm/internal/gemm_candidates.h>
#include <gradtile/core/gemm/internal/hopper_kernels.h>
#include <gradtile/core/gemm/internal/hopper_tiles.h>
#include <gradtile/core/internal/cuda_check.h>

namespace gradtile::cuda {
namespace {

#ifdef GRADTILE_HAVE_HOPPER
constexpr const char* off_switch = "GRADTILE_HOPPER_GEMM";

/// Whether TMA can address the rows of a matrix, and they are whole 16-byte pieces: a store writes whole
/// pieces, also beyond a row's end.
bool has_matrix_map(const Tensor& x) {
    return x.size(-1) % 8 == 0 && has_tensor_map(box_view(x));
}
#endif

}  // namespace

std::string own_gemm_kernel_name(std::uint64_t kernel) {
    for (const ProductTiles& tiles : product_tiles)
        if (tiles.number() == kernel)
            return concat(tiles.rows(), 'x', tiles.columns, tiles.in_turns ? " in turns" : "", ", cluster ",
                          tiles.cluster);
    return concat("unknown kernel ", kernel);
}

std::vector<std::uint64_t> own_gemm_kernels() {
    std::vector<std::uint64_t> numbers;
#ifdef GRADTILE_HAVE_HOPPER
    for (const ProductTiles& tiles : product_tiles) numbers.push_back(tiles.number());
#endif
    return numbers;
}

#ifdef GRADTILE_HAVE_HOPPER
const char* why_not_hopper_product(const ProductOperands& operands) {
    const Tensor &a = operands.a, &bias = operands.bias;
    if (!is_16_bit(a.dtype())) return "the operands do not have 16 bits";
    if (!is_hopper(a.device())) return "the GPU is not of compute capability 9.0";
    if (is_off(off_switch)) return "GRADTILE_HOPPER_GEMM is off";
    const auto are_copied = [&](std::initializer_list<Tensor> tensors) {
        for (const Tensor& x : tensors)
            if (x.defined() && (x.rank() != 2 || x.dtype() != a.dtype() || !has_matrix_map(x))) return false;
        return true;
    };
    const auto& b = operands.b;
    const auto& to = operands.to;
    const auto& with = operands.with;
    if (!are_copied({a, b[0], b[1], to[0], to[1], to[2], with[0], with[1]}))
        return "TMA cannot address a matrix, or the dtypes differ";
    if (a.elements() == 0 || b[0].elements() == 0) return "an axis has length 0";
    if (operands.to[0].elements() > std::numeric_limits<std::int32_t>::max() * std::int64_t{16})
        return "the result is too large";
    if (bias.defined() && (bias.dtype() != a.dtype() || bias.size(0) % 8 != 0 ||
                           reinterpret_cast<std::uintptr_t>(bias.raw_data()) % 16 != 0))
        return "the bias has another dtype or is not aligned";
    return nullptr;
}

std::span<const std::uint64_t> hopper_product_kernels(const ProductOperands& operands) {
    if (why_not_hopper_product(operands) != nullptr) return {};
    return compiled_product_kernels(operands);
}

bool symmetric_product(const Context& ctx, const Tensor& result, const Tensor& x,
                       const SymmetricProduct& product) {
    // With one tile in a row there is nothing to save.
    const bool saves = result.size(-1) > symmetric_tiles.rows();
    if (!saves || result.dtype() != DType::bf16 || x.dtype() != DType::bf16 || !is_hopper(x.device()) ||
        is_off(off_switch) || !has_matrix_map(result) || !has_matrix_map(x) || x.elements() == 0)
        return false;
    run_compiled_symmetric_product(ctx, result, x, product);
    return true;
}
#else
bool symmetric_product(const Context&, const Tensor&, const Tensor&, const SymmetricProduct&) {
    return false;
}
const char* why_not_hopper_product(const ProductOperands&) {
    return "this build has no code for sm_90a";
}
std::span<const std::uint64_t> hopper_product_kernels(const ProductOperands&) {
    return {};
}
void run_hopper_product(const Context&, const ProductOperands&, std::uint64_t) {
    throw Error("gemm: this build has no code for sm_90a");
}
#endif

}  // namespace gradtile::cuda
