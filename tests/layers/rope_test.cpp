#include <gradtile/layers/rope.h>
#include <support/on_cuda.h>

namespace gradtile {
namespace {

/// Rope with a layer's interface. Rotates a copy of x [..,H*D], viewed as [..,H,head_dim].
struct RopeLayer {
    struct Saved {};
    Rope rope;
    std::int64_t start;
    Tensor forward(const Context& ctx, const Tensor& x, Saved&) const { return rotated(ctx, x, false); }
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved&) const {
        return rotated(ctx, dy, true);
    }
    Tensor rotated(const Context& ctx, const Tensor& x, bool inverse) const {
        Tensor y = cast(ctx, x, x.dtype());
        const Tensor heads = y.reshape({x.size(0), x.size(1), x.size(2) / rope.head_dim(), rope.head_dim()});
        inverse ? rope.backward(ctx, heads, start) : rope.forward(ctx, heads, start);
        return y;
    }
};

TEST(Rope, PassesTheLayerSuite) {
    for (const std::int64_t head_dim : {2, 10, 64})
        for (const std::int64_t start : {0, 9})
            test::check_layer(
                [&](ParameterStore&) {
                    return RopeLayer{Rope(head_dim, 200), start};
                },
                {.width = 3 * head_dim,
                 .operations = 4,
                 .leading = {{2, 3}, {1, 1}, {3, 171}},
                 .rank_2 = false});
}

TEST(Rope, RotatesPairsByTheAnglesOfThePaper) {
    const Context ctx(Device::cpu(), 2);
    const std::int64_t head_dim = 6, length = 40;
    const Rope rope(head_dim, length, 500.0);
    const Tensor x = randn(ctx, {2, length, 3, head_dim}, DType::f64, Seed{1});
    const auto before = to_host(ctx, x);
    rope.forward(ctx, x);
    const auto after = to_host(ctx, x);
    for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t t = 0; t < length; ++t)
            for (std::int64_t h = 0; h < 3; ++h)
                for (std::int64_t i = 0; i < 3; ++i) {
                    const double angle =
                        static_cast<double>(t) * std::pow(500.0, -2.0 * static_cast<double>(i) / 6.0);
                    const auto index = static_cast<std::size_t>(((b * length + t) * 3 + h) * head_dim + i);
                    const double u = before[index], v = before[index + 3];
                    EXPECT_NEAR(after[index], u * std::cos(angle) - v * std::sin(angle), 1e-14);
                    EXPECT_NEAR(after[index + 3], u * std::sin(angle) + v * std::cos(angle), 1e-14);
                }
}

TEST(Rope, ScoresDependOnlyOnTheDistance) {
    const Context ctx(Device::cpu(), 1);
    const Rope rope(32, 100);
    const auto rotated = [&](std::uint64_t seed, std::int64_t position) {
        const Tensor x = randn(ctx, {1, 1, 1, 32}, DType::f64, Seed{seed});
        rope.forward(ctx, x, position);
        return to_host(ctx, x);
    };
    const auto score = [&](std::int64_t i, std::int64_t j) {
        const auto q = rotated(1, i), k = rotated(2, j);
        double dot = 0;
        for (std::size_t c = 0; c < 32; ++c) dot += q[c] * k[c];
        return dot;
    };
    EXPECT_NEAR(score(3, 10), score(60, 67), 32 * 10 * 0x1p-50);
    EXPECT_GT(std::abs(score(3, 10) - score(3, 11)), 1e-3);
}

TEST(Rope, RotatesHeadsInsideAPackedProjectionAndNothingElse) {
    const Context ctx(Device::cpu(), 2);
    const Rope rope(8, 20);
    const Tensor packed = randn(ctx, {2, 5, 6 * 8}, DType::f32, Seed{1});
    const Tensor dense = cast(ctx, packed.slice(2, 16, 24), DType::f32).reshape({2, 5, 3, 8});
    const auto before = to_host(ctx, packed);
    rope.forward(ctx, packed.slice(2, 16, 24).reshape({2, 5, 3, 8}), 4);
    rope.forward(ctx, dense, 4);
    EXPECT_EQ(to_host(ctx, packed.slice(2, 16, 24)), to_host(ctx, dense));
    const auto after = to_host(ctx, packed);
    for (std::size_t i = 0; i < after.size(); ++i) {
        if (i % 48 < 16 || i % 48 >= 40) {
            ASSERT_EQ(after[i], before[i]);
        }
    }
}

/// A table for all these positions would not fit into any memory.
TEST(Rope, MakesATableOfThePositionsThatAreUsed) {
    const Context ctx(Device::cpu(), 1);
    const Rope rope(8, std::int64_t{1} << 45, 500.0), exact(8, 3000, 500.0);
    // The table grows twice; views into an earlier table stay valid.
    const Rope::Angles first = rope.angles_from(ctx, 0, 5, DType::f64);
    const std::vector<double> before = to_host(ctx, first.sines);
    for (const std::int64_t start : {0, 60, 2900}) {
        const Tensor x = randn(ctx, {1, 100, 2, 8}, DType::f64, Seed{1}), y = cast(ctx, x, DType::f64);
        rope.forward(ctx, x, start);
        exact.forward(ctx, y, start);
        EXPECT_EQ(to_host(ctx, x), to_host(ctx, y)) << start;
    }
    EXPECT_EQ(to_host(ctx, first.sines), before);
    const Tensor positions = from_host(ctx, std::vector<std::int32_t>{7, 2, 4000}, {3});
    const Rope::Angles angles = rope.angles_at(ctx, positions, DType::f64, 4001);
    EXPECT_EQ(to_host(ctx, angles.cosines.slice(0, 2, 1)),
              to_host(ctx, rope.angles_from(ctx, 4000, 1, DType::f64).cosines));
    // A dry run makes no table.
    const Context dry = ctx.plan(Arena::for_planning(ctx.device()));
    EXPECT_EQ(rope.angles_from(dry, 0, std::int64_t{1} << 40, DType::f32).cosines.size(0),
              std::int64_t{1} << 40);
}

TEST(Rope, RefusesPositionsBeyondItsTable) {
    const Context ctx(Device::cpu(), 1);
    const Rope rope(8, 20);
    EXPECT_THROW(rope.forward(ctx, zeros(ctx, {1, 21, 1, 8}, DType::f32)), Error);
    EXPECT_THROW(rope.forward(ctx, zeros(ctx, {1, 5, 1, 8}, DType::f32), 16), Error);
    EXPECT_THROW(rope.forward(ctx, zeros(ctx, {1, 5, 1, 6}, DType::f32)), Error);
    EXPECT_THROW(Rope(7, 20), Error);
}

TEST(Rope, RefusesToRotateOneHeadSeveralTimes) {
    const Context ctx(Device::cpu(), 1);
    const Tensor head = zeros(ctx, {1, 5, 1, 8}, DType::f32);
    EXPECT_THROW(Rope(8, 20).forward(ctx, head.expand({2, 5, 3, 8})), Error);
}

// ---- On the GPU ----

using test::OnCuda;

TEST_F(OnCuda, RopePassesTheLayerSuite) {
    for (const std::int64_t head_dim : {2, 14, 64, 128})
        for (const std::int64_t start : {0, 9}) {
            const Rope rope(head_dim, 200);
            test::check_layer_on_cuda(gpu(),
                                      [&](ParameterStore&) {
                                          return RopeLayer{rope, start};
                                      },
                                      {.width = 3 * head_dim,
                                       .operations = 4,
                                       .leading = {{2, 3}, {1, 1}, {3, 171}},
                                       .rank_2 = false});
        }
}

TEST_F(OnCuda, RopeRotatesHeadsInsideAPackedProjectionAndNothingElse) {
    const Rope rope(16, 20);
    const Tensor packed = randn(gpu(), {2, 5, 6 * 16}, DType::bf16, Seed{1});
    const Tensor dense = cast(gpu(), packed.slice(2, 32, 48), DType::bf16).reshape({2, 5, 3, 16});
    const auto before = to_host(gpu(), packed);
    rope.forward(gpu(), packed.slice(2, 32, 48).reshape({2, 5, 3, 16}), 4);
    rope.forward(gpu(), dense, 4);
    EXPECT_EQ(to_host(gpu(), packed.slice(2, 32, 48)), to_host(gpu(), dense));
    const auto after = to_host(gpu(), packed);
    for (std::size_t i = 0; i < after.size(); ++i) {
        if (i % 96 < 32 || i % 96 >= 80) {
            ASSERT_EQ(after[i], before[i]);
        }
    }
}

}  // namespace
}  // namespace gradtile
