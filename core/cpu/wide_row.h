#pragma once
/// Rows of 16-bit floats as float32. A loop over both widths is vectorised poorly, and compilers do not use
/// the processor's conversion to bfloat16. So kernels convert a row, compute in float32, and convert back.
#include <type_traits>
#include <vector>

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>
#endif

#include <gradtile/core/dtype.h>

namespace gradtile::cpu {

template <class To, class From>
void convert_row(const From* __restrict from, std::int64_t n, To* __restrict to) {
    std::int64_t i = 0;
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
    if constexpr (std::is_same_v<From, float> && std::is_same_v<To, bfloat16>)
        for (; i + 32 <= n; i += 32)
            _mm512_storeu_si512(to + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
                                            _mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i))));
#endif
    for (; i < n; ++i) to[i] = convert<To>(from[i]);
}

/// Memory for one row in T's accumulator type. If T is that type, the row itself is used.
template <class T>
class WideRow {
    using Sum = Accumulator<T>;
    static constexpr bool converts = !std::is_same_v<T, Sum>;

  public:
    explicit WideRow(std::int64_t width) : width_(width), held_(converts ? width : 0) {}

    const Sum* load(const T* row) {
        if constexpr (converts) {
            convert_row(row, width_, held_.data());
            return held_.data();
        } else {
            return row;
        }
    }
    /// Returns where to write the row's numbers before store().
    Sum* target(T* row) {
        if constexpr (converts) {
            return held_.data();
        } else {
            return row;
        }
    }
    void store(T* row) const {
        if constexpr (converts) convert_row(held_.data(), width_, row);
    }

  private:
    std::int64_t width_;
    std::vector<Sum> held_;
};

}  // namespace gradtile::cpu
