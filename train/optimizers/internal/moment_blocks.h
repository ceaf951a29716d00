#pragma once
/// Moments in 8 bits. A block of 64 neighbours has a float32, the block's largest magnitude L, and a code for
/// each moment, which is L times a small floating-point number w with three bits of mantissa:
///
///     w(k) = (k % 8) 2^-n              for k < 8
///     w(k) = (8 + k % 8) 2^(k / 8 - 1 - n)      else, up to w = 1
///
/// A signed moment has a sign bit and n = 17, a second moment n = 33. So neighbours differ by at most 1/8 of
/// the smaller one down to 2^-14 L (second moments: 2^-30 L), and by 2^-n L below. Moments are rounded
/// stochastically as in moment_rounding.h, so the mean is exact, to 2^-16 of the distance. One exception: a
/// second moment above 0 is never rounded to 0. Its root would then be far smaller than the smallest first
/// moment, and the update too large.
#include <array>
#include <cstdint>

#include <gradtile/train/optimizers/internal/moment_rounding.h>
#include <gradtile/train/optimizers/optimizer.h>

namespace gradtile {

/// A block as it lies in a moment tensor.
struct MomentBlock {
    static constexpr int elements = moment_block;
    static constexpr int codes_per_word = 4;
    std::uint32_t codes[elements / codes_per_word];  ///< the first code is in the lowest byte
    std::uint32_t largest;                           ///< L's bits; not finite if a moment was not
};
static_assert(sizeof(MomentBlock) == moment_block_words * sizeof(std::int32_t));

/// The codes of a moment: its first moment, or momentum, has signs; its second has none.
class MomentCode {
  public:
    GRADTILE_HOST_DEVICE explicit MomentCode(std::size_t moment)
        : top_(moment == 0 ? 15u : 31u), is_signed_(moment == 0) {}

    /// Returns the code of x, which is at most `largest` in magnitude. `random` has 16 bits.
    GRADTILE_HOST_DEVICE std::uint32_t encoded(float x, float largest, std::uint32_t random) const {
        const float quotient = (x < 0 ? -x : x) / largest;
        const float w = quotient <= 1.0f ? quotient : 0.0f;  // 0 / 0, and what is not finite
        std::uint32_t code;
        if (w >= power_of_two(1 - static_cast<int>(top_))) {
            code = ((__builtin_bit_cast(std::uint32_t, w) + (random << 4)) >> 20) - ((127u - top_) << 3);
        } else {
            const float scaled = w * power_of_two(static_cast<int>(top_) + 2 + 16);
            code = (static_cast<std::uint32_t>(scaled) + random) >> 16;
        }
        if (is_signed_) return x < 0 ? code | 0x80u : code;
        return code == 0 && w > 0.0f ? 1u : code;
    }
    GRADTILE_HOST_DEVICE float decoded(std::uint32_t code, float largest) const {
        const std::uint32_t k = is_signed_ ? code & 0x7fu : code & 0xffu, exponent = k >> 3;
        const float w = exponent == 0
                            ? static_cast<float>(k) * power_of_two(-static_cast<int>(top_) - 2)
                            : __builtin_bit_cast(float, ((127u - top_ + exponent) << 23) | (k & 7u) << 20);
        return is_signed_ && (code & 0x80u) != 0 ? -w * largest : w * largest;
    }

  private:
    GRADTILE_HOST_DEVICE static float power_of_two(int exponent) {
        return __builtin_bit_cast(float, static_cast<std::uint32_t>(127 + exponent) << 23);
    }
    std::uint32_t top_;  // the exponent bits of w = 1
    bool is_signed_;
};

/// The bits of |x|. As integers they are ordered like the magnitudes, and NaN is the largest.
GRADTILE_HOST_DEVICE inline std::uint32_t magnitude_bits(float x) {
    return __builtin_bit_cast(std::uint32_t, x) & 0x7fffffffu;
}

/// Calls visit(TypeTag) as visit_kept_type(), or with MomentBlock for moments in 8 bits.
template <class Real, class Visit>
void visit_stored_moments(DType dtype, const Visit& visit) {
    if constexpr (std::is_same_v<Real, float>)
        if (dtype == DType::i32) return visit(TypeTag<MomentBlock>{});
    visit_kept_type<Real>(dtype, visit);
}
/// Returns where the moments from `elements` on are; for blocks it is a multiple of 64.
template <class Moment>
GRADTILE_HOST_DEVICE Moment* advanced(Moment* moments, std::int64_t elements) {
    return moments + (std::is_same_v<Moment, MomentBlock> ? elements / moment_block : elements);
}
/// Returns where a moment tensor's moments from `element` on are.
template <class Moment>
Moment* moments_at(const Tensor& moments, std::int64_t element) {
    if constexpr (std::is_same_v<Moment, MomentBlock>) {
        return advanced(reinterpret_cast<MomentBlock*>(moments.data<std::int32_t>()), element);
    } else {
        return advanced(moments.data<Moment>(), element);
    }
}

}  // namespace gradtile
