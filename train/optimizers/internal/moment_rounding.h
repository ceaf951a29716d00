#pragma once
/// Stochastic rounding to bfloat16: up with the probability that makes the mean equal to the number (Gupta et
/// al. 2015, "Deep learning with limited numerical precision", section 3). Rounded to nearest, a moment would
/// not change when an update changes it by less than half a unit: by 1/512, or 1 - beta2 for most betas.
#include <cstdint>
#include <type_traits>

#include <gradtile/core/dtype.h>
#include <gradtile/core/host_device.h>
#include <gradtile/core/philox.h>
#include <gradtile/core/random.h>

namespace gradtile {

/// The random bits for one update. They depend on the run's seed, the update's number and the element's
/// offset in the store: so they are equal on every device, for any shards, and after a resume.
struct MomentDraws {
    /// One draw serves this many neighbours, the first at a multiple.
    static constexpr std::int64_t elements = 4;
    /// An element's draw serves this many moments.
    static constexpr std::size_t moments = 2;

    Philox::Key key = {};
    std::uint32_t update = 0;

    GRADTILE_HOST_DEVICE static MomentDraws of(Seed seed, std::int32_t update) {
        constexpr std::uint64_t purpose = 0x6d6f6d656e7473;  // "moments"
        return {philox_key(mix_seed(seed.value, purpose)), static_cast<std::uint32_t>(update)};
    }
    GRADTILE_HOST_DEVICE Philox::Counter counter(std::int64_t element) const {
        const auto index = static_cast<std::uint64_t>(element / elements);
        return {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), update, 0};
    }
    GRADTILE_HOST_DEVICE Philox::Counter draw(std::int64_t element) const {
        return Philox::draw(counter(element), key);
    }
    /// A moment's 16 random bits in its element's word of the draw.
    GRADTILE_HOST_DEVICE static std::uint32_t bits(std::uint32_t word, std::size_t moment) {
        return moment == 0 ? word & 0xffffu : word >> 16;
    }
};

/// Rounds x up if its lower 16 bits plus the random bits carry. Infinity and NaN stay what they are, and a
/// finite number stays finite.
GRADTILE_HOST_DEVICE inline bfloat16 rounded_stochastically(float x, std::uint32_t random_bits) {
    const auto word = __builtin_bit_cast(std::uint32_t, x);
    const std::uint32_t size = word & 0x7fffffffu, carried = size + random_bits;
    const bool is_finite = size < 0x7f800000u, overflows = carried >= 0x7f800000u;
    const std::uint32_t quiet_bit = size > 0x7f800000u ? 0x00400000u : 0u;
    bfloat16 rounded;
    rounded.bits = static_cast<std::uint16_t>(
        ((word & 0x80000000u) | (is_finite && !overflows ? carried : size | quiet_bit)) >> 16);
    return rounded;
}

/// Calls visit(TypeTag) with the type in which `dtype` keeps moments or gradients: Real, or bfloat16 if Real
/// is float.
template <class Real, class Visit>
void visit_kept_type(DType dtype, const Visit& visit) {
    if constexpr (std::is_same_v<Real, float>)
        if (dtype == DType::bf16) return visit(TypeTag<bfloat16>{});
    visit(TypeTag<Real>{});
}

}  // namespace gradtile
