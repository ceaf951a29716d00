#pragma once
/// Element types and conversions between them. 16-bit floats are storage types; arithmetic with them is in
/// float32.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include <gradtile/core/check.h>

namespace gradtile {

enum class DType : std::uint8_t { f64, f32, bf16, f16, i32 };

/// bfloat16: the upper half of a float32, rounded to nearest even; NaN stays NaN.
struct bfloat16 {
    std::uint16_t bits = 0;

    bfloat16() = default;
    explicit bfloat16(float value) {
        const auto word = std::bit_cast<std::uint32_t>(value);
        const bool is_nan = (word & 0x7fffffffu) > 0x7f800000u;
        const std::uint32_t rounded = word + 0x7fffu + ((word >> 16) & 1u);
        bits = static_cast<std::uint16_t>((is_nan ? (word | 0x00400000u) : rounded) >> 16);
    }
    explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// IEEE binary16, rounded to nearest even.
struct float16 {
    std::uint16_t bits = 0;

    float16() = default;
    explicit float16(float value);
    explicit operator float() const;
};

constexpr std::size_t size_of(DType type) {
    switch (type) {
        case DType::f64:
            return 8;
        case DType::f32:
            return 4;
        case DType::i32:
            return 4;
        case DType::bf16:
            return 2;
        case DType::f16:
            return 2;
    }
    throw Error("unknown dtype");
}

constexpr std::string_view name_of(DType type) {
    switch (type) {
        case DType::f64:
            return "float64";
        case DType::f32:
            return "float32";
        case DType::i32:
            return "int32";
        case DType::bf16:
            return "bfloat16";
        case DType::f16:
            return "float16";
    }
    throw Error("unknown dtype");
}
std::ostream& operator<<(std::ostream& out, DType type);

constexpr bool is_floating(DType type) {
    return type != DType::i32;
}
constexpr bool is_16_bit(DType type) {
    return type == DType::bf16 || type == DType::f16;
}

namespace detail {
template <class T>
consteval DType dtype_of() {
    if constexpr (std::is_same_v<T, double>) {
        return DType::f64;
    } else if constexpr (std::is_same_v<T, float>) {
        return DType::f32;
    } else if constexpr (std::is_same_v<T, bfloat16>) {
        return DType::bf16;
    } else if constexpr (std::is_same_v<T, float16>) {
        return DType::f16;
    } else {
        static_assert(std::is_same_v<T, std::int32_t>, "tensors hold no elements of this type");
        return DType::i32;
    }
}
}  // namespace detail
template <class T>
inline constexpr DType dtype_of = detail::dtype_of<T>();

/// The type for sums over elements of type T: float64 for float64, else float32.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, double>, double, float>;
/// The dtype for sums, gradients, statistics and master weights when the values have this dtype.
constexpr DType accumulator_of(DType type) {
    return type == DType::f64 ? DType::f64 : DType::f32;
}

/// Converts a value to another element type; a 16-bit float is converted to float32 first.
template <class To, class From>
inline To convert(From value) {
    if constexpr (std::is_same_v<To, From>) {
        return value;
    } else if constexpr (sizeof(From) == 2) {
        return convert<To>(static_cast<float>(value));
    } else if constexpr (sizeof(To) == 2) {
        return To(static_cast<float>(value));
    } else {
        return static_cast<To>(value);
    }
}

template <class T>
struct TypeTag {
    using type = T;
};

/// Calls f(TypeTag<T>{}) with a floating dtype's C++ type; throws for int32.
template <class F>
decltype(auto) visit_floating(DType type, F&& f) {
    switch (type) {
        case DType::f64:
            return f(TypeTag<double>{});
        case DType::f32:
            return f(TypeTag<float>{});
        case DType::bf16:
            return f(TypeTag<bfloat16>{});
        case DType::f16:
            return f(TypeTag<float16>{});
        case DType::i32:
            break;
    }
    throw Error("an int32 tensor is used where a floating-point tensor is required");
}

}  // namespace gradtile
