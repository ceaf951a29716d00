#include <gradtile/layers/rope.h>

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

namespace gradtile {
namespace {

struct ReferenceFrequencies {
    std::int64_t width;
    double base;
    std::int64_t context;
    RopeScaling scaling;
    RopeFrequencies expected;
};
const std::vector<ReferenceFrequencies> reference_frequencies{
#include <reference/rope_frequencies.inc>
};

/// transformers rounds to float32: the exponent -2i/R, whose error is multiplied by ln(base), and at most 8
/// other intermediate results. A rounded number of rotations has at most 4 times its share in a frequency.
TEST(RopeScaling, FrequenciesAreThoseOfTransformers) {
    for (const ReferenceFrequencies& reference : reference_frequencies) {
        const RopeFrequencies rope =
            rope_frequencies(reference.width, reference.base, reference.context, reference.scaling);
        SCOPED_TRACE(concat(name_of(reference.scaling.kind), ", ", reference.width, " columns"));
        const double bound = 4 * (std::log(reference.base) + 8) * 0x1p-24;
        EXPECT_NEAR(rope.magnitude, reference.expected.magnitude, bound * rope.magnitude);
        ASSERT_EQ(rope.values.size(), reference.expected.values.size());
        for (std::size_t i = 0; i < rope.values.size(); ++i)
            EXPECT_NEAR(rope.values[i], reference.expected.values[i], bound * rope.values[i]) << i;
    }
}

TEST(RopeScaling, EveryKindOfTransformersHasReferences) {
    for (const auto& [kind, name] : EnumNames<RopeKind>::names) {
        const auto has_kind = [kind = kind](const ReferenceFrequencies& r) { return r.scaling.kind == kind; };
        const bool is_own = kind == RopeKind::none || kind == RopeKind::half_truncated;
        EXPECT_NE(std::ranges::any_of(reference_frequencies, has_kind), is_own) << name;
    }
}

TEST(RopeScaling, HalfTruncatedFrequenciesEndAtTheInverseBaseAndThenAtZero) {
    const auto half = [](std::int64_t width) {
        return rope_frequencies(width, 1000, 64, {.kind = RopeKind::half_truncated}).values;
    };
    const std::vector<double> values = half(16), expected{1, 0.1, 0.01, 0.001, 0, 0, 0, 0};
    ASSERT_EQ(values.size(), expected.size());
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_NEAR(values[i], expected[i], 1e-15 * expected[i]);
    EXPECT_EQ(half(4), (std::vector<double>{1, 0}));
}

TEST(RopeScaling, UnscaledFrequenciesAreAGeometricSequence) {
    const RopeFrequencies rope = rope_frequencies(8, 10000, 64);
    EXPECT_EQ(rope.magnitude, 1.0);
    const std::vector<double> expected{1, 0.1, 0.01, 0.001};
    for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(rope.values[i], expected[i], 4 * 0x1p-53 * expected[i]);
}

TEST(RopeScaling, RefusesListsOfAnotherLength) {
    RopeScaling scaling{.kind = RopeKind::longrope, .original_context = 8, .short_factors = {1, 2}};
    EXPECT_NO_THROW(rope_frequencies(4, 10000, 8, scaling));
    EXPECT_THROW(rope_frequencies(4, 10000, 9, scaling), Error);
    EXPECT_THROW(rope_frequencies(6, 10000, 8, scaling), Error);
}

}  // namespace
}  // namespace gradtile
