#include <gradtile/core/philox.h>

#include <gtest/gtest.h>

namespace gradtile {
namespace {

// philox4x32-10 results that its authors publish with Random123 (kat_vectors).
TEST(Philox, GivesItsPublishedAnswers) {
    EXPECT_EQ(Philox::draw({0, 0, 0, 0}, {0, 0}),
              (Philox::Counter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
    constexpr std::uint32_t ones = 0xffffffffu;
    EXPECT_EQ(Philox::draw({ones, ones, ones, ones}, {ones, ones}),
              (Philox::Counter{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
    EXPECT_EQ(Philox::draw({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
              (Philox::Counter{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Philox, IsAConstantExpression) {
    static_assert(Philox::draw({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5u);
}

TEST(Philox, KeyTakesAllBitsOfTheSeed) {
    EXPECT_EQ(philox_key(0x0123456789abcdefu), (Philox::Key{0x89abcdefu, 0x01234567u}));
}

// The finaliser is a bijection on 64-bit inputs, so unequal purposes with one seed never share a key.
TEST(MixSeed, SeparatesPurposesAndSeeds) {
    static_assert(mix_seed(1, 0) != mix_seed(1, 1));
    static_assert(mix_seed(0, 0) == 0xe220a8397b1dcdafu, "the first output of splitmix64 seeded with 0");
    EXPECT_NE(mix_seed(1, 5), mix_seed(2, 5));
}

}  // namespace
}  // namespace gradtile
