#include <gradtile/core/dtype.h>

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace gradtile {
namespace {

template <class T>
class SixteenBits : public testing::Test {
  public:
    static T from_bits(std::uint32_t bits) {
        T value;
        value.bits = static_cast<std::uint16_t>(bits);
        return value;
    }
    static double value_of(std::uint32_t bits) { return static_cast<float>(from_bits(bits)); }
    static constexpr std::uint32_t infinity = std::is_same_v<T, bfloat16> ? 0x7f80u : 0x7c00u;
    static constexpr int mantissa_bits = std::is_same_v<T, bfloat16> ? 7 : 10;
    static constexpr int bias = std::is_same_v<T, bfloat16> ? 127 : 15;
};
using SixteenBitTypes = testing::Types<bfloat16, float16>;
TYPED_TEST_SUITE(SixteenBits, SixteenBitTypes);

TYPED_TEST(SixteenBits, EveryPatternHasTheValueOfItsFields) {
    for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
        const std::uint32_t magnitude = bits & 0x7fffu;
        const double value = this->value_of(bits);
        if (magnitude > this->infinity) {
            ASSERT_TRUE(std::isnan(value)) << bits;
            continue;
        }
        const int exponent = static_cast<int>(magnitude >> this->mantissa_bits);
        const double fraction =
            std::ldexp(magnitude & ((1u << this->mantissa_bits) - 1), -this->mantissa_bits);
        double expected = exponent == 0 ? std::ldexp(fraction, 1 - this->bias)
                                        : std::ldexp(1 + fraction, exponent - this->bias);
        if (magnitude == this->infinity) expected = std::numeric_limits<double>::infinity();
        ASSERT_EQ(value, bits & 0x8000u ? -expected : expected) << bits;
    }
}

TYPED_TEST(SixteenBits, EveryPatternSurvivesTheRoundTrip) {
    for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
        const TypeParam back(static_cast<float>(this->from_bits(bits)));
        if ((bits & 0x7fffu) > this->infinity) {
            ASSERT_TRUE(std::isnan(static_cast<float>(back))) << bits;
        } else {
            ASSERT_EQ(back.bits, bits);
        }
    }
}

/// Numbers between two neighbours are rounded down if they are below the middle, and up if they are above it.
/// The middle is rounded to the even neighbour.
TYPED_TEST(SixteenBits, RoundsToNearestAndTiesToEven) {
    for (std::uint32_t bits = 0; bits + 1 < this->infinity; ++bits) {
        const double low = this->value_of(bits), high = this->value_of(bits + 1);
        const float middle = static_cast<float>((low + high) / 2);  // exact: one bit more than 16-bit floats
        ASSERT_EQ(TypeParam(middle).bits, bits + (bits & 1u)) << bits;
        ASSERT_EQ(TypeParam(std::nextafter(middle, 0.0f)).bits, bits);
        ASSERT_EQ(TypeParam(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, bits + 1);
        ASSERT_EQ(TypeParam(-middle).bits, 0x8000u | (bits + (bits & 1u)));
    }
}

TYPED_TEST(SixteenBits, OverflowsToInfinityFromTheMiddleAboveItsLargestNumber) {
    const double largest = this->value_of(this->infinity - 1), below = this->value_of(this->infinity - 2);
    const float middle = static_cast<float>(largest + (largest - below) / 2);
    EXPECT_EQ(TypeParam(middle).bits, this->infinity);
    EXPECT_EQ(TypeParam(std::nextafter(middle, 0.0f)).bits, this->infinity - 1);
    EXPECT_EQ(TypeParam(std::numeric_limits<float>::max()).bits, this->infinity);
    EXPECT_EQ(TypeParam(-std::numeric_limits<float>::infinity()).bits, 0x8000u | this->infinity);
}

TYPED_TEST(SixteenBits, EveryNanStaysNan) {
    for (std::uint32_t payload = 1; payload < 0x800000u; payload = payload * 2 + 1)
        for (const std::uint32_t sign : {0u, 0x80000000u})
            EXPECT_TRUE(std::isnan(
                static_cast<float>(TypeParam(std::bit_cast<float>(sign | 0x7f800000u | payload)))));
    EXPECT_TRUE(std::isnan(static_cast<float>(TypeParam(std::bit_cast<float>(0x7f800001u)))));
}

TEST(DType, SizesMatchTheElementTypes) {
    EXPECT_EQ(size_of(dtype_of<double>), sizeof(double));
    EXPECT_EQ(size_of(dtype_of<float>), sizeof(float));
    EXPECT_EQ(size_of(dtype_of<bfloat16>), sizeof(bfloat16));
    EXPECT_EQ(size_of(dtype_of<float16>), sizeof(float16));
    EXPECT_EQ(size_of(dtype_of<std::int32_t>), sizeof(std::int32_t));
}

TEST(DType, ConversionToSixteenBitsPassesThroughFloat32) {
    const double above_middle = 1.0 + 0x1p-8 + 0x1p-40;  // float32 drops the last bit; the tie goes to even
    EXPECT_EQ(convert<bfloat16>(above_middle).bits, bfloat16(1.0f).bits);
    EXPECT_EQ(convert<double>(bfloat16(1.5f)), 1.5);
    EXPECT_EQ(convert<bfloat16>(float16(0.25f)).bits, bfloat16(0.25f).bits);
}

TEST(DType, VisitingRefusesIntegers) {
    EXPECT_EQ(visit_floating(DType::bf16, []<class T>(TypeTag<T>) { return sizeof(T); }), 2u);
    EXPECT_THROW(visit_floating(DType::i32, [](auto) {}), Error);
}

}  // namespace
}  // namespace gradtile
