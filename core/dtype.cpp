#include <gradtile/core/dtype.h>

#include <ostream>

namespace gradtile {

float16::float16(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
    const std::uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        bits = static_cast<std::uint16_t>(sign | 0x7e00u);
    } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or is infinite
        bits = static_cast<std::uint16_t>(sign | 0x7c00u);
    } else if (magnitude < 0x38800000u) {
        // Subnormal half: adding 0.5 lets the float adder do the rounding at the right place.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        bits = static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    } else {
        const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
        bits = static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
    }
}

float16::operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude << 13));
    if (magnitude < 0x0400u) {
        const float value = static_cast<float>(magnitude) * 0x1p-24f;
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
    }
    return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
}

std::ostream& operator<<(std::ostream& out, DType type) {
    return out << name_of(type);
}

}  // namespace gradtile
