// Moments that an optimizer keeps in 8 bits, on CPU and GPU.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/optimizers/internal/rounded_moments_cpu.h>
#include <gradtile/train/optimizers/muon.h>

#include <support/cuda_test.h>

#include "optimizer_problems.h"

namespace gradtile {
namespace {

using test::AdamWProblem;
using test::MuonProblem;

constexpr MomentStorage in_8_bits{.format = MomentFormat::int8, .seed = Seed{17}};

/// The number that a code stands for, by the header's formula in float64.
double number_of(std::uint32_t k, std::size_t moment) {
    const int n = moment == 0 ? 17 : 33;
    return k < 8 ? std::ldexp(k, -n) : std::ldexp(8 + k % 8, static_cast<int>(k / 8) - 1 - n);
}

// ---- Codes ----

TEST(MomentCodes, AreTheDocumentedNumbers) {
    for (const std::size_t moment : {0u, 1u}) {
        const MomentCode code(moment);
        const std::uint32_t last = moment == 0 ? 120 : 248;
        EXPECT_EQ(number_of(last, moment), 1.0);
        for (std::uint32_t k = 0; k <= last; ++k) {
            const auto x = static_cast<float>(number_of(k, moment));
            EXPECT_EQ(code.decoded(k, 1.0f), x) << k;
            EXPECT_EQ(code.decoded(k, 0.25f), 0.25f * x) << k;
            for (const std::uint32_t random : {0u, 0x8000u, 0xffffu}) {
                EXPECT_EQ(code.encoded(x, 1.0f, random), k);
                if (moment == 0 && k > 0) {
                    EXPECT_EQ(code.encoded(-x, 1.0f, random), k | 0x80u);
                    EXPECT_EQ(code.decoded(k | 0x80u, 1.0f), -x);
                }
            }
        }
    }
}

/// Over all 65536 random numbers, x becomes one of its two neighbours, and the mean is x up to 2^-16 of their
/// distance (and the float32 rounding of x / largest). The neighbours' distance is at most 1/8 of x down to
/// the documented bound.
TEST(MomentCodes, RoundToNeighboursAndAreExactInTheMean) {
    const float largest = 3.7f;
    for (const std::size_t moment : {0u, 1u})
        for (const double w : {0.9371, 0.51, 0.1234567, 3.3e-3, 7.1e-5, 2.6e-5, 1.9e-6, 4.4e-8, 3.1e-10}) {
            const MomentCode code(moment);
            const auto x = static_cast<float>(w * static_cast<double>(largest));
            const double exact = static_cast<double>(x) / static_cast<double>(largest);
            const std::uint32_t low = code.encoded(x, largest, 0), high = code.encoded(x, largest, 0xffff);
            const double below = number_of(low, moment);
            if (moment == 1 && low == 1 && exact < number_of(1, 1)) continue;  // not rounded to 0
            EXPECT_LE(high, low + 1);
            const double distance = number_of(low + 1, moment) - below;
            EXPECT_GE(exact, below * (1 - 1e-7));
            EXPECT_LE(exact, (below + distance) * (1 + 1e-7));
            if (w >= std::ldexp(1.0, moment == 0 ? -14 : -30)) {
                EXPECT_LE(distance, exact / 8 * (1 + 1e-6));
            }
            double sum = 0;
            for (std::uint32_t random = 0; random < 0x10000u; ++random)
                sum += number_of(code.encoded(x, largest, random), moment);
            EXPECT_NEAR(sum / 65536, exact, std::ldexp(distance, -16) + 2e-7 * exact) << w;
        }
}

TEST(MomentCodes, ASecondMomentIsZeroOnlyIfItWas) {
    const MomentCode second(1);
    for (const std::uint32_t random : {0u, 0xffffu}) {
        EXPECT_EQ(second.encoded(1e-20f, 1.0f, random), 1u);
        EXPECT_EQ(second.encoded(0.0f, 1.0f, random), 0u);
    }
}

TEST(MomentBlocks, KeepZerosAndWhatIsNotFinite) {
    const std::vector<std::uint32_t> words(64, 0xffffffffu);
    std::vector<float> x(64), back(64, 1.0f);
    MomentBlock block;
    cpu::store_moments(&block, 64, x.data(), words.data(), 0);
    cpu::load_moments(&block, 64, back.data(), 0);
    EXPECT_EQ(back, x);
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        x.assign(64, 1.0f);
        x[5] = bad;
        cpu::store_moments(&block, 64, x.data(), words.data(), 0);
        cpu::load_moments(&block, 64, back.data(), 0);
        EXPECT_FALSE(std::isfinite(back[5]));
    }
}

// ---- Updates ----

/// The blocks of moments that are next(g) after one update, for the parameter's gradients g.
template <class Next>
std::vector<double> expected_blocks(const Context& ctx, const Parameter& parameter, std::size_t moment,
                                    const Next& next) {
    std::vector<double> numbers;
    const std::vector<double> g = to_host(ctx, parameter.grad());
    for (std::size_t begin = 0; begin < g.size(); begin += moment_block) {
        const std::size_t count = std::min<std::size_t>(moment_block, g.size() - begin);
        std::vector<float> moments;
        std::vector<std::uint32_t> words;
        for (std::size_t i = begin; i < begin + count; ++i) {
            moments.push_back(next(static_cast<float>(g[i])));
            const auto element = parameter.offset() + static_cast<std::int64_t>(i);
            words.push_back(MomentDraws::of(in_8_bits.seed, 1)
                                .draw(element)[static_cast<std::size_t>(element % MomentDraws::elements)]);
        }
        MomentBlock block;
        cpu::store_moments(&block, static_cast<std::int64_t>(count), moments.data(), words.data(), moment);
        std::int32_t integers[moment_block_words];
        std::memcpy(integers, &block, sizeof block);
        numbers.insert(numbers.end(), integers, integers + moment_block_words);
    }
    return numbers;
}

/// Expects the state `name`/PARAMETER after one update with gradients for which next(g) is exact.
template <class Next>
void expect_blocks(const Context& ctx, const ParameterStore& store, const Optimizer& optimizer,
                   const std::string& name, std::size_t moment, const Next& next) {
    int found = 0;
    for (const StateTensor& part : optimizer.state())
        for (const Parameter& parameter : store.parameters())
            if (part.name == name + '/' + parameter.name()) {
                EXPECT_EQ(to_host(ctx, part.tensor), expected_blocks(ctx, parameter, moment, next))
                    << part.name;
                ++found;
            }
    EXPECT_GT(found, 0) << name;
}

/// Integer gradients, whose padding is 0.
void set_gradients(const Context& ctx, const ParameterStore& store) {
    for (const Parameter& parameter : store.parameters()) {
        std::vector<double> gradients(static_cast<std::size_t>(parameter.shape().elements()));
        for (std::size_t i = 0; i < gradients.size(); ++i)
            gradients[i] = static_cast<double>(i * 37 % 127) - 63;
        copy(ctx, parameter.grad(), from_host(ctx, gradients, parameter.shape(), DType::f32));
    }
}

void expect_documented_blocks(const Context& ctx) {
    AdamWProblem adamw(ctx, DType::bf16);
    ElementwiseOptimizer of_adamw(ctx, adamw.store, adamw.store.parameters(),
                                  AdamW{.beta1 = 0.5, .beta2 = 0.75}, {}, {}, in_8_bits);
    ParameterStore matrices;  // the last blocks of two matrices are not full
    for (const auto& [name, shape] : {std::pair<const char*, Shape>{"blocks.0", {24, 40}},
                                      {"blocks.1", {37, 9}},
                                      {"blocks.2", {24, 40}},
                                      {"blocks.3", {600, 65}}})
        matrices.add(name, shape, Init::normal(0.5));
    matrices.allocate(ctx, DType::f32);
    matrices.initialize(ctx, Seed{3});
    Muon muon(ctx, matrices, test::in_blocks,
              {.matrix = {.momentum = {.decay = 0.75}, .moments = in_8_bits}});
    set_gradients(ctx, adamw.store);
    set_gradients(ctx, matrices);
    of_adamw.step(ctx, 1e-3);
    muon.step(ctx, 1e-3);
    expect_blocks(ctx, adamw.store, of_adamw, "m", 0, [](float g) { return 0.5f * g; });
    expect_blocks(ctx, adamw.store, of_adamw, "v", 1, [](float g) { return 0.25f * g * g; });
    expect_blocks(ctx, matrices, muon, "momentum", 0, [](float g) { return 0.25f * g; });
}

/// In each block the first gradient is 4 and all others are 1, so their mean moment is 1 - beta^t. Errors of
/// rounding are independent, have mean 0 and a variance of at most u^2 / 4, where u = 1/8 is the largest
/// distance between neighbours below 1; so a moment's variance is at most u^2 / 4 / (1 - beta^2). The bound
/// is 6 standard deviations of the mean, plus 8 roundings in float32 and 2^-16 u per step.
void expect_unbiased_moments(const Context& ctx) {
    constexpr std::int64_t n = 1 << 16;
    constexpr int steps = 300;
    const AdamW rule{.beta1 = 0.9, .beta2 = 0.999};
    ParameterStore store;
    const Parameter matrix = store.add("matrix", {n / moment_block, moment_block}, Init::normal(0.5));
    store.allocate(ctx, DType::f32);
    ElementwiseOptimizer optimizer(ctx, store, store.parameters(), rule, {}, {}, in_8_bits);
    fill(ctx, matrix.grad(), 1.0);
    fill(ctx, matrix.grad().slice(1, 0, 1), 4.0);
    for (int t = 0; t < steps; ++t) optimizer.step(ctx, 1e-3);
    const std::vector<StateTensor> state = optimizer.state();
    for (const auto& [k, beta] : {std::pair{0u, rule.beta1}, std::pair{1u, rule.beta2}}) {
        const std::vector<double> words = to_host(ctx, state[k].tensor);
        const std::vector<std::int32_t> stored(words.begin(), words.end());
        std::vector<MomentBlock> blocks(n / moment_block);
        std::memcpy(blocks.data(), stored.data(), sizeof(MomentBlock) * blocks.size());
        double sum = 0.0;
        for (std::int64_t b = 0; b < n / moment_block; ++b) {
            float moments[moment_block];
            cpu::load_moments(&blocks[static_cast<std::size_t>(b)], moment_block, moments, k);
            for (int i = 1; i < moment_block; ++i) sum += static_cast<double>(moments[i]);
        }
        const double u = 1.0 / 8, variance = u * u / 4.0 / (1.0 - beta * beta);
        const double count = n - n / moment_block;
        EXPECT_NEAR(sum / count, 1.0 - std::pow(beta, steps),
                    6.0 * std::sqrt(variance / count) +
                        steps * (8.0 * std::numeric_limits<float>::epsilon() + std::ldexp(u, -16)))
            << state[k].name;
    }
}

void expect_refused_updates_to_change_nothing(const Context& ctx) {
    AdamWProblem adamw(ctx, DType::bf16);
    ElementwiseOptimizer of_adamw(ctx, adamw.store, adamw.store.parameters(), test::adamw_options, {}, {},
                                  in_8_bits);
    test::expect_a_refused_update_changes_nothing(ctx, adamw, of_adamw, test::adamw_lr);
    MuonProblem matrices(ctx, DType::bf16);
    MuonOptions options = test::muon_options;
    options.matrix.moments = in_8_bits;
    Muon muon(ctx, matrices.store, test::packed_in_blocks, options);
    test::expect_a_refused_update_changes_nothing(ctx, matrices, muon, test::muon_lr);
}

TEST(MomentBlocks, RoundAsDocumented) {
    for (const int threads : {1, 3}) expect_documented_blocks(Context(Device::cpu(), threads));
}

TEST(MomentBlocks, HaveNoBias) {
    expect_unbiased_moments(Context(Device::cpu(), 2));
}

TEST(MomentBlocks, ChangeNothingWhenTheUpdateIsRefused) {
    expect_refused_updates_to_change_nothing(Context());
}

TEST(MomentBlocks, MatricesThatBeginInsideABlockAreRefused) {
    const Context ctx;
    ParameterStore store;
    store.add("blocks.0", {12, 9}, Init::normal(0.5));
    store.allocate(ctx, DType::f32);
    const auto halves = [](const Parameter&) { return std::vector<std::int64_t>{6, 6}; };
    EXPECT_THAT([&] { Muon(ctx, store, halves, {.matrix = {.moments = in_8_bits}}); },
                testing::ThrowsMessage<Error>(testing::HasSubstr(
                    "a matrix in 'blocks.0' begins at element 54; expected a multiple of 64")));
}

using CudaMomentBlocks = test::CudaTest;

TEST_F(CudaMomentBlocks, RoundAsDocumented) {
    expect_documented_blocks(gpu());
}

TEST_F(CudaMomentBlocks, HaveNoBias) {
    expect_unbiased_moments(gpu());
}

TEST_F(CudaMomentBlocks, ChangeNothingWhenTheUpdateIsRefused) {
    expect_refused_updates_to_change_nothing(gpu());
}

}  // namespace
}  // namespace gradtile
