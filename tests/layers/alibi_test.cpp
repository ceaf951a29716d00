#include <gradtile/layers/alibi.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

using ::testing::ElementsAre;

/// The paper's examples: section 3 gives the slopes for 8 heads, and the rule for 16 heads.
TEST(Alibi, PowersOfTwoHaveTheSlopesOfThePaper) {
    EXPECT_THAT(alibi_slopes(1), ElementsAre(std::exp2(-8)));
    EXPECT_THAT(alibi_slopes(8),
                ElementsAre(1 / 2., 1 / 4., 1 / 8., 1 / 16., 1 / 32., 1 / 64., 1 / 128., 1 / 256.));
    const std::vector<double> sixteen = alibi_slopes(16);
    ASSERT_EQ(sixteen.size(), 16u);
    for (std::size_t i = 0; i < 16; ++i)
        EXPECT_NEAR(sixteen[i], std::pow(std::sqrt(0.5), static_cast<double>(i + 1)), 16 * 2.3e-16);
}

TEST(Alibi, OtherNumbersContinueWithEverySecondSlopeOfTwiceThePower) {
    EXPECT_THAT(alibi_slopes(3), ElementsAre(1 / 16., 1 / 256., 1 / 4.));
    EXPECT_THAT(alibi_slopes(6), ElementsAre(1 / 4., 1 / 16., 1 / 64., 1 / 256., 1 / 2., 1 / 8.));
    const std::vector<double> twelve = alibi_slopes(12), eight = alibi_slopes(8), sixteen = alibi_slopes(16);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(twelve[i], eight[i]);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(twelve[8 + i], sixteen[2 * i]);
    EXPECT_THROW(alibi_slopes(0), Error);
}

TEST(Alibi, AllCopiesShareOneTensorAndADryRunTakesNoMemory) {
    const Context ctx(Device::cpu(), 1);
    const AlibiSlopes slopes(6), copy = slopes;
    EXPECT_EQ(slopes.on_device(ctx).raw_data(), copy.on_device(ctx).raw_data());
    EXPECT_EQ(slopes.on_device(ctx).dtype(), DType::f32);
    EXPECT_EQ(to_host(ctx, slopes.on_device(ctx)), alibi_slopes(6));  // powers of 2, exact in float32
    for (const Device device : {Device::cpu(), Device::cuda()}) {
        const auto arena = Arena::for_planning(device);
        EXPECT_EQ(slopes.on_device(ctx.plan(arena)).device(), device);
        EXPECT_EQ(arena->peak_bytes(), 0u);
    }
}

}  // namespace
}  // namespace gradtile
