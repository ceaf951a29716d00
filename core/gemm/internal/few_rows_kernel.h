#pragma once
/// INTERNAL; include only in sources compiled for one instruction set. The loops for few_rows.h over an
/// instruction set `Isa`, for elements of type T. Everything has internal linkage, so that the linker cannot
/// use code compiled here in place of another source's function.
///
///   Isa::Vector        several floats
///   Isa::Step<T>       `vectors` registers with `elements` consecutive elements, in any order
///   Isa::load(p)       reads a Step<T> from p
///   Isa::add_products  sum[i] += the product of the i-th registers in two steps
///   Isa::sum(sums)     the sum of all lanes, in a fixed order
///   Isa::rows          for how many rows of a the sums stay in registers: 2 or 4
#include <algorithm>
#include <type_traits>

#include <gradtile/core/gemm/internal/few_rows.h>

namespace gradtile::cpu {
namespace {

/// The sums for one column of c and `rows` rows of a. Constant loops are unrolled, so that sums are
/// registers.
template <class Isa, int rows, class T>
struct FewRowsSums {
    using Step = typename Isa::template Step<T>;
    typename Isa::Vector sums[rows][Step::vectors];

    FewRowsSums() {
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r)
#pragma GCC unroll 4
            for (int i = 0; i < Step::vectors; ++i) sums[r][i] = Isa::zero();
    }
    /// Multiplies each row's step in a (rows are lda elements apart) by one row's step in b, and adds the
    /// products.
    void add(const T* a, std::int64_t lda, const T* b) {
        const Step weights = Isa::load(b);
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) Isa::add_products(sums[r], Isa::load(a + r * lda), weights);
    }
    /// Does the same for `count` elements, fewer than a step has.
    [[gnu::noinline]] static void add_rest(FewRowsSums& to, std::int64_t count, const T* a, std::int64_t lda,
                                           const T* b) {
        T a_step[rows][Step::elements] = {}, b_step[Step::elements] = {};
        for (int r = 0; r < rows; ++r) std::copy_n(a + r * lda, count, a_step[r]);
        std::copy_n(b, count, b_step);
        to.add(a_step[0], Step::elements, b_step);
    }
};

/// Computes one column of c for `rows` rows of a. Reads b once for all rows. A row of b is read from begin to
/// end before the next one: reading 2 or 4 rows at a time from memory takes two to three times as long (Zen
/// 4).
template <class Isa, int rows, class T>
void few_rows_column(const GemmBlock& block, const T* a, const T* b, float* c) {
    using Sums = FewRowsSums<Isa, rows, T>;
    Sums sums;
    std::int64_t p = 0;
    for (; p + Sums::Step::elements <= block.k; p += Sums::Step::elements) sums.add(a + p, block.lda, b + p);
    if (p < block.k) {
        Sums with_rest = sums;  // a copy, so that `sums` has no address and stays in registers
        Sums::add_rest(with_rest, block.k - p, a + p, block.lda, b + p);
        sums = with_rest;
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; ++r) {
        float& to = c[r * block.ldc];
        const float product = block.alpha * Isa::sum(sums.sums[r]);
        to = block.accumulate ? product + to : product;
    }
}

template <class Isa, class T>
void few_rows(const GemmBlock& block, const T* a, const T* b, float* c) {
    for (std::int64_t column = 0; column < block.n; ++column) {
        std::int64_t row = 0;
        // From the second row group on, b's row is in the L1 cache.
        const auto groups = [&]<int rows>(std::integral_constant<int, rows>) {
            for (; row + rows <= block.m; row += rows)
                few_rows_column<Isa, rows>(block, a + row * block.lda, b + column * block.ldb,
                                           c + row * block.ldc + column);
        };
        if constexpr (Isa::rows >= 4) groups(std::integral_constant<int, 4>{});
        groups(std::integral_constant<int, 2>{});
        groups(std::integral_constant<int, 1>{});
    }
}

}  // namespace
}  // namespace gradtile::cpu
