// Selects the kernels for products with few rows at run time, and decides which products use them.
#include <gradtile/core/gemm/internal/few_rows.h>

#include <algorithm>
#include <atomic>

#include <gradtile/core/cpu/cpu_features.h>
#include <gradtile/core/tensor.h>

namespace gradtile::cpu {
namespace {

const FewRowsKernels* fastest_kernels() {
    const auto& usable = usable_few_rows_kernels();
    return usable.empty() ? nullptr : usable.front();
}

std::atomic<const FewRowsKernels*>& chosen_kernels() {
    static std::atomic<const FewRowsKernels*> chosen{fastest_kernels()};
    return chosen;
}

}  // namespace

const std::vector<const FewRowsKernels*>& usable_few_rows_kernels() {
    static const auto usable = [] {
        std::vector<const FewRowsKernels*> found;
#if defined(GRADTILE_HAVE_FEW_ROWS_AVX512_BF16)
        if (cpu_has_avx512_bf16()) found.push_back(&avx512_bf16_few_rows);
#endif
#if defined(GRADTILE_HAVE_FEW_ROWS)
        if (cpu_has_avx512()) found.push_back(&avx512_few_rows);
        if (cpu_has_avx2_fma()) found.push_back(&avx2_few_rows);
#endif
#if defined(GRADTILE_HAVE_FEW_ROWS_NEON)
        if (cpu_has_neon_bf16()) found.push_back(&neon_bf16_few_rows);
        if (cpu_has_neon()) found.push_back(&neon_few_rows);
#endif
        return found;
    }();
    return usable;
}

template <class T>
FewRowsProduct<T> few_rows_product(const GemmBlock& product) {
    const FewRowsKernels* const kernels = chosen_kernels();
    if (kernels == nullptr || product.k < 1 || product.trans_a || !product.trans_b) return nullptr;
    constexpr std::int64_t max_rows_16_bit =
        8;  // if the library has no 16-bit products, a larger number may be faster; not measured
    if constexpr (std::is_same_v<T, float>) {
        return product.m <= kernels->max_rows_f32 ? kernels->f32 : nullptr;
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        return product.m <= max_rows_16_bit ? kernels->bf16 : nullptr;
    } else if constexpr (std::is_same_v<T, float16>) {
        return product.m <= max_rows_16_bit ? kernels->f16 : nullptr;
    } else {
        return nullptr;
    }
}

template FewRowsProduct<double> few_rows_product(const GemmBlock&);
template FewRowsProduct<float> few_rows_product(const GemmBlock&);
template FewRowsProduct<bfloat16> few_rows_product(const GemmBlock&);
template FewRowsProduct<float16> few_rows_product(const GemmBlock&);

std::int64_t few_rows_columns(const GemmBlock& product, std::size_t element_bytes, int threads) {
    constexpr std::int64_t cache_line = 16;  // elements of c; threads then write different cache lines
    constexpr std::int64_t blocks_of_thread =
        4;  // so that other threads can take work from a thread that starts late
    constexpr std::int64_t smallest_block = std::int64_t{32}
                                            << 10;  // bytes of b; reading them costs as much as a block start
    const std::int64_t row_bytes = product.k * static_cast<std::int64_t>(element_bytes);
    const std::int64_t columns =
        std::max(ceil_div(product.n, blocks_of_thread * threads), ceil_div(smallest_block, row_bytes));
    return rounded_up(columns, cache_line);
}

ForcedFewRowsKernels::ForcedFewRowsKernels(const FewRowsKernels* kernels) {
    chosen_kernels() = kernels;
}
ForcedFewRowsKernels::~ForcedFewRowsKernels() {
    chosen_kernels() = fastest_kernels();
}

}  // namespace gradtile::cpu
