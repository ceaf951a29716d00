#include <gradtile/layers/alibi.h>

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

using ::testing::ElementsAre;

std::vector<double> slopes_of(std::int64_t heads) {
    return to_host(Context(Device::cpu(), 1), alibi_slopes(heads).original());
}

/// The paper's examples: section 3 gives the slopes for 8 heads, and the rule for 16 heads.
TEST(Alibi, PowersOfTwoHaveTheSlopesOfThePaper) {
    EXPECT_THAT(slopes_of(1), ElementsAre(std::exp2(-8)));
    EXPECT_THAT(slopes_of(8),
                ElementsAre(1 / 2., 1 / 4., 1 / 8., 1 / 16., 1 / 32., 1 / 64., 1 / 128., 1 / 256.));
    const std::vector<double> sixteen = slopes_of(16);
    ASSERT_EQ(sixteen.size(), 16u);
    for (std::size_t i = 0; i < 16; ++i)
        EXPECT_NEAR(sixteen[i], std::pow(std::sqrt(0.5), static_cast<double>(i + 1)), 16 * 2.3e-16);
}

TEST(Alibi, OtherNumbersContinueWithEverySecondSlopeOfTwiceThePower) {
    EXPECT_THAT(slopes_of(3), ElementsAre(1 / 16., 1 / 256., 1 / 4.));
    EXPECT_THAT(slopes_of(6), ElementsAre(1 / 4., 1 / 16., 1 / 64., 1 / 256., 1 / 2., 1 / 8.));
    const std::vector<double> twelve = slopes_of(12), eight = slopes_of(8), sixteen = slopes_of(16);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(twelve[i], eight[i]);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(twelve[8 + i], sixteen[2 * i]);
    EXPECT_THROW(slopes_of(0), Error);
}

TEST(Alibi, AllCopiesShareOneTensorAndADryRunTakesNoMemory) {
    const Context ctx(Device::cpu(), 1);
    const DeviceCopies slopes = alibi_slopes(6), copy = slopes;
    EXPECT_EQ(slopes.on_device(ctx, DType::f32).raw_data(), copy.on_device(ctx, DType::f32).raw_data());
    EXPECT_EQ(slopes.on_device(ctx, DType::f32).dtype(), DType::f32);
    EXPECT_EQ(to_host(ctx, slopes.on_device(ctx, DType::f32)),
              slopes_of(6));  // powers of 2, exact in float32
    for (const Device device : {Device::cpu(), Device::cuda()}) {
        const auto arena = Arena::for_planning(device);
        EXPECT_EQ(slopes.on_device(ctx.plan(arena), DType::f32).device(), device);
        EXPECT_EQ(arena->peak_bytes(), 0u);
    }
}

}  // namespace
}  // namespace gradtile
