#include <gradtile/core/quantized_weights.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/internal/quantized_codes.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/cpu_context.h>
#include <support/cuda_test.h>
#include <support/error_message.h>
#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using test::ctx;
using test::floating_dtypes;
using test::message_of;
using test::rounded;
using testing::HasSubstr;

constexpr WeightFormat formats[] = {WeightFormat::nf4, WeightFormat::int8};

Tensor quantized(const Tensor& weights, WeightFormat format, const Context& on = ctx) {
    const Tensor words = empty(on, {quantized_layout(format, weights.elements()).words}, DType::i32);
    fill(on, words, -1);
    quantize_weights(on, words, weights, format);
    return words;
}

std::vector<double> round_trip(const Tensor& weights, WeightFormat format, DType dtype = DType::f32) {
    const Tensor result = empty(ctx, weights.shape(), dtype);
    fill(ctx, result, std::numeric_limits<double>::quiet_NaN());
    dequantize_weights(ctx, result, quantized(weights, format), format);
    return to_host(ctx, result);
}

/// The argument at which the normal distribution has this probability, by bisection.
double normal_quantile(double probability) {
    double low = -10, high = 10;
    for (int i = 0; i < 200; ++i) {
        const double middle = (low + high) / 2;
        (std::erfc(-middle / std::numbers::sqrt2) / 2 < probability ? low : high) = middle;
    }
    return low;
}

double normal_density(double x) {
    return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
}

/// QLoRA's published values come from probabilities in float32, with the error of one rounding. A quantile
/// has this error divided by the density there.
TEST(QuantizedWeights, Nf4ValuesAreQuantilesOfTheNormalDistribution) {
    constexpr double outermost = 0.9677083;
    const double top = normal_quantile(outermost);
    std::vector<double> expected;
    for (int i = 0; i < 7; ++i) expected.push_back(-normal_quantile(outermost + i * (0.5 - outermost) / 7));
    expected.push_back(0);
    for (int i = 7; i >= 0; --i) expected.push_back(normal_quantile(outermost + i * (0.5 - outermost) / 8));
    const double top_error = 0x1p-24 / normal_density(top) / top;
    for (std::uint32_t code = 0; code < 16; ++code) {
        const double x = expected[code], value = x / top;
        const double error = 0x1p-24 / normal_density(x) / top + std::abs(value) * top_error + 0x1p-24;
        EXPECT_NEAR(nf4_value(code), value, error) << code;
    }
    for (std::uint32_t code = 1; code < 16; ++code) EXPECT_LT(nf4_value(code - 1), nf4_value(code));
    EXPECT_EQ(nf4_value(0), -1.0f);
    EXPECT_EQ(nf4_value(7), 0.0f);
    EXPECT_EQ(nf4_value(15), 1.0f);
}

/// Dettmers 2016, "8-bit approximations for parallelism in deep learning", section 3.
TEST(QuantizedWeights, ScaleCodesAreCentresOfPartsOfDecades) {
    EXPECT_EQ(scale_code_value(127), 0.0f);
    EXPECT_EQ(scale_code_value(255), 1.0f);
    for (int code = 1; code < 256; ++code) EXPECT_LT(scale_code_value(code - 1), scale_code_value(code));
    for (int step = 1; step <= 127; ++step)
        EXPECT_EQ(scale_code_value(127 + step), -scale_code_value(127 - step));
    for (int exponent = 0, step = 1; exponent < 7; ++exponent)
        for (int part = 0; part < 1 << exponent; ++part, ++step) {
            const double centre = 0.1 + 0.9 * (part + 0.5) / (1 << exponent);
            // Roundings of the part's length, up to 64 times as large in a border, of the borders, their sum
            // and the product, each of a number up to 1.
            const double expected = centre * std::pow(10.0, exponent - 6);
            EXPECT_NEAR(scale_code_magnitude(step), expected, 6 * 0x1p-24 * std::pow(10.0, exponent - 6))
                << step;
        }
}

/// Half the largest distance between neighbouring values of a code, as a fraction of the scale.
double half_gap(WeightFormat format) {
    if (format == WeightFormat::int8) return 0.5 / 127;
    double largest = 0;
    for (std::uint32_t code = 1; code < 16; ++code)
        largest = std::max<double>(largest, nf4_value(code) - nf4_value(code - 1));
    return largest / 2;
}

struct Weights {
    const char* name;
    Tensor tensor;
};
std::vector<Weights> some_weights() {
    Tensor outlier = randn(ctx, {70, 128}, DType::f32, Seed{2});
    fill(ctx, outlier.slice(0, 3, 1).slice(1, 9, 1), 1000.0);
    Tensor sparse = randn(ctx, {300, 64}, DType::f32, Seed{3});
    fill(ctx, sparse.slice(0, 40, 200), 0.0);
    Tensor huge = randn(ctx, {9, 65}, DType::f32, Seed{4}), tiny = cast(ctx, huge, DType::f32);
    const auto multiply = [](const Tensor& x, double factor) {
        auto values = to_host(ctx, x);
        for (double& value : values) value *= factor;
        copy(ctx, x, from_host(ctx, values, x.shape(), DType::f32));
    };
    multiply(huge, 5e37);
    multiply(tiny, 1e-36);
    return {{"normal", randn(ctx, {97, 129}, DType::f32, Seed{1})},
            {"outlier", outlier},
            {"zero blocks", sparse},
            {"huge", huge},
            {"tiny", tiny},
            {"one", randn(ctx, {1}, DType::f32, Seed{5})},
            {"uniform", rand(ctx, {33, 64}, DType::f32, Seed{6})}};
}

/// A weight is wrong by half the distance of its code's neighbours, times the block's scale, and by the
/// scale's own error: in nf4 half the distance of the dynamic code's neighbours, times the largest difference
/// between 256 scales and their mean.
TEST(QuantizedWeights, ErrorsAreBoundedPerBlock) {
    constexpr double half_scale_gap = 0.9 / 64 / 2 * (1 + 0x1p-20);
    for (const auto& [name, tensor] : some_weights())
        for (const WeightFormat format : formats) {
            const auto weights = to_host(ctx, tensor), found = round_trip(tensor, format);
            std::vector<double> scales;
            for (std::size_t i = 0; i < weights.size(); ++i) {
                if (i % 64 == 0) scales.push_back(0);
                scales.back() = std::max(scales.back(), std::abs(weights[i]));
            }
            double mean = 0;
            for (const double scale : scales) mean += scale / static_cast<double>(scales.size());
            for (std::size_t i = 0; i < weights.size(); ++i) {
                const double scale = scales[i / 64];
                double largest = 0;
                for (std::size_t block = i / 64 / 256 * 256;
                     block < scales.size() && block < i / 64 / 256 * 256 + 256; ++block)
                    largest = std::max(largest, std::abs(scales[block] - mean));
                const double of_scale = format == WeightFormat::nf4 ? half_scale_gap * largest : 0.0;
                const double roundings = 8 * 0x1p-24 * (scale + mean) + 0x1p-149;
                ASSERT_LE(std::abs(found[i] - weights[i]), half_gap(format) * scale + of_scale + roundings)
                    << name << ' ' << name_of(format) << " element " << i << ": " << weights[i];
            }
        }
}

/// Not only within the bound: no other code is nearer.
TEST(QuantizedWeights, EveryWeightHasTheNearestCode) {
    const Tensor weights = randn(ctx, {64, 64}, DType::f32, Seed{1});
    const auto exact = to_host(ctx, weights);
    const Tensor words = quantized(weights, WeightFormat::nf4);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(words.data<std::int32_t>());
    for (std::size_t i = 0; i < exact.size(); ++i) {
        double scale = 0;
        for (std::size_t j = i / 64 * 64; j < i / 64 * 64 + 64; ++j)
            scale = std::max(scale, std::abs(exact[j]));
        const unsigned own = i % 2 == 0 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15u;
        const auto distance = [&](std::uint32_t code) {
            return std::abs(nf4_value(code) - exact[i] / scale);
        };
        for (std::uint32_t code = 0; code < 16; ++code)
            ASSERT_LE(distance(own), distance(code) + 4 * 0x1p-24) << i;
    }
}

/// The product and the sum of a scale are rounded each, as in bitsandbytes: no compiler may contract them.
/// The operands are chosen so that one rounding gives another number.
TEST(QuantizedWeights, AScaleIsRoundedTwice) {
    constexpr float code_value = -0x1.8d9998p-2f, group = 0x1.f59494p-6f, mean = 0x1.a6cc82p-5f;
    ASSERT_EQ(scale_code_value(43), code_value);
    const QuantizedLayout layout = quantized_layout(WeightFormat::nf4, 64);
    std::vector<std::int32_t> words(static_cast<std::size_t>(layout.words));
    std::memcpy(&words[static_cast<std::size_t>(layout.groups)], &group, sizeof group);
    std::memcpy(&words[static_cast<std::size_t>(layout.mean)], &mean, sizeof mean);
    const double product = static_cast<float>(double{code_value} * double{group});
    const auto expected = static_cast<float>(product + double{mean});
    ASSERT_NE(expected, std::fma(code_value, group, mean));
    EXPECT_EQ(nf4_scale(words.data(), layout, 0, code_value), expected);
    words[0] = 0x1111111f;  // the first code is 1, the second 15
    reinterpret_cast<std::uint8_t*>(words.data() + layout.scales)[0] = 43;
    const Tensor weights = empty(ctx, {64}, DType::f32);
    dequantize_weights(ctx, weights, from_host(ctx, words, {layout.words}), WeightFormat::nf4);
    EXPECT_EQ(to_host(ctx, weights)[1], expected);
    EXPECT_EQ(to_host(ctx, weights)[0], static_cast<float>(nf4_value(1) * expected));
}

TEST(QuantizedWeights, WeightsThatTheCodesCanExpressAreKept) {
    for (const double constant : {0.0, 1.0, -0.37, 3e38, 1e-30}) {
        const Tensor x = empty(ctx, {37, 50}, DType::f32);
        fill(ctx, x, constant);
        EXPECT_EQ(round_trip(x, WeightFormat::nf4), to_host(ctx, x)) << constant;
    }
    std::vector<double> integers;
    for (int block = 0; block < 5; ++block) {
        integers.push_back(block % 2 == 0 ? 127 : -127);
        for (int i = 1; i < 64; ++i) integers.push_back((i * 37 + block * 11) % 255 - 127);
    }
    for (const double unit : {1.0, 0x1p-7, 0x1p100}) {
        std::vector<double> values = integers;
        for (double& value : values) value *= unit;
        EXPECT_EQ(round_trip(from_host(ctx, values, {5, 64}, DType::f32), WeightFormat::int8), values)
            << unit;
    }
}

TEST(QuantizedWeights, ABlockOfZerosStaysZeroWhateverItsScale) {
    const Tensor x = randn(ctx, {8, 64}, DType::f32, Seed{1});
    fill(ctx, x.slice(0, 2, 3), 0.0);
    for (const WeightFormat format : formats) {
        const auto found = round_trip(x, format);
        for (std::size_t i = 2 * 64; i < 5 * 64; ++i) EXPECT_EQ(found[i], 0.0);
        EXPECT_NE(found[0], 0.0);
    }
}

/// The bytes are those of bitsandbytes' packed tensors.
TEST(QuantizedWeights, TheFirstOfTwoCodesIsInTheUpperHalfOfAByte) {
    std::vector<double> values(130, 0.0);
    values[0] = 2;
    values[1] = -2;
    values[129] = 5;
    const Tensor words = quantized(from_host(ctx, values, {130}, DType::f32), WeightFormat::nf4);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(words.data<std::int32_t>());
    EXPECT_EQ(bytes[0], 0xf0);
    EXPECT_EQ(bytes[1], 0x77);
    EXPECT_EQ(bytes[64], 0x7f);
    EXPECT_EQ(bytes[65], 0x77) << "behind the end of the last block";
}

TEST(QuantizedWeights, LayoutsHaveTheDocumentedParts) {
    const QuantizedLayout nf4 = quantized_layout(WeightFormat::nf4, 64 * 300 + 5);  // 301 blocks
    EXPECT_EQ(nf4.scales, 301 * 8);
    EXPECT_EQ(nf4.groups, nf4.scales + 76);
    EXPECT_EQ(nf4.mean, nf4.groups + 2);
    EXPECT_EQ(nf4.words, nf4.mean + 1);
    const QuantizedLayout int8 = quantized_layout(WeightFormat::int8, 64 * 300 + 5);
    EXPECT_EQ(int8.scales, 301 * 16);
    EXPECT_EQ(int8.words, int8.scales + 301);
    const auto bits = [](WeightFormat format) {
        const std::int64_t elements = 4096 * 4096;
        return 32.0 * static_cast<double>(quantized_layout(format, elements).words) /
               static_cast<double>(elements);
    };
    EXPECT_NEAR(bits(WeightFormat::nf4), 4 + 8 / 64.0 + 32 / (64.0 * 256), 1e-5);
    EXPECT_EQ(bits(WeightFormat::int8), 8.5);
}

TEST(QuantizedWeights, EveryDtypeIsReadAsFloat32AndWrittenRounded) {
    const Tensor exact = randn(ctx, {31, 67}, DType::f64, Seed{1});
    for (const WeightFormat format : formats)
        for (const DType from : floating_dtypes) {
            const Tensor weights = cast(ctx, exact, from), in_f32 = cast(ctx, weights, DType::f32);
            const auto expected = round_trip(in_f32, format);
            for (const DType to : floating_dtypes) {
                const auto found = round_trip(weights, format, to);
                for (std::size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], rounded(expected[i], to));
            }
        }
}

TEST(QuantizedWeights, DoNotDependOnThreads) {
    const Context one(Device::cpu(), 1);
    const Tensor weights = randn(ctx, {700, 130}, DType::bf16, Seed{1});
    for (const WeightFormat format : formats)
        EXPECT_EQ(to_host(ctx, quantized(weights, format)), to_host(ctx, quantized(weights, format, one)));
}

TEST(QuantizedWeights, RefuseWhatCannotBeByName) {
    const Tensor weights = randn(ctx, {2, 64}, DType::f32, Seed{1});
    const Tensor words = quantized(weights, WeightFormat::nf4);
    for (const double wrong :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e300}) {
        const Tensor bad = cast(ctx, weights, DType::f64);
        fill(ctx, bad.slice(0, 1, 1).slice(1, 63, 1), wrong);
        for (const WeightFormat format : formats)
            EXPECT_EQ(message_of([&] { quantized(bad, format); }),
                      "quantize_weights: a weight is not finite in float32; expected finite weights");
    }
    EXPECT_THAT(message_of([] { quantized_layout(WeightFormat::same, 64); }),
                HasSubstr("format same; expected nf4 or int8"));
    EXPECT_THAT(message_of([&] { dequantize_weights(ctx, weights, words, WeightFormat::int8); }),
                HasSubstr("in int8; expected contiguous int32 [34]"));
    EXPECT_THAT(
        message_of([&] { dequantize_weights(ctx, weights.transpose(0, 1), words, WeightFormat::nf4); }),
        HasSubstr("expected a contiguous floating-point tensor"));
    EXPECT_THAT(message_of([&] { quantize_weights(ctx, words, words, WeightFormat::nf4); }),
                HasSubstr("expected a contiguous floating-point tensor"));
    EXPECT_EQ(round_trip(empty(ctx, {0, 5}, DType::f32), WeightFormat::nf4), std::vector<double>());
}

using test::CudaTest;

TEST_F(CudaTest, DequantizesTheBitsOfTheCpu) {
    for (const WeightFormat format : formats)
        for (const Shape& shape :
             {Shape{1}, Shape{7}, Shape{64}, Shape{129}, Shape{33, 65}, Shape{300, 4096}})
            for (const DType dtype : floating_dtypes) {
                const Tensor words = quantized(randn(cpu, shape, DType::f32, Seed{1}), format, cpu);
                const Tensor expected = empty(cpu, shape, dtype), found = poisoned(shape, dtype);
                dequantize_weights(cpu, expected, words, format);
                dequantize_weights(gpu(), found, to_device(gpu(), words), format);
                ASSERT_EQ(to_host(gpu(), found), to_host(cpu, expected)) << name_of(format) << shape << dtype;
                // A view that begins inside an access of 16 bytes, and what must stay around it.
                const Tensor around = poisoned({shape.elements() + 2}, dtype);
                dequantize_weights(gpu(), around.slice(0, 1, shape.elements()), to_device(gpu(), words),
                                   format);
                ASSERT_EQ(to_host(gpu(), around.slice(0, 1, shape.elements())), to_host(cpu, expected));
                ASSERT_TRUE(std::isnan(to_host(gpu(), around).front()) &&
                            std::isnan(to_host(gpu(), around).back()));
            }
}

}  // namespace
}  // namespace gradtile
