// The kernels behind CrossEntropyHead, on logits that products would hardly give.
#include <cmath>

#include <gradtile/core/philox.h>
#include <gradtile/layers/internal/cross_entropy_backend.h>
#include <support/on_cuda.h>

namespace gradtile {
namespace {

using test::OnCuda;

/// Logits [rows, vocabulary], from column `first` on in memory with `columns` columns.
struct Rows {
    std::int64_t rows, vocabulary, columns, first = 0;
};

/// How a row differs from normal numbers; rows take the kinds in turn. `ignored` rows have no target.
enum class Kind { normal, one_huge, half_minus_infinity, equal, very_negative, ignored, huge_target, count };

Kind kind_of(std::int64_t row) {
    return static_cast<Kind>(row % static_cast<int>(Kind::count));
}

/// The first, the last and random tokens.
std::int32_t target_of(std::int64_t row, std::int64_t vocabulary) {
    if (kind_of(row) == Kind::ignored) return ignored_target;
    const std::uint64_t draw = mix_seed(7, static_cast<std::uint64_t>(row));
    if (draw % 4 == 0) return 0;
    if (draw % 4 == 1) return static_cast<std::int32_t>(vocabulary - 1);
    return static_cast<std::int32_t>(draw / 4 % static_cast<std::uint64_t>(vocabulary));
}

/// Changes a row that holds normal numbers.
void change_row(std::span<double> logits, Kind kind, std::int64_t target) {
    const auto size = static_cast<std::int64_t>(logits.size());
    const auto logit_at = [&](std::int64_t i) -> double& { return logits[static_cast<std::size_t>(i)]; };
    switch (kind) {
        case Kind::one_huge:
            logit_at((target + size / 2) % size) = 49152;
            return;
        case Kind::half_minus_infinity:
            for (std::int64_t i = 0; i < size; i += 2)
                if (i != target) logit_at(i) = -std::numeric_limits<double>::infinity();
            return;
        case Kind::equal:
            std::fill(logits.begin(), logits.end(), 0.75);
            return;
        case Kind::very_negative:
            for (double& logit : logits) logit = -16384 - 16 * std::abs(std::round(logit * 4));
            return;
        case Kind::huge_target:
            logit_at(target) = 49152;
            return;
        default:
            return;
    }
}

struct Inputs {
    std::vector<double> memory;  ///< [rows, columns]; NaN outside the logits
    std::vector<std::int32_t> targets;
    double count = 0;
};

Inputs inputs_of(const Rows& shape) {
    const Context cpu(Device::cpu(), 2);
    const auto numbers = to_host(cpu, test::numbers(cpu, {shape.rows, shape.vocabulary}, DType::f32, 1));
    Inputs inputs;
    inputs.memory.assign(static_cast<std::size_t>(shape.rows * shape.columns), std::nan(""));
    for (std::int64_t row = 0; row < shape.rows; ++row) {
        const std::int32_t target = target_of(row, shape.vocabulary);
        const std::span<double> logits(
            &inputs.memory[static_cast<std::size_t>(row * shape.columns + shape.first)],
            static_cast<std::size_t>(shape.vocabulary));
        std::copy_n(&numbers[static_cast<std::size_t>(row * shape.vocabulary)], logits.size(),
                    logits.begin());
        change_row(logits, kind_of(row), target);
        inputs.targets.push_back(target);
        inputs.count += target == ignored_target ? 0 : 1;
    }
    return inputs;
}

struct Outputs {
    std::vector<double> logits;  ///< the memory before: the inputs, rounded to the dtype
    std::vector<double> losses, memory;
};

/// Every gradient has the factor 1/2: the scale is half the target count.
constexpr double factor = 0.5;

Outputs run_rows(const Context& ctx, const Rows& shape, const Inputs& inputs, DType dtype,
                 const LogitSoftcap& softcap = {}) {
    const Tensor memory = from_host(ctx, inputs.memory, {shape.rows, shape.columns}, dtype);
    const Tensor logits = memory.slice(1, shape.first, shape.vocabulary);
    const Tensor targets = from_host(ctx, inputs.targets, {shape.rows});
    std::vector<double> stored = to_host(ctx, memory);
    const Tensor losses = empty(ctx, {shape.rows}, DType::f64), count = empty(ctx, {1}, DType::f64);
    fill(ctx, losses, std::nan(""));
    on_device(ctx, cpu::count_targets, cuda::count_targets, count, targets, shape.vocabulary);
    on_device(ctx, cpu::cross_entropy_rows, cuda::cross_entropy_rows, losses, logits, logits, targets, count,
              factor * inputs.count, softcap);
    return {std::move(stored), to_host(ctx, losses), to_host(ctx, memory)};
}

struct Precision {
    double sums;      ///< relative error per operation
    double storage;   ///< relative error of a stored gradient
    double smallest;  ///< absolute error of a gradient that is not a normal number
};
Precision precision_of(DType dtype) {
    switch (dtype) {
        case DType::f64:
            return {0x1p-53, 0x1p-53, 0x1p-1000};
        case DType::bf16:
            return {0x1p-24, 0x1p-8, 0x1p-125};
        case DType::f16:
            return {0x1p-24, 0x1p-11, 0x1p-24};
        default:
            return {0x1p-24, 0x1p-24, 0x1p-125};
    }
}

/// A logit's capped value and its derivative, as the definitions are written.
struct Capped {
    double value, slope;
};
Capped capped_of(double logit, const LogitSoftcap& softcap) {
    const double c = softcap.limit, r = logit / c;
    if (c == 0) return {logit, 1};
    if (softcap.form == SoftcapForm::tanh) return {c * std::tanh(r), 1 / (std::cosh(r) * std::cosh(r))};
    return {std::isinf(r) ? std::copysign(c, r) : logit / std::sqrt(1 + r * r), std::pow(1 + r * r, -1.5)};
}

/// Expects a row's loss and gradients within derived bounds of the textbook formulas in float64. A capped
/// logit has at most 8 roundings, relative to the cap, and a slope 3 times as many.
void expect_row(std::span<const double> given_logits, std::int64_t target, double loss,
                std::span<const double> gradients, const Precision& precision, double adders,
                const LogitSoftcap& softcap) {
    std::vector<double> logits, slopes;
    for (const double logit : given_logits) {
        const Capped capped = capped_of(logit, softcap);
        logits.push_back(capped.value);
        slopes.push_back(capped.slope);
    }
    const double cap_error = 8 * precision.sums * softcap.limit,
                 slope_error = softcap.limit > 0 ? 24 * precision.sums : 0;
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (const double logit : logits) largest = std::max(largest, logit);
    for (const double logit : logits) sum += std::exp(logit - largest);
    // Each adder adds its logits, and after every 16 logits it may rescale the sum to a new largest logit. An
    // exponential has 4 roundings and those from its argument x, at most log(V) on average in a row.
    const auto size = static_cast<double>(logits.size());
    const double added = size / adders;
    const double sum_error = (added + 4 * (added / 16 + 32) + 2 * std::log(size)) * precision.sums;
    const double exact_loss = std::log(sum) + largest - logits[static_cast<std::size_t>(target)];
    // The formulas here are computed in float64, whose errors count beside float64 kernels: those of capped
    // logits, and one rounding for each term of the sum.
    const double own_error = (3 * 8 * softcap.limit + size) * 0x1p-53;
    ASSERT_NEAR(loss, exact_loss,
                3 * cap_error + sum_error + own_error + 0x1p-50 * (std::abs(largest) + std::abs(exact_loss)));
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const double x = logits[i] - largest, p = std::exp(x) / sum;
        const double uncapped = factor * (p - (static_cast<std::int64_t>(i) == target ? 1 : 0)),
                     exact = uncapped * slopes[i];
        const double p_error = p > 0 ? p * (2 * std::abs(x) * precision.sums + 8 * precision.sums +
                                            sum_error + own_error + 3 * cap_error)
                                     : 0;
        const double error = factor * p_error + precision.storage * (std::abs(exact) + factor * p_error) +
                             2 * precision.sums * factor * (exact < 0 ? 1 : 0) +
                             slope_error * std::abs(uncapped) + precision.smallest;
        if (!(std::abs(gradients[i] - exact) <= error))
            FAIL() << "token " << i << ", target " << target << ": gradient " << gradients[i] << "; expected "
                   << exact << " within " << error;
    }
}

void expect_outputs(const Rows& shape, const Inputs& inputs, const Outputs& outputs, DType dtype,
                    double adders, const LogitSoftcap& softcap) {
    for (std::int64_t row = 0; row < shape.rows; ++row) {
        SCOPED_TRACE(concat("row ", row));
        const auto begin = static_cast<std::size_t>(row * shape.columns);
        const auto first = begin + static_cast<std::size_t>(shape.first);
        const auto size = static_cast<std::size_t>(shape.vocabulary);
        const std::span<const double> logits(&outputs.logits[first], size),
            gradients(&outputs.memory[first], size);
        const std::int32_t target = inputs.targets[static_cast<std::size_t>(row)];
        const double loss = outputs.losses[static_cast<std::size_t>(row)];
        const auto is_untouched = [](double value) { return std::isnan(value); };
        const auto memory = outputs.memory.begin() + static_cast<std::ptrdiff_t>(begin);
        ASSERT_TRUE(std::all_of(memory, memory + shape.first, is_untouched)) << "before the row";
        ASSERT_TRUE(
            std::all_of(memory + shape.first + shape.vocabulary, memory + shape.columns, is_untouched))
            << "after the row";
        if (target != ignored_target) {
            expect_row(logits, target, loss, gradients, precision_of(dtype), adders, softcap);
        } else {
            ASSERT_EQ(loss, 0.0);
            ASSERT_TRUE(std::all_of(gradients.begin(), gradients.end(), [](double g) { return g == 0; }));
        }
        if (testing::Test::HasFatalFailure()) return;
    }
}

void expect_rows(const Context& ctx, const Rows& shape, std::initializer_list<DType> dtypes,
                 const LogitSoftcap& softcap = {}) {
    const Inputs inputs = inputs_of(shape);
    for (const DType dtype : dtypes) {
        SCOPED_TRACE(concat(shape.rows, " x ", shape.vocabulary, ", columns ", shape.columns, ", first ",
                            shape.first, ", ", dtype));
        const Outputs outputs = run_rows(ctx, shape, inputs, dtype, softcap);
        expect_outputs(shape, inputs, outputs, dtype, ctx.device().is_cpu() ? 1 : 512, softcap);
        if (testing::Test::HasFatalFailure()) return;
        const Outputs again = run_rows(ctx, shape, inputs, dtype, softcap);
        EXPECT_EQ(outputs.losses, again.losses) << "two runs";
        for (std::size_t i = 0; i < again.memory.size(); ++i)
            ASSERT_TRUE(outputs.memory[i] == again.memory[i] || std::isnan(again.memory[i]))
                << "two runs, " << i;
    }
}

TEST(CrossEntropyRows, AreWithinRoundingBounds) {
    for (const std::int64_t vocabulary : {1, 7, 513, 50257})
        expect_rows(Context(Device::cpu(), 2), {16, vocabulary, vocabulary + 3}, {DType::f64, DType::f32});
}

constexpr LogitSoftcap softcaps[] = {
    {30, SoftcapForm::tanh}, {15, SoftcapForm::root}, {2, SoftcapForm::root}};

TEST(CrossEntropyRows, OfCappedLogitsAreWithinRoundingBounds) {
    for (const LogitSoftcap& softcap : softcaps)
        for (const std::int64_t vocabulary : {1, 7, 513, 5001})
            expect_rows(Context(Device::cpu(), 2), {16, vocabulary, vocabulary + 3}, {DType::f64, DType::f32},
                        softcap);
}

/// Rows in a warp, in a cluster, in a thread block, unaligned, and wider than shared memory.
TEST_F(OnCuda, CrossEntropyOfCappedLogitsIsWithinRoundingBounds) {
    for (const LogitSoftcap& softcap : softcaps) {
        for (const std::int64_t vocabulary : {7, 512, 8191})
            expect_rows(gpu(), {30, vocabulary, vocabulary + 3},
                        {DType::f64, DType::f32, DType::bf16, DType::f16}, softcap);
        expect_rows(gpu(), {300, 50257, 50304}, {DType::bf16, DType::f16, DType::f32}, softcap);
        expect_rows(gpu(), {30, 50257, 50304, 3}, {DType::bf16, DType::f32}, softcap);
        expect_rows(gpu(), {8, 655361, 655424}, {DType::bf16}, softcap);
    }
}

TEST_F(OnCuda, CappedLogitsEqualThoseOfTheCpu) {
    for (const LogitSoftcap& softcap : softcaps)
        for (const DType dtype : {DType::f32, DType::f64}) {
            const Tensor x = test::numbers(cpu, {3, 1003}, dtype, 1), y = to_device(gpu(), x);
            cpu::cap_logits(cpu, x, softcap);
            cuda::cap_logits(gpu(), y, softcap);
            const auto expected = to_host(cpu, x), values = to_host(gpu(), y);
            for (std::size_t i = 0; i < values.size(); ++i)
                ASSERT_NEAR(values[i], expected[i], 16 * precision_of(dtype).sums * softcap.limit);
        }
}

TEST_F(OnCuda, CrossEntropyOfNarrowRowsIsWithinRoundingBounds) {
    for (const std::int64_t vocabulary : {1, 7, 512, 513, 8191})
        expect_rows(gpu(), {30, vocabulary, vocabulary + 3},
                    {DType::f64, DType::f32, DType::bf16, DType::f16});
}

/// Rows that fit into one thread block, or, where there are clusters, into a cluster of 2, 4 or 8 blocks: few
/// rows first, then so many that a block processes several.
TEST_F(OnCuda, CrossEntropyOfFewAlignedWideRowsIsWithinRoundingBounds) {
    for (const std::int64_t vocabulary : {24576, 32000, 50257, 81920, 81921, 151936})
        expect_rows(gpu(), {3, vocabulary, rounded_up(vocabulary, 64)},
                    {DType::bf16, DType::f16, DType::f32});
}
TEST_F(OnCuda, CrossEntropyOfManyAlignedWideRowsIsWithinRoundingBounds) {
    expect_rows(gpu(), {700, 24577, 24640}, {DType::bf16});
    expect_rows(gpu(), {420, 50257, 50304}, {DType::bf16});
    expect_rows(gpu(), {150, 50257, 50304}, {DType::f16, DType::f32});
    expect_rows(gpu(), {200, 151936, 151936}, {DType::bf16});
    expect_rows(gpu(), {110, 256000, 256000}, {DType::f16});
}
TEST_F(OnCuda, CrossEntropyOfTheWidestRowsIsWithinRoundingBounds) {
    expect_rows(gpu(), {25, 655360, 655360}, {DType::bf16});  // the widest that 8 blocks hold
    expect_rows(gpu(), {8, 655361, 655424}, {DType::bf16, DType::f32});
}
TEST_F(OnCuda, CrossEntropyOfUnalignedWideRowsIsWithinRoundingBounds) {
    expect_rows(gpu(), {30, 50257, 50257}, {DType::bf16, DType::f16, DType::f32});
    expect_rows(gpu(), {30, 50257, 50304, 3}, {DType::bf16, DType::f32});
    expect_rows(gpu(), {10, 151937, 151937}, {DType::bf16});
}

TEST_F(OnCuda, CrossEntropyOfWideRowsIsNaNForTargetsOutsideTheVocabularyAndNaNLogits) {
    const Rows shape{300, 50257, 50304};
    Inputs inputs = inputs_of(shape);
    inputs.targets[7] = 50257;
    inputs.targets[140] = -2;
    inputs.memory[static_cast<std::size_t>(280 * shape.columns + 50256)] = std::nan("");  // a normal row
    const Outputs outputs = run_rows(gpu(), shape, inputs, DType::bf16);
    for (const std::int64_t row : {7, 140, 280}) {
        for (std::int64_t i = 0; i < shape.vocabulary; ++i)
            ASSERT_TRUE(std::isnan(outputs.memory[static_cast<std::size_t>(row * shape.columns + i)]))
                << row << ' ' << i;
    }
    for (std::int64_t row = 0; row < shape.rows; ++row) {
        const bool bad = row == 7 || row == 140 || row == 280;
        EXPECT_EQ(std::isnan(outputs.losses[static_cast<std::size_t>(row)]), bad) << row;
    }
}

}  // namespace
}  // namespace gradtile
