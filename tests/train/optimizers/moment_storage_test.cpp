// Moments that an optimizer keeps in bfloat16, on CPU and GPU.
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/optimizers/internal/moment_rounding.h>
#include <gradtile/train/optimizers/muon.h>

#include <support/cuda_test.h>

#include "optimizer_problems.h"

namespace gradtile {
namespace {

using test::AdamWProblem;

constexpr MomentStorage in_bfloat16{.format = MomentFormat::bf16, .seed = Seed{17}};

// ---- Rounding ----

float float_of(std::uint32_t word) {
    return std::bit_cast<float>(word);
}

/// Over all 65536 random numbers, x goes up in as many cases as its lower 16 bits say, so the mean is x. The
/// upper halves are both zeros, subnormals, the borders of binades, and the largest of a binade.
TEST(StochasticRounding, IsExactInTheMean) {
    for (const std::uint32_t upper :
         {0x0000u, 0x8000u, 0x0001u, 0x007fu, 0x0080u, 0x3f7fu, 0x3f80u, 0xbfffu, 0x4049u, 0x7f7eu, 0xff7eu})
        for (const std::uint32_t lower : {0u, 1u, 2u, 0x7fffu, 0x8000u, 0x8001u, 0xfffeu, 0xffffu}) {
            std::uint32_t up = 0;
            for (std::uint32_t random = 0; random < 0x10000u; ++random) {
                const std::uint32_t bits = rounded_stochastically(float_of(upper << 16 | lower), random).bits;
                ASSERT_TRUE(bits == upper || bits == upper + 1) << std::hex << upper << lower;
                up += bits == upper + 1;
            }
            EXPECT_EQ(up, lower) << std::hex << upper;
        }
}

TEST(StochasticRounding, KeepsInfinityAndNaNAndStaysFinite) {
    for (const std::uint32_t random : {0u, 1u, 0x8000u, 0xffffu})
        for (const std::uint32_t sign : {0u, 0x80000000u}) {
            EXPECT_EQ(rounded_stochastically(float_of(sign | 0x7f800000u), random).bits,
                      (sign | 0x7f800000u) >> 16);
            EXPECT_EQ(rounded_stochastically(float_of(sign | 0x7f7fffffu), random).bits,
                      (sign | 0x7f7f0000u) >> 16);
            for (const std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu})
                EXPECT_TRUE(
                    std::isnan(static_cast<float>(rounded_stochastically(float_of(sign | nan), random))));
        }
}

// ---- Updates ----

// Decays and gradients with which every product and sum is exact in float32 for some steps, so that devices,
// compilers and this file agree to the bit.
constexpr int exact_steps = 4;
double exact_gradient(std::int64_t element, int t) {
    return static_cast<double>((element * 37 + t * 11) % 127 - 63);
}
void set_exact_gradients(const Context& ctx, const ParameterStore& store, int t) {
    std::vector<double> gradients(static_cast<std::size_t>(store.flat_elements()));
    for (std::size_t i = 0; i < gradients.size(); ++i)
        gradients[i] = exact_gradient(static_cast<std::int64_t>(i), t);
    copy(ctx, store.gradients(), from_host(ctx, gradients, {store.flat_elements()}, DType::f32));
}

/// The moment `moment` of an element, rounded in every step by the draws that moment_rounding.h documents.
/// next(m, g) is the moment after a gradient.
template <class Next>
float exact_moment(std::int64_t element, std::size_t moment, const Next& next) {
    float m = 0;
    for (int t = 1; t <= exact_steps; ++t) {
        const Philox::Counter draw = MomentDraws::of(in_bfloat16.seed, t).draw(element);
        const std::uint32_t word = draw[static_cast<std::size_t>(element % MomentDraws::elements)];
        m = next(m, static_cast<float>(exact_gradient(element, t)));
        m = static_cast<float>(rounded_stochastically(m, MomentDraws::bits(word, moment)));
    }
    return m;
}
constexpr auto decay_half = [](float m, float g) { return m + 0.5f * (g - m); };
constexpr auto decay_quarter = [](float m, float g) { return m + 0.25f * (g - m); };
constexpr auto squares = [](float v, float g) { return v * 0.75f + 0.25f * g * g; };

/// Expects the state tensor `name`/PARAMETER of every parameter to hold exact_moment().
template <class Next>
void expect_exact(const Context& ctx, const ParameterStore& store, const Optimizer& optimizer,
                  const std::string& name, std::size_t moment, const Next& next) {
    std::size_t found = 0;
    for (const StateTensor& part : optimizer.state())
        for (const Parameter& parameter : store.parameters()) {
            if (part.name != name + '/' + parameter.name()) continue;
            EXPECT_EQ(part.tensor.dtype(), DType::bf16) << part.name;
            const std::vector<double> got = to_host(ctx, part.tensor);
            for (std::size_t i = 0; i < got.size(); ++i)
                ASSERT_EQ(got[i],
                          exact_moment(parameter.offset() + static_cast<std::int64_t>(i), moment, next))
                    << part.name << " element " << i;
            ++found;
        }
    EXPECT_GT(found, 0u) << name;
}

void expect_documented_rounding(const Context& ctx, DType dtype) {
    AdamWProblem adamw(ctx, dtype), lion(ctx, dtype);
    ElementwiseOptimizer of_adamw(ctx, adamw.store, adamw.store.parameters(),
                                  AdamW{.beta1 = 0.5, .beta2 = 0.75}, {}, {}, in_bfloat16),
        of_lion(ctx, lion.store, lion.store.parameters(), Lion{.beta1 = 0.5, .beta2 = 0.75}, {}, {},
                in_bfloat16);
    ParameterStore matrices;  // rows that are multiples of 8, and rows that are not
    for (const auto& [name, shape] : {std::pair<const char*, Shape>{"blocks.0", {24, 40}},
                                      {"bias", {40}},
                                      {"blocks.1", {37, 9}},
                                      {"blocks.2", {600, 64}}})
        matrices.add(name, shape, Init::normal(0.5));
    matrices.allocate(ctx, dtype);
    matrices.initialize(ctx, Seed{3});
    Muon muon(
        ctx, matrices, test::in_blocks,
        {.matrix = {
             .momentum = {.decay = 0.75}, .moments = in_bfloat16, .adamw = {.beta1 = 0.5, .beta2 = 0.75}}});
    for (int t = 1; t <= exact_steps; ++t) {
        for (const ParameterStore* store : {&adamw.store, &lion.store, &matrices})
            set_exact_gradients(ctx, *store, t);
        of_adamw.step(ctx, 1e-3);
        of_lion.step(ctx, 1e-3);
        muon.step(ctx, 1e-3);
    }
    expect_exact(ctx, adamw.store, of_adamw, "m", 0, decay_half);
    expect_exact(ctx, adamw.store, of_adamw, "v", 1, squares);
    expect_exact(ctx, lion.store, of_lion, "momentum", 0, decay_quarter);
    expect_exact(ctx, matrices, muon, "momentum", 0, decay_quarter);
    expect_exact(ctx, matrices, muon, "m", 0, decay_half);
    expect_exact(ctx, matrices, muon, "v", 1, squares);
}

/// With a constant gradient 1 the mean moment of n elements is 1 - beta^t. Rounding errors r are independent,
/// have mean 0 and a variance of at most u^2 / 4, where u = 2^-7 is the distance between neighbours in
/// bfloat16; e_t = beta e_{t-1} + r_t has a variance of at most u^2 / 4 / (1 - beta^2). The bound is 6
/// standard deviations of the mean, plus 4 roundings in float32 per step.
void expect_unbiased_bf16_moments(const Context& ctx) {
    constexpr std::int64_t n = 1 << 16;
    constexpr int steps = 300;
    const AdamW rule{.beta1 = 0.9, .beta2 = 0.999};
    ParameterStore store;
    store.add("matrix", {n / 64, 64}, Init::normal(0.5));
    store.allocate(ctx, DType::f32);
    ElementwiseOptimizer optimizer(ctx, store, store.parameters(), rule, {}, {}, in_bfloat16);
    fill(ctx, store.gradients(), 1.0);
    for (int t = 0; t < steps; ++t) optimizer.step(ctx, 1e-3);
    const std::vector<StateTensor> state = optimizer.state();
    for (const auto& [i, beta] : {std::pair{0u, rule.beta1}, std::pair{1u, rule.beta2}}) {
        double sum = 0.0;
        for (const double m : to_host(ctx, state[i].tensor)) sum += m;
        const double variance = std::pow(2.0, -14) / 4.0 / (1.0 - beta * beta);
        EXPECT_NEAR(sum / n, 1.0 - std::pow(beta, steps),
                    6.0 * std::sqrt(variance / n) + 4.0 * steps * std::numeric_limits<float>::epsilon())
            << state[i].name;
    }
}

TEST(MomentStorage, RoundsAsDocumented) {
    for (const int threads : {1, 3})
        for (const DType dtype : {DType::f32, DType::bf16})
            expect_documented_rounding(Context(Device::cpu(), threads), dtype);
}

/// Rounded to nearest, the second moment would stop where an update changes it by half a unit.
TEST(MomentStorage, HasNoBias) {
    expect_unbiased_bf16_moments(Context(Device::cpu(), 2));
}

/// Each update uses the moments before they are rounded.
TEST(MomentStorage, ChangesNoWeightInTheFirstUpdate) {
    const Context ctx;
    AdamWProblem rounded(ctx, DType::bf16), exact(ctx, DType::bf16);
    ElementwiseOptimizer of_rounded(ctx, rounded.store, rounded.store.parameters(), test::adamw_options, {},
                                    {}, in_bfloat16),
        of_exact(ctx, exact.store, test::adamw_options);
    for (int t = 1; t <= 2; ++t) {
        rounded.set_gradients(ctx, t);
        exact.set_gradients(ctx, t);
        of_rounded.step(ctx, test::adamw_lr);
        of_exact.step(ctx, test::adamw_lr);
        EXPECT_EQ(to_host(ctx, rounded.store.master()) == to_host(ctx, exact.store.master()), t == 1);
    }
}

TEST(MomentStorage, HasHalfTheBytes) {
    const Context ctx;
    AdamWProblem problem(ctx, DType::f32);
    const auto bytes = [&](const MomentStorage& storage) {
        return ElementwiseOptimizer(ctx, problem.store, problem.store.parameters(), test::adamw_options, {},
                                    {},
                                    storage)
                   .state_bytes() -
               4;  // the update counter
    };
    EXPECT_EQ(2 * bytes(in_bfloat16), bytes({}));
}

TEST(MomentStorage, ChangesNothingWhenTheUpdateIsRefused) {
    const Context ctx;
    AdamWProblem problem(ctx, DType::bf16);
    ElementwiseOptimizer optimizer(ctx, problem.store, problem.store.parameters(), test::adamw_options, {},
                                   {}, in_bfloat16);
    test::expect_a_refused_update_changes_nothing(ctx, problem, optimizer, test::adamw_lr);
}

TEST(MomentStorage, RefusesFloat64Gradients) {
    EXPECT_EQ(moment_dtype({}, DType::f64), DType::f64);
    for (const MomentFormat format : {MomentFormat::bf16, MomentFormat::int8})
        EXPECT_THAT([&] { moment_dtype({.format = format}, DType::f64); },
                    testing::ThrowsMessage<Error>(testing::HasSubstr("moments for float64 gradients")));
}

/// Shards of ranges, of which one begins inside a parameter.
void expect_equal_rounding_in_a_shard(const MomentStorage& storage) {
    const Context ctx;
    AdamWProblem full(ctx, DType::f32), part(ctx, DType::f32);
    const OptimizerShard shard{.ranges = {{64, 320}, {1024, 4096}},
                               .gradients = zeros(ctx, {4416}, DType::f32)};
    ElementwiseOptimizer of_all(ctx, full.store, full.store.parameters(), test::adamw_options, {}, {},
                                storage),
        of_shard(ctx, part.store, part.store.parameters(), test::adamw_options, shard, {}, storage);
    for (int t = 1; t <= 5; ++t) {
        full.set_gradients(ctx, t);
        copy(ctx, shard.gradients.slice(0, 0, 320), full.store.gradients().slice(0, 64, 320));
        copy(ctx, shard.gradients.slice(0, 320, 4096), full.store.gradients().slice(0, 1024, 4096));
        of_all.step(ctx, test::adamw_lr);
        of_shard.step(ctx, test::adamw_lr);
    }
    for (const FlatRange& range : shard.ranges)
        EXPECT_EQ(to_host(ctx, part.store.values().slice(0, range.begin, range.length)),
                  to_host(ctx, full.store.values().slice(0, range.begin, range.length)));
}

TEST(MomentStorage, AShardRoundsAsTheWholeStore) {
    for (const MomentFormat format : {MomentFormat::bf16, MomentFormat::int8})
        expect_equal_rounding_in_a_shard({.format = format, .seed = Seed{17}});
}

using CudaMomentStorage = test::CudaTest;

TEST_F(CudaMomentStorage, RoundsAsDocumented) {
    for (const DType dtype : {DType::f32, DType::bf16}) expect_documented_rounding(gpu(), dtype);
}

TEST_F(CudaMomentStorage, HasNoBias) {
    expect_unbiased_bf16_moments(gpu());
}

TEST_F(CudaMomentStorage, ChangesNothingWhenTheUpdateIsRefused) {
    AdamWProblem problem(gpu(), DType::bf16);
    ElementwiseOptimizer optimizer(gpu(), problem.store, problem.store.parameters(), test::adamw_options, {},
                                   {}, in_bfloat16);
    test::expect_a_refused_update_changes_nothing(gpu(), problem, optimizer, test::adamw_lr);
}

}  // namespace
}  // namespace gradtile
