#include <bit>
#include <cstring>

#include <gradtile/layers/internal/dropout_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile::cpu {
namespace {

constexpr int draws = 16;           // concurrent Philox calls: their counters fill one AVX-512 register
constexpr int segment = 8 * draws;  // columns for these calls; one call gives 16 bits to each of 8 columns
static_assert(std::endian::native == std::endian::little,
              "16-bit halves of words are read from memory in little-endian order");

/// Draws 16 bits for each of `segment` columns in one row, starting at column 8 * first_group.
void draw_segment(std::uint16_t* bits, std::uint32_t first_group, std::uint32_t token, std::uint32_t sample,
                  Philox::Key key) {
    std::uint32_t words[4 * draws];
    Philox::draw_many(words, draws, {first_group, token, 0, sample}, key);
    std::memcpy(bits, words, sizeof words);
}

/// y = branch * factor (+ x), where factor is the scale for kept elements and 0 for dropped ones.
template <bool drop, bool residual, class T>
void drop_row(T* y, const T* x, const T* branch, std::int64_t width, const DropoutMask& mask, Philox::Key key,
              std::int64_t row) {
    using S = Accumulator<T>;
    if constexpr (!drop) {
#pragma GCC ivdep  // y may be branch itself
        for (std::int64_t i = 0; i < width; ++i) {
            S value = convert<S>(branch[i]);
            if constexpr (residual) value += convert<S>(x[i]);
            y[i] = convert<T>(value);
        }
        return;
    }
    const auto token = static_cast<std::uint32_t>(row % mask.tokens);
    const auto sample = static_cast<std::uint32_t>(mask.first_sample + row / mask.tokens);
    const S scale = static_cast<S>(mask.scale);
    const int threshold = static_cast<int>(mask.threshold);
    for (std::int64_t begin = 0; begin < width; begin += segment) {
        std::uint16_t bits[segment];
        draw_segment(bits, static_cast<std::uint32_t>(begin / 8), token, sample, key);
        const std::int64_t count = std::min<std::int64_t>(segment, width - begin);
#pragma GCC ivdep
        for (std::int64_t i = 0; i < count; ++i) {
            S value = convert<S>(branch[begin + i]) * (bits[i] >= threshold ? scale : S(0));
            if constexpr (residual) value += convert<S>(x[begin + i]);
            y[begin + i] = convert<T>(value);
        }
    }
}

template <bool drop, bool residual, class T>
void drop_rows(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& branch,
               const DropoutMask& mask) {
    const TensorRows<T> ys(y, "dropout"), branches(branch, "dropout"), xs(residual ? x : branch, "dropout");
    const Philox::Key key = mask.key();
    for_rows(ctx, ys.count(), ys.width(), [&](std::int64_t r) {
        drop_row<drop, residual>(ys[r], xs[r], branches[r], ys.width(), mask, key, r);
    });
}

}  // namespace

void dropout(const Context& ctx, const Tensor& y, const Tensor& x, const Tensor& branch,
             const DropoutMask& mask) {
    const bool drop = mask.threshold != 0;
    visit_floating(y.dtype(), [&]<class T>(TypeTag<T>) {
        if (!x.defined()) {
            drop_rows<true, false, T>(ctx, y, x, branch, mask);
        } else if (drop) {
            drop_rows<true, true, T>(ctx, y, x, branch, mask);
        } else {
            drop_rows<false, true, T>(ctx, y, x, branch, mask);
        }
    });
}

}  // namespace gradtile::cpu
