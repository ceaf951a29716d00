// The largest logit of each head, on every device, compared with float64 pair by pair.
#include <algorithm>
#include <limits>

#include <gmock/gmock.h>

#include <support/error_message.h>

#include "devices.h"
#include "packed_problems.h"

namespace gradtile::attention::test {
namespace {

constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();

/// The largest logit of each head, and the largest sum |scale q k| of a pair, to which rounding is relative.
struct ExpectedLogits {
    std::vector<double> largest, magnitude;
};
/// A mask by its plain definition.
bool mask_sees(const Problem& p, std::int64_t i, std::int64_t j) {
    const std::int64_t diagonal = p.top_left ? i : i + p.keys - p.queries;
    return (!p.causal || j <= diagonal) && (p.window.left < 0 || j >= diagonal - p.window.left) &&
           (p.window.right < 0 || j <= diagonal + p.window.right);
}
/// Adds one dense problem's pairs. `ranges` has four numbers for each key and head, or none.
void add_logits(const Context& ctx, const Problem& p, const Inputs& in, ExpectedLogits& expected) {
    const std::vector<double> q = to_host(ctx, in.q), k = to_host(ctx, in.k),
                              ranges = numbers_of(ctx, in.row_ranges);
    const std::int64_t range_heads = in.row_ranges.defined() ? in.row_ranges.size(1) : 1,
                       range_batch = in.row_ranges.defined() ? in.row_ranges.size(0) : 1;
    const auto index = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    for (std::int64_t b = 0; b < p.batch; ++b)
        for (std::int64_t h = 0; h < p.heads; ++h)
            for (std::int64_t i = 0; i < p.queries; ++i)
                for (std::int64_t j = 0; j < p.keys; ++j) {
                    const std::int64_t number =
                        ((b % range_batch * range_heads + h % range_heads) * p.keys + j) * 4;
                    const auto in_range = [&](std::int64_t first) {
                        const auto row = static_cast<double>(i);
                        return ranges[index(number + first)] <= row &&
                               row < ranges[index(number + first + 1)];
                    };
                    if (!mask_sees(p, i, j) || (!ranges.empty() && !in_range(0) && !in_range(2))) continue;
                    double sum = 0, magnitude = 0;
                    for (std::int64_t c = 0; c < p.d_qk; ++c) {
                        const double product =
                            p.scale_or_default() *
                            q[index(((b * p.queries + i) * p.heads + h) * p.d_qk + c)] *
                            k[index(((b * p.keys + j) * p.key_heads + h / (p.heads / p.key_heads)) * p.d_qk +
                                    c)];
                        sum += product;
                        magnitude += std::abs(product);
                    }
                    expected.largest[index(h)] = std::max(expected.largest[index(h)], sum);
                    expected.magnitude[index(h)] = std::max(expected.magnitude[index(h)], magnitude);
                }
}
ExpectedLogits no_logits(std::int64_t heads) {
    return {std::vector<double>(static_cast<std::size_t>(heads), -infinity),
            std::vector<double>(static_cast<std::size_t>(heads))};
}

class MaxLogits : public EveryDevice {
  protected:
    std::vector<double> max_logits(const Inputs& in, const Options& options) const {
        const Options all = in.with_tensors(options);
        Shape shape = in.q.shape();
        shape[in.q.rank() - 1] = in.v.size(-1);
        const Tensor o = empty(ctx(), shape, in.q.dtype());
        // Every second number: nothing around the output may be written.
        const Tensor memory = zeros(ctx(), {in.q.size(-2), 2}, DType::f32);
        Saved saved, saved_without;
        forward(ctx(), in.q, in.k, in.v, all, saved, o, memory.select(1, 0));
        const std::vector<double> with = to_host(ctx(), o);
        forward(ctx(), in.q, in.k, in.v, all, saved_without, o);
        EXPECT_TRUE(std::ranges::equal(to_host(ctx(), o), with, [](double x, double y) {
            return x == y || (std::isnan(x) && std::isnan(y));
        }));
        EXPECT_THAT(to_host(ctx(), memory.select(1, 1)), testing::Each(0.0));
        return to_host(ctx(), memory.select(1, 0));
    }
    /// A sum of d products has d roundings, scaling and storing it one each: (d + 2) u of the magnitudes,
    /// with u = 2^-24 (2^-53 for float64, but its results are stored in float32).
    void expect_near(const std::vector<double>& result, const ExpectedLogits& expected,
                     std::int64_t d) const {
        ASSERT_EQ(result.size(), expected.largest.size());
        for (std::size_t h = 0; h < result.size(); ++h) {
            if (result[h] == expected.largest[h]) continue;
            EXPECT_NEAR(result[h], expected.largest[h],
                        static_cast<double>(d + 2) * 0x1p-24 * expected.magnitude[h])
                << h;
        }
    }
    /// The algorithms that compute the problem.
    template <class Body>
    void for_every_algorithm(const Problem& p, Body&& body) const {
        for (const Algorithm algorithm : algorithms) {
            if (is_tiled(algorithm) && p.row_ranges.rank() > 0) continue;
            SCOPED_TRACE(::testing::Message() << p << ' ' << algorithm);
            body(algorithm);
        }
    }
};
INSTANTIATE_TEST_SUITE_P(Devices, MaxLogits, testing::ValuesIn(devices_and_dtypes()), name_of_place);

TEST_P(MaxLogits, AreThoseOfVisiblePairsBeforeScoreOptions) {
    const Problem base{
        .queries = 37, .keys = 70, .d_qk = 24, .d_v = 8, .batch = 2, .heads = 4, .key_heads = 2};
    std::vector<Problem> problems;
    const auto add = [&](auto&& change) {
        problems.push_back(base);
        change(problems.back());
    };
    add([](Problem&) {});
    add([](Problem& p) { p.causal = true; });
    add([](Problem& p) { p.causal = p.top_left = true, p.scale = -0.7; });
    add([](Problem& p) { p.window = {.left = 3, .right = 0}; });
    add([](Problem& p) { p.queries = 1, p.d_qk = 33; });
    add([](Problem& p) { p.queries = 90, p.keys = 17, p.causal = true; });  // rows that see nothing
    add([](Problem& p) { p.scale = 0.0; });
    add([](Problem& p) { p.row_ranges = {2, 4}, p.causal = true; });
    add([](Problem& p) { p.row_ranges = {1, 1}; });
    add([](Problem& p) { p = score_option_problems(p).back().problem; });
    for (const Problem& p : problems) {
        const Inputs in = random_inputs(cpu, p, dtype());
        ExpectedLogits expected = no_logits(p.heads);
        add_logits(cpu, p, in, expected);
        const Inputs moved = on_device(in);
        for_every_algorithm(p, [&](Algorithm algorithm) {
            expect_near(max_logits(moved, p.options(algorithm)), expected, p.d_qk);
        });
    }
}

TEST_P(MaxLogits, OfPackedSequencesAreThoseOfAllSequences) {
    for (const bool is_causal : {false, true}) {
        PackedProblem problem{{.d_qk = 16, .d_v = 16, .causal = is_causal, .heads = 4, .key_heads = 2},
                              {40, 0, 3, 70},
                              {40, 9, 30, 33},
                              /*unused_rows=*/5,
                              /*unused_keys=*/7};
        problem.each.row_ranges = {1, 4};
        PackedInputs in = random_inputs(cpu, problem, dtype());
        // Tokens that belong to no sequence may hold anything.
        fill(cpu, in.in.q.slice(0, 113, 5), quiet_nan);
        fill(cpu, in.in.k.slice(0, 112, 7), 1e4);
        ExpectedLogits expected = no_logits(4);
        for (std::size_t s = 0; s < problem.queries.size(); ++s)
            add_logits(cpu, problem.sequence(s), inputs_of_sequence(problem, in, s), expected);
        const PackedInputs moved = in.on(ctx());
        for (const Algorithm algorithm : packed_algorithms) {
            // On a GPU naive multiplies whole matrices, but not here.
            Options options = problem.each.options(algorithm);
            options.cumulative_q = moved.cumulative_q;
            options.cumulative_k = moved.cumulative_k;
            expect_near(max_logits(moved.in, options), expected, 16);
        }
    }
}

TEST_P(MaxLogits, NaNInAVisiblePairIsNotLost) {
    const Problem p{
        .queries = 40, .keys = 40, .d_qk = 16, .d_v = 8, .causal = true, .heads = 4, .key_heads = 2};
    for (const bool in_query : {false, true})
        for (const std::int64_t place : {0, 17, 39}) {
            Inputs in = random_inputs(cpu, p, dtype());
            Tensor& x = in_query ? in.q : in.k;
            fill(cpu, x.slice(1, place, 1).slice(2, 1, 1).slice(3, 3, 1), quiet_nan);
            const std::vector<double> result = max_logits(on_device(in), p.options());
            // Query head 1, or the two query heads of K/V head 1.
            for (std::size_t h = 0; h < 4; ++h)
                EXPECT_EQ(std::isnan(result[h]), in_query ? h == 1 : h >= 2) << h << ' ' << place;
        }
}

TEST_P(MaxLogits, NaNInAnUnseenKeyOrRowChangesNothing) {
    const Problem p{.queries = 40,
                    .keys = 60,
                    .d_qk = 16,
                    .d_v = 8,
                    .causal = true,
                    .window = {.left = 3},
                    .top_left = true};
    Inputs in = random_inputs(cpu, p, dtype());
    const std::vector<double> expected = max_logits(on_device(in), p.options());
    EXPECT_TRUE(std::isfinite(expected[0]));
    fill(cpu, in.k.slice(1, 40, 20), quiet_nan);
    EXPECT_EQ(max_logits(on_device(in), p.options()), expected);
}

TEST_P(MaxLogits, AHeadWithoutAVisiblePairHasMinusInfinity) {
    for (const auto& [queries, keys] : {std::pair{0, 5}, {5, 0}, {5, 5}}) {
        Problem p{.queries = queries, .keys = keys, .heads = 2, .key_heads = 1};
        p.row_ranges = {1, 2};
        Inputs in = random_inputs(cpu, p, dtype());
        fill(cpu, in.row_ranges, 0);
        EXPECT_THAT(max_logits(on_device(in), p.options()), testing::Each(-infinity))
            << queries << ' ' << keys;
    }
}

TEST_P(MaxLogits, InfinitiesOfTheProductsArePassedOn) {
    if (dtype() == DType::f16) return;  // 65504^2 is finite in float32
    const Problem p{.queries = 3, .keys = 3, .d_qk = 8, .d_v = 8, .scale = 1.0};
    Inputs in = random_inputs(cpu, p, dtype());
    const double large = dtype() == DType::f64 ? 1e30 : 1e25;  // also beyond float32, in which it is stored
    for (const double sign : {1.0, -1.0}) {
        fill(cpu, in.q, large);
        fill(cpu, in.k, sign * large);
        EXPECT_THAT(max_logits(on_device(in), p.options()), testing::Each(sign * infinity));
    }
}

TEST(MaxLogitsOnTheCpu, AreRefusedInOtherShapesAndMemory) {
    const Context ctx(Device::cpu(), 1);
    const Tensor x = zeros(ctx, {1, 4, 2, 8}, DType::f32), o = empty_like(ctx, x);
    const auto message = [&](const Tensor& max_logits, const Options& options = {}) {
        return gradtile::test::message_of([&] {
            Saved saved;
            forward(ctx, x, x, x, options, saved, o, max_logits);
        });
    };
    EXPECT_EQ(message(zeros(ctx, {2}, DType::f32)), "no error");
    EXPECT_THAT(message(zeros(ctx, {3}, DType::f32)), testing::HasSubstr("attention: max_logits is"));
    EXPECT_THAT(message(zeros(ctx, {2}, DType::f64)), testing::HasSubstr("attention: max_logits is"));
    EXPECT_THAT(message(zeros(ctx, {1}, DType::f32).expand({2})), testing::HasSubstr("max_logits"));
    const Tensor shared = zeros(ctx, {2}, DType::f32);
    EXPECT_THAT(message(shared, {.sink = shared}), testing::HasSubstr("max_logits"));
    EXPECT_THAT(message(o.select(0, 0).select(0, 0).select(1, 0)), testing::HasSubstr("max_logits"));
}

/// The memory that a call allocates does not grow without the output.
TEST(MaxLogitsOnTheCpu, ADryRunCountsTheirMemory) {
    const Context plain(Device::cpu(), 2);
    const auto run_call = [&](const Context& ctx, bool has_output) {
        // Head dims whose elements are not adjacent are copied.
        const Tensor x = zeros(ctx, {1, 300, 8, 2}, DType::bf16).transpose(2, 3);
        const Tensor o = empty(ctx, x.shape(), DType::bf16), logits = zeros(ctx, {2}, DType::f32);
        Saved saved;
        forward(ctx, x, x, x, {.causal = true}, saved, o, has_output ? logits : Tensor());
    };
    const auto plan = Arena::for_planning(Device::cpu());
    run_call(plain.plan(plan), true);
    const auto arena = std::make_shared<Arena>(Device::cpu(), plan->peak_bytes());
    run_call(plain.with_allocator(arena), true);
    EXPECT_EQ(arena->bytes_in_use(), 0u);
}

}  // namespace
}  // namespace gradtile::attention::test
