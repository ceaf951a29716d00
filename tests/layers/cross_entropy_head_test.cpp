#include <gradtile/core/philox.h>
#include <gradtile/layers/cross_entropy_head.h>
#include <support/on_cuda.h>

#include <gmock/gmock.h>

namespace gradtile {
namespace {

std::vector<std::int32_t> some_targets(std::int64_t count, std::int64_t vocabulary, bool with_ignored) {
    std::vector<std::int32_t> targets;
    for (std::int64_t i = 0; i < count; ++i) {
        const std::uint64_t draw = mix_seed(5, static_cast<std::uint64_t>(i));
        const bool ignored = with_ignored && draw >> 32 & 1;
        targets.push_back(ignored ? -1
                                  : static_cast<std::int32_t>(draw % static_cast<std::uint64_t>(vocabulary)));
    }
    return targets;
}

struct HeadResult {
    double loss = 0;
    std::vector<double> dx, dw;
    bool operator==(const HeadResult&) const = default;
};

/// The textbook formulas with all logits in float64.
HeadResult naive(const std::vector<double>& x, const std::vector<double>& w,
                 const std::vector<std::int32_t>& targets, std::size_t width, double scale) {
    const std::size_t rows = targets.size(), vocabulary = w.size() / width;
    HeadResult result{0, std::vector<double>(x.size()), std::vector<double>(w.size())};
    const auto counted =
        static_cast<double>(std::count_if(targets.begin(), targets.end(), [](auto t) { return t >= 0; }));
    for (std::size_t r = 0; r < rows; ++r) {
        if (targets[r] < 0) continue;
        std::vector<double> logits(vocabulary);
        for (std::size_t v = 0; v < vocabulary; ++v)
            for (std::size_t c = 0; c < width; ++c) logits[v] += x[r * width + c] * w[v * width + c];
        const double largest = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
        for (const double l : logits) sum += std::exp(l - largest);
        const auto target = static_cast<std::size_t>(targets[r]);
        result.loss += (std::log(sum) + largest - logits[target]) / counted;
        for (std::size_t v = 0; v < vocabulary; ++v) {
            const double d = (std::exp(logits[v] - largest) / sum - (v == target)) * scale / counted;
            for (std::size_t c = 0; c < width; ++c) {
                result.dx[r * width + c] += d * w[v * width + c];
                result.dw[v * width + c] += d * x[r * width + c];
            }
        }
    }
    return result;
}

struct Head {
    ParameterStore store;
    CrossEntropyHead head;
    Head(const Context& ctx, std::int64_t vocabulary, std::int64_t width, DType dtype)
        : head(store, "head", vocabulary, width) {
        store.allocate(ctx, dtype);
        copy(ctx, head.weight.value(), randn(ctx, {vocabulary, width}, DType::bf16, Seed{3}));
    }
};

struct Case {
    std::int64_t rows, vocabulary, width;
    bool ignored;
};

HeadResult run_head(const Context& ctx, const Case& c, DType dtype, double scale = 1.0, int passes = 1) {
    Head test(ctx, c.vocabulary, c.width, dtype);
    CrossEntropyHead::Saved saved;
    const Tensor x = test::numbers(ctx, {c.rows, c.width}, dtype, 1);
    const Tensor targets = from_host(ctx, some_targets(c.rows, c.vocabulary, c.ignored), {c.rows});
    HeadResult result;
    for (int i = 0; i < passes; ++i)
        result.loss = item(ctx, test.head.forward(ctx, x, targets, saved, scale));
    result.dx = to_host(ctx, test.head.backward(ctx, saved));
    result.dw = to_host(ctx, test.head.weight.grad());
    return result;
}

HeadResult run_naive(const Context& ctx, const Case& c, double scale = 1.0) {
    Head test(ctx, c.vocabulary, c.width, DType::f64);
    return naive(to_host(ctx, test::numbers(ctx, {c.rows, c.width}, DType::f64, 1)),
                 to_host(ctx, test.head.weight.value()), some_targets(c.rows, c.vocabulary, c.ignored),
                 static_cast<std::size_t>(c.width), scale);
}

const Case cases[] = {{1, 1, 3, false},    {1, 65, 16, false},  {7, 2, 5, true},
                      {100, 65, 24, true}, {33, 1000, 7, true}, {64, 4099, 12, false}};
// 300,000 float32 logits are 1.2 MB, so a 64 MiB chunk holds 48 rows.
const Case several_chunks{110, 300000, 3, true};

double largest_of(const std::vector<double>& values) {
    double largest = 0;
    for (const double v : values) largest = std::max(largest, std::abs(v));
    return largest;
}

TEST(CrossEntropyHead, EqualsTheTextbookFormulasInFloat64) {
    const Context ctx(Device::cpu(), 2);
    for (const Case& c : cases) {
        SCOPED_TRACE(concat(c.rows, " x ", c.vocabulary, " x ", c.width));
        const HeadResult result = run_head(ctx, c, DType::f64, 0.25), reference = run_naive(ctx, c, 0.25);
        // An upper bound for the number of terms in the longest sum.
        const double terms = static_cast<double>(c.rows + c.vocabulary + c.width);
        const double dx_size = largest_of(reference.dx), dw_size = largest_of(reference.dw);
        EXPECT_NEAR(result.loss, reference.loss, terms * 0x1p-52 * (1 + reference.loss));
        for (std::size_t i = 0; i < result.dx.size(); ++i)
            ASSERT_NEAR(result.dx[i], reference.dx[i], terms * 0x1p-52 * dx_size);
        for (std::size_t i = 0; i < result.dw.size(); ++i)
            ASSERT_NEAR(result.dw[i], reference.dw[i], terms * 0x1p-52 * dw_size);
    }
}

double rounding_of(DType dtype) {
    return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0.0;
}

/// The error from rounding logits, about sqrt(width) large, to 16 bits. Only training on a GPU rounds them.
double rounding_of_logits(const Context& ctx, const Case& c, DType dtype) {
    return ctx.device().is_cpu() ? 0.0 : rounding_of(dtype) * 4 * std::sqrt(static_cast<double>(c.width));
}

/// Expects errors within this bound: a logit is a float32 sum over `width` products of size about 1, and its
/// absolute error is p's relative error. Sums over rows and over the vocabulary have one rounding per addend.
/// In bfloat16 and float16, d_logits and dx are rounded once each.
void expect_close(const Context& ctx, const Case& c, DType dtype, const HeadResult& reference) {
    const HeadResult result = run_head(ctx, c, dtype);
    const double logit_error =
        static_cast<double>(c.width) * 0x1p-24 * 4 * std::sqrt(static_cast<double>(c.width)) +
        rounding_of_logits(ctx, c, dtype);
    const double sums = static_cast<double>(c.rows + c.vocabulary) * 0x1p-24;
    const double store = rounding_of(dtype);
    // In float16 most d_logits are subnormal; |x| and |w| are below 5.
    const double subnormal = dtype == DType::f16 ? 5 * 0x1p-25 : 0.0;
    EXPECT_NEAR(result.loss, reference.loss, 2 * logit_error + sums * (1 + reference.loss));
    const double bound = 2 * logit_error + sums + 2 * store;
    const double dx_size = largest_of(reference.dx), dw_size = largest_of(reference.dw);
    for (std::size_t i = 0; i < result.dx.size(); ++i)
        ASSERT_NEAR(result.dx[i], reference.dx[i],
                    bound * dx_size + subnormal * static_cast<double>(c.vocabulary))
            << dtype << ' ' << i;
    for (std::size_t i = 0; i < result.dw.size(); ++i)
        ASSERT_NEAR(result.dw[i], reference.dw[i], bound * dw_size + subnormal * static_cast<double>(c.rows))
            << dtype << ' ' << i;
}

TEST(CrossEntropyHead, Float32AndBfloat16ErrorsAreWithinRoundingBounds) {
    const Context ctx(Device::cpu(), 2);
    for (const Case& c : cases) {
        SCOPED_TRACE(concat(c.rows, " x ", c.vocabulary, " x ", c.width));
        const HeadResult reference = run_naive(ctx, c);
        for (const DType dtype : {DType::f32, DType::bf16}) expect_close(ctx, c, dtype, reference);
    }
}

TEST(CrossEntropyHead, SeveralChunksGiveTheSameResultAsOne) {
    const Context ctx(Device::cpu(), 2);
    expect_close(ctx, several_chunks, DType::f32, run_naive(ctx, several_chunks));
}

void expect_gradients_of_differences(const LogitSoftcap& softcap) {
    const Context ctx(Device::cpu(), 2);
    Head test(ctx, 13, 6, DType::f64);
    test.head.softcap = softcap;
    const Tensor targets = from_host(ctx, some_targets(20, 13, true), {4, 5});
    const Tensor x = randn(ctx, {4, 5, 6}, DType::f64, Seed{2});
    CrossEntropyHead::Saved saved;
    using Tensors = Differentiable::Tensors;
    // CrossEntropyHead::forward computes the weight's gradient. So the function's value comes from loss(),
    // and its backward calls forward with the scale.
    const Differentiable function{
        [&](const Context& c, const Tensors& in) {
            const auto total = to_host(c, test.head.loss(c, in[0], targets));
            return Tensors{from_host(c, std::vector<double>{total[0] / total[1]}, {1}, DType::f64)};
        },
        [&](const Context& c, const Tensors& in, const Tensors& grads) {
            test.head.forward(c, in[0], targets, saved, item(c, grads[0]));
            return Tensors{test.head.backward(c, saved)};
        }};
    const auto report = gradient_check(ctx, function, {x}, test.store.parameters());
    EXPECT_TRUE(report.ok()) << report;
}

TEST(CrossEntropyHead, GradientsMatchFiniteDifferences) {
    expect_gradients_of_differences({});
    expect_gradients_of_differences({3, SoftcapForm::tanh});
    expect_gradients_of_differences({3, SoftcapForm::root});
}

TEST(CrossEntropyHead, LogitsAreCapped) {
    const Context ctx(Device::cpu(), 2);
    Head test(ctx, 13, 6, DType::f64);
    const Tensor x = randn(ctx, {4, 6}, DType::f64, Seed{2});
    const auto logits = to_host(ctx, test.head.logits(ctx, x));
    for (const SoftcapForm form : {SoftcapForm::tanh, SoftcapForm::root}) {
        test.head.softcap = {2, form};
        const auto capped = to_host(ctx, test.head.logits(ctx, x));
        for (std::size_t i = 0; i < logits.size(); ++i) {
            const double r = logits[i] / 2, tanh = 2 * std::tanh(r), root = logits[i] / std::sqrt(1 + r * r);
            EXPECT_NEAR(capped[i], form == SoftcapForm::tanh ? tanh : root, 8 * 2 * 0x1p-53);
        }
    }
}

TEST(CrossEntropyHead, DoesNotDependOnTheNumberOfThreads) {
    for (const DType dtype : {DType::f32, DType::bf16})
        for (const Case& c : {cases[3], cases[5]}) {
            const HeadResult alone = run_head(Context(Device::cpu(), 1), c, dtype);
            EXPECT_TRUE(alone == run_head(Context(Device::cpu(), 2), c, dtype));
            EXPECT_TRUE(alone == run_head(Context(Device::cpu(), 3), c, dtype));
        }
}

TEST(CrossEntropyHead, AccumulatesTheWeightGradientAndScalesIt) {
    const Context ctx(Device::cpu(), 2);
    const HeadResult once = run_head(ctx, cases[3], DType::f64);
    const HeadResult twice_half = run_head(ctx, cases[3], DType::f64, 0.5, 2);
    const double bound = 0x1p-52 * static_cast<double>(cases[3].rows) * largest_of(once.dw);
    EXPECT_EQ(once.loss, twice_half.loss) << "the scale must not change the loss";
    for (std::size_t i = 0; i < once.dw.size(); ++i) ASSERT_NEAR(twice_half.dw[i], once.dw[i], bound);
    for (std::size_t i = 0; i < once.dx.size(); ++i) ASSERT_DOUBLE_EQ(2 * twice_half.dx[i], once.dx[i]);
}

TEST(CrossEntropyHead, AllTargetsIgnoredGivesZeroLossAndZeroGradients) {
    const Context ctx(Device::cpu(), 2);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        Head test(ctx, 9, 4, dtype);
        CrossEntropyHead::Saved saved;
        const Tensor targets = from_host(ctx, std::vector<std::int32_t>(5, -1), {5});
        EXPECT_EQ(item(ctx, test.head.forward(ctx, test::numbers(ctx, {5, 4}, dtype, 1), targets, saved)),
                  0.0);
        EXPECT_EQ(to_host(ctx, test.head.backward(ctx, saved)), std::vector<double>(20, 0.0));
        EXPECT_EQ(to_host(ctx, test.head.weight.grad()), std::vector<double>(36, 0.0));
    }
}

TEST(CrossEntropyHead, LargeLogitsDoNotOverflow) {
    const Context ctx(Device::cpu(), 1);
    Head test(ctx, 3, 1, DType::f32);
    copy(ctx, test.head.weight.value(),
         from_host(ctx, std::vector<double>{1000, -1000, 999}, {3, 1}, DType::f32));
    const Tensor x = from_host(ctx, std::vector<double>{1, 1}, {2, 1}, DType::f32);
    const Tensor targets = from_host(ctx, std::vector<std::int32_t>{0, 1}, {2});
    CrossEntropyHead::Saved saved;
    const double tail = std::log1p(std::exp(-1.0));
    EXPECT_NEAR(item(ctx, test.head.forward(ctx, x, targets, saved)), (tail + tail + 2000) / 2,
                2000 * 0x1p-23);
    for (const double d : to_host(ctx, test.head.backward(ctx, saved))) EXPECT_TRUE(std::isfinite(d));
}

TEST(CrossEntropyHead, EvaluationReturnsTheSumOfTheTrainingLosses) {
    const Context ctx(Device::cpu(), 2);
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        const Case& c = cases[3];
        Head test(ctx, c.vocabulary, c.width, dtype);
        CrossEntropyHead::Saved saved;
        const auto ids = some_targets(c.rows, c.vocabulary, true);
        const Tensor x = test::numbers(ctx, {c.rows, c.width}, dtype, 1),
                     targets = from_host(ctx, ids, {c.rows});
        const auto total = to_host(ctx, test.head.loss(ctx, x, targets));
        EXPECT_EQ(total[1],
                  static_cast<double>(std::count_if(ids.begin(), ids.end(), [](auto t) { return t >= 0; })));
        EXPECT_DOUBLE_EQ(total[0] / total[1], item(ctx, test.head.forward(ctx, x, targets, saved)));
        EXPECT_EQ(test.head.logits(ctx, x.slice(0, 4, 1)).shape(), (Shape{1, c.vocabulary}));
    }
}

TEST(CrossEntropyHead, LogitsAreTheProductsWithTheWeight) {
    const Context ctx(Device::cpu(), 1);
    Head test(ctx, 3, 2, DType::f32);
    copy(ctx, test.head.weight.value(),
         from_host(ctx, std::vector<double>{1, 2, 3, 4, 5, 6}, {3, 2}, DType::f32));
    const Tensor x = from_host(ctx, std::vector<double>{1, 10}, {1, 1, 2}, DType::f32);
    EXPECT_THAT(to_host(ctx, test.head.logits(ctx, x)), testing::ElementsAre(21, 43, 65));
}

TEST(CrossEntropyHead, SharesATiedWeight) {
    const Context ctx(Device::cpu(), 1);
    ParameterStore store;
    const Parameter embedding = store.add("embedding.weight", {7, 4}, Init::normal(1));
    const CrossEntropyHead head(embedding);
    store.allocate(ctx, DType::f32);
    store.initialize(ctx, Seed{1});
    CrossEntropyHead::Saved saved;
    head.forward(ctx, test::numbers(ctx, {2, 4}, DType::f32, 1),
                 from_host(ctx, std::vector<std::int32_t>{1, 2}, {2}), saved);
    EXPECT_GT(largest_of(to_host(ctx, embedding.grad())), 0.0);
    EXPECT_EQ(store.parameters().size(), 1u);
}

TEST(CrossEntropyHead, RefusesATargetOutsideTheVocabularyByName) {
    const Context ctx(Device::cpu(), 2);
    Head test(ctx, 9, 3, DType::f32);
    CrossEntropyHead::Saved saved;
    const Tensor x = zeros(ctx, {3, 3}, DType::f32);
    for (const std::int32_t bad : {9, -2, -100}) {
        const Tensor targets = from_host(ctx, std::vector<std::int32_t>{8, bad, 0}, {3});
        try {
            test.head.forward(ctx, x, targets, saved);
            FAIL();
        } catch (const Error& error) {
            EXPECT_THAT(error.what(),
                        testing::AllOf(testing::HasSubstr(concat("target ", bad)),
                                       testing::HasSubstr("position 1"), testing::HasSubstr("9")));
        }
        EXPECT_THROW(test.head.loss(ctx, x, targets), Error);
    }
}

TEST(CrossEntropyHead, ANaNLogitMakesTheLossNaN) {
    const Context ctx(Device::cpu(), 1);
    Head test(ctx, 40, 2, DType::f32);
    CrossEntropyHead::Saved saved;
    const Tensor x = from_host(ctx, std::vector<double>{1, std::nan("")}, {1, 2}, DType::f32);
    const Tensor targets = from_host(ctx, std::vector<std::int32_t>{0}, {1});
    EXPECT_TRUE(std::isnan(item(ctx, test.head.forward(ctx, x, targets, saved))));
}

TEST(CrossEntropyHead, DoesNotStoreAllLogitsAndPlansItsMemoryExactly) {
    const Context ctx(Device::cpu(), 2);
    const Case& c = several_chunks;
    Head test(ctx, c.vocabulary, c.width, DType::bf16);
    const auto run = [&](const Context& where, const std::shared_ptr<Arena>& arena) {
        CrossEntropyHead::Saved saved;
        const Tensor x = empty(where, {c.rows, c.width}, DType::bf16);
        const Tensor targets = empty(where, {c.rows}, DType::i32);
        fill(where, x, 0.5);
        fill(where, targets, 3);
        test.head.forward(where, x, targets, saved);
        test.head.backward(where, saved);
        return arena->peak_bytes();
    };
    const auto planning = Arena::for_planning(Device::cpu());
    const std::size_t planned = run(ctx.plan(planning), planning);
    const auto arena = std::make_shared<Arena>(Device::cpu(), planned);
    EXPECT_EQ(run(ctx.with_allocator(arena), arena), planned);
    EXPECT_LT(planned, std::size_t{65} << 20);
    EXPECT_LT(planned, static_cast<std::size_t>(c.rows * c.vocabulary) * 4);
}

// ---- On the GPU ----

using test::OnCuda;

/// Tests rows that a warp holds, rows in shared memory (one or two per multiprocessor), and longer rows.
TEST_F(OnCuda, CrossEntropyHeadErrorsAreWithinRoundingBounds) {
    std::vector<Case> all(std::begin(cases), std::end(cases));
    all.push_back({20, 2048, 8, true});
    all.push_back({20, 2049, 8, true});
    all.push_back({50, 33001, 16, true});
    all.push_back({300, 50257, 4, true});
    all.push_back(several_chunks);
    for (const Case& c : all) {
        SCOPED_TRACE(concat(c.rows, " x ", c.vocabulary, " x ", c.width));
        const HeadResult reference = run_naive(cpu, c);
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            expect_close(gpu(), c, dtype, reference);
            EXPECT_TRUE(run_head(gpu(), c, dtype) == run_head(gpu(), c, dtype)) << "two runs";
        }
    }
    for (const Case& c : cases) {
        const HeadResult result = run_head(gpu(), c, DType::f64, 0.25), reference = run_naive(cpu, c, 0.25);
        const double terms = static_cast<double>(c.rows + c.vocabulary + c.width);
        EXPECT_NEAR(result.loss, reference.loss, terms * 0x1p-52 * (1 + reference.loss));
        for (std::size_t i = 0; i < result.dw.size(); ++i)
            ASSERT_NEAR(result.dw[i], reference.dw[i], terms * 0x1p-52 * largest_of(reference.dw));
    }
}

TEST_F(OnCuda, CrossEntropyHeadIgnoresTargetsAndCountsTheOthers) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
        for (const Case& c : {cases[3], cases[5]}) {
            Head test(gpu(), c.vocabulary, c.width, dtype);
            CrossEntropyHead::Saved saved;
            const auto ids = some_targets(c.rows, c.vocabulary, true);
            const Tensor x = test::numbers(gpu(), {c.rows, c.width}, dtype, 1);
            const Tensor targets = from_host(gpu(), ids, {c.rows});
            const auto total = to_host(gpu(), test.head.loss(gpu(), x, targets));
            EXPECT_EQ(total[1], static_cast<double>(
                                    std::count_if(ids.begin(), ids.end(), [](auto t) { return t >= 0; })));
            const double mean = total[0] / total[1];
            EXPECT_NEAR(item(gpu(), test.head.forward(gpu(), x, targets, saved)), mean,
                        mean * 0x1p-50 + 2 * rounding_of_logits(gpu(), c, dtype));

            const Tensor none = from_host(gpu(), std::vector<std::int32_t>(ids.size(), -1), {c.rows});
            Head untouched(gpu(), c.vocabulary, c.width, dtype);
            EXPECT_EQ(item(gpu(), untouched.head.forward(gpu(), x, none, saved)), 0.0);
            EXPECT_EQ(largest_of(to_host(gpu(), untouched.head.backward(gpu(), saved))), 0.0);
            EXPECT_EQ(largest_of(to_host(gpu(), untouched.head.weight.grad())), 0.0);
        }
}

TEST_F(OnCuda, CrossEntropyHeadReturnsNaNForTargetsOutsideTheVocabulary) {
    for (const std::int64_t vocabulary : {9, 5000})
        for (const std::int32_t bad : {5000, -2, 2147483647, -2147483647 - 1}) {
            Head test(gpu(), vocabulary, 3, DType::f32);
            CrossEntropyHead::Saved saved;
            const Tensor targets = from_host(gpu(), std::vector<std::int32_t>{8, bad, 0}, {3});
            const Tensor x = test::numbers(gpu(), {3, 3}, DType::f32, 1);
            EXPECT_TRUE(std::isnan(item(gpu(), test.head.forward(gpu(), x, targets, saved))));
            EXPECT_TRUE(std::isnan(to_host(gpu(), test.head.loss(gpu(), x, targets))[0]));
        }
}

TEST_F(OnCuda, CrossEntropyHeadHandlesLargeLogitsAndNaNs) {
    Head test(gpu(), 3, 1, DType::f32);
    copy(gpu(), test.head.weight.value(),
         from_host(gpu(), std::vector<double>{1000, -1000, 999}, {3, 1}, DType::f32));
    const Tensor x = from_host(gpu(), std::vector<double>{1, 1}, {2, 1}, DType::f32);
    const Tensor targets = from_host(gpu(), std::vector<std::int32_t>{0, 1}, {2});
    CrossEntropyHead::Saved saved;
    const double tail = std::log1p(std::exp(-1.0));
    EXPECT_NEAR(item(gpu(), test.head.forward(gpu(), x, targets, saved)), (tail + tail + 2000) / 2,
                2000 * 0x1p-23);
    for (const double d : to_host(gpu(), test.head.backward(gpu(), saved))) EXPECT_TRUE(std::isfinite(d));
    const Tensor bad = from_host(gpu(), std::vector<double>{1, std::nan("")}, {2, 1}, DType::f32);
    EXPECT_TRUE(std::isnan(item(gpu(), test.head.forward(gpu(), bad, targets, saved))));
}

}  // namespace
}  // namespace gradtile
