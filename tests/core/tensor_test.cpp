#include <gradtile/core/tensor_ops.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/parameter_store.h>

namespace gradtile {
namespace {

TEST(Tensor, ViewsShareElements) {
    const Context ctx(Device::cpu(), 2);
    const Tensor x = from_host(ctx, std::vector<double>{0, 1, 2, 3, 4, 5}, {2, 3}, DType::f32);
    EXPECT_THAT(to_host(ctx, x.transpose(0, 1)), testing::ElementsAre(0, 3, 1, 4, 2, 5));
    EXPECT_THAT(to_host(ctx, x.slice(1, 1, 2)), testing::ElementsAre(1, 2, 4, 5));
    EXPECT_THAT(to_host(ctx, x.select(0, 1)), testing::ElementsAre(3, 4, 5));
    EXPECT_THAT(to_host(ctx, x.select(0, 1).expand({2, 3})), testing::ElementsAre(3, 4, 5, 3, 4, 5));
    fill(ctx, x.slice(1, 1, 1), 9);
    EXPECT_THAT(to_host(ctx, x), testing::ElementsAre(0, 9, 2, 3, 9, 5));
}

TEST(Tensor, ReshapeSplitsAndMergesAxesOfAStridedView) {
    const Context ctx(Device::cpu(), 1);
    std::vector<double> values(24);
    for (std::size_t i = 0; i < 24; ++i) values[i] = static_cast<double>(i);
    const Tensor packed = from_host(ctx, values, {4, 6}, DType::f64);
    const Tensor right = packed.slice(1, 2, 4);
    EXPECT_EQ(to_host(ctx, right.reshape({4, 2, 2})), to_host(ctx, right));
    EXPECT_EQ(to_host(ctx, right.reshape({2, 2, 4})), to_host(ctx, right));
    EXPECT_THROW(right.reshape({16}), Error);
}

TEST(ParameterStore, LaysOutNamedViews) {
    const Context ctx(Device::cpu(), 2);
    ParameterStore store;
    const Parameter weight = store.add("weight", {3, 5}, Init::normal(0.02));
    const Parameter bias = store.add("bias", {5}, Init::ones());
    store.allocate(ctx, DType::bf16);
    store.initialize(ctx, Seed{1});
    EXPECT_EQ(store.count(), 20);
    EXPECT_EQ(to_host(ctx, bias.value()), std::vector<double>(5, 1.0));
    EXPECT_TRUE(store.has_master());
}

}  // namespace
}  // namespace gradtile
