// The norm and rotation of queries and keys, against the formulas in float64 and against separate operators.
#include <gradtile/layers/head_transform.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

#include <support/cuda_test.h>
#include <support/floating_dtypes.h>

namespace gradtile {
namespace {

using test::epsilon_of;
using test::floating_dtypes;

struct HeadSizes {
    std::int64_t batch, length, queries, keys, dim;
    bool norm, rotates;
    bool without_gain = false;
    double offset = 0.0;

    std::int64_t heads() const { return queries + keys; }
    friend std::ostream& operator<<(std::ostream& out, const HeadSizes& h) {
        return out << '[' << h.batch << ", " << h.length << ", " << h.queries << " + " << h.keys << ", "
                   << h.dim << ']' << (h.norm ? " norm" : "") << (h.without_gain ? " without gain" : "")
                   << (h.rotates ? " rotated" : "");
    }
};
constexpr double head_epsilon = 1e-5;

/// The operands for one case, in one dtype on one device. The heads are part of packed rows, and values
/// follow them.
struct HeadProblem {
    HeadProblem(const Context& ctx, const HeadSizes& h, DType dtype)
        : heads(h), rope(2 * ((h.dim + 1) / 2), 400) {
        const Context host(Device::cpu(), 1);
        const Shape packed{h.batch, h.length, (h.heads() + h.keys) * h.dim};
        const auto random = [&](const Shape& shape, std::uint64_t seed) {
            return to_device(ctx, cast(host, randn(host, shape, DType::bf16, Seed{seed}), dtype));
        };
        memory = random(packed, 1);
        gradient_memory = random(packed, 2);
        x = heads_of(memory);
        gradient = heads_of(gradient_memory);
        transform = {.queries = h.queries, .epsilon = head_epsilon};
        if (h.norm) rstd = empty(ctx, {h.batch, h.length, h.heads()}, accumulator_of(dtype));
        transform.without_gain = h.without_gain;
        transform.weight_offset = h.offset;
        if (h.norm && !h.without_gain) {
            transform.q_weight = random({h.dim}, 3);
            transform.k_weight = random({h.dim}, 4);
            for (GradientTarget* target : {&weights.q, &weights.k})
                *target = {zeros(ctx, {h.dim}, accumulator_of(dtype)), GradientWrite::accumulate};
        }
        if (h.rotates) transform.angles = rope.angles_from(ctx, 3, h.length, dtype);
        y = h.norm ? empty(ctx, x.shape(), dtype) : x;
    }
    Tensor heads_of(const Tensor& packed) const {
        return packed.slice(2, 0, heads.heads() * heads.dim)
            .reshape({heads.batch, heads.length, heads.heads(), heads.dim});
    }
    void run(const Context& ctx) const {
        transform_heads(ctx, y, rstd, x, transform);
        differentiate_heads(ctx, gradient, rstd, x, transform, weights);
    }

    HeadSizes heads;
    Rope rope;
    Tensor memory, gradient_memory, x, y, rstd, gradient;
    HeadTransform transform;
    HeadWeightGradients weights;
};

/// Forward and backward in float64, written as the formulas are.
struct ExactHeads {
    std::vector<double> y, dx, dq, dk;
    std::vector<double> dx_size;  // per row: bound for dx's rounding errors
    std::vector<double> weight_size[2];
};
ExactHeads exact_heads(const HeadProblem& p, const std::vector<double>& xs, const std::vector<double>& dys,
                       const std::vector<double>& q_weight, const std::vector<double>& k_weight) {
    const auto& [batch, length, queries, keys, dim, norm, rotates, without_gain, offset] = p.heads;
    const auto width = static_cast<std::size_t>(dim);
    ExactHeads e{xs,
                 dys,
                 std::vector<double>(width),
                 std::vector<double>(width),
                 dys,
                 {std::vector<double>(width), std::vector<double>(width)}};
    for (std::size_t row = 0; row < xs.size() / width; ++row) {
        const auto head = static_cast<std::int64_t>(row) % p.heads.heads();
        const auto token = static_cast<std::int64_t>(row) / p.heads.heads() % length;
        const bool is_query = head < queries;
        const std::vector<double>& w = is_query ? q_weight : k_weight;
        const double* const x = xs.data() + row * width;
        double squares = 0;
        for (std::size_t i = 0; i < width; ++i) squares += x[i] * x[i];
        const double rstd = norm ? 1 / std::sqrt(squares / static_cast<double>(dim) + head_epsilon) : 1.0;
        std::vector<double> n(width), scaled(width),
            d(dys.begin() + static_cast<std::ptrdiff_t>(row * width),
              dys.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
        for (std::size_t i = 0; i < width; ++i) n[i] = x[i] * rstd, scaled[i] = n[i] * (norm ? w[i] : 1.0);
        if (rotates)
            for (std::size_t i = 0; i < width / 2; ++i) {
                const double angle =
                    static_cast<double>(token + 3) *
                    std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
                const std::size_t j = i + width / 2;
                const double u = scaled[i], v = scaled[j], a = d[i], b = d[j];
                scaled[i] = u * std::cos(angle) - v * std::sin(angle);
                scaled[j] = v * std::cos(angle) + u * std::sin(angle);
                d[i] = a * std::cos(angle) + b * std::sin(angle);
                d[j] = b * std::cos(angle) - a * std::sin(angle);
            }
        double mean = 0, size = 0, largest = 0;
        for (std::size_t i = 0; i < width; ++i) {
            mean += d[i] * (norm ? w[i] : 1.0) * n[i] / static_cast<double>(dim);
            size += std::abs(d[i] * (norm ? w[i] : 1.0) * n[i]) / static_cast<double>(dim);
            largest = std::max(largest, std::abs(n[i]));
        }
        double rotated = 0;  // the row's largest gradient: a rotation adds two gradients
        for (std::size_t i = 0; i < width; ++i) rotated = std::max(rotated, std::abs(dys[row * width + i]));
        for (std::size_t i = 0; i < width; ++i) {
            const double weight = norm ? w[i] : 1.0;
            e.y[row * width + i] = scaled[i];
            e.dx[row * width + i] = norm ? rstd * (d[i] * weight - n[i] * mean) : d[i];
            e.dx_size[row * width + i] =
                rstd * (2 * rotated * std::abs(weight) + largest * (size + 2 * rotated));
            if (!norm) continue;
            (is_query ? e.dq : e.dk)[i] += d[i] * n[i];
            e.weight_size[is_query ? 0 : 1][i] += 2 * rotated * std::abs(n[i]);
        }
    }
    return e;
}

/// Every y and dx has at most dim + 16 roundings in the accumulator's type, relative to the terms that are
/// added, and one rounding to the dtype. A weight's gradient is a sum over all rows.
void expect_exact_heads(const Context& ctx, const HeadSizes& heads, DType dtype) {
    HeadProblem p(ctx, heads, dtype);
    const auto before = to_host(ctx, p.memory), gradients_before = to_host(ctx, p.gradient_memory);
    const auto host = [&](const Tensor& x) { return x.defined() ? to_host(ctx, x) : std::vector<double>(); };
    const auto gain = [&](const Tensor& weight) {
        std::vector<double> values(static_cast<std::size_t>(heads.dim), 1.0);
        if (weight.defined())
            std::ranges::transform(host(weight), values.begin(), [&](double w) { return heads.offset + w; });
        return values;
    };
    const ExactHeads want =
        exact_heads(p, host(p.x), host(p.gradient), gain(p.transform.q_weight), gain(p.transform.k_weight));
    p.run(ctx);
    const auto y = host(p.y), dx = host(p.gradient);
    const double half = epsilon_of(dtype) / 2, small = epsilon_of(accumulator_of(dtype)),
                 terms = static_cast<double>(heads.dim + 16);
    // Angles are rounded to the accumulator's type, too. float16's subnormal numbers have a spacing of 2^-24.
    const auto width = static_cast<std::size_t>(heads.dim);
    for (std::size_t i = 0; i < y.size(); ++i) {
        double largest = 0;
        const std::size_t row = i / width * width;
        for (std::size_t k = row; k < row + width; ++k) largest = std::max(largest, std::abs(want.y[k]));
        ASSERT_LE(std::abs(y[i] - want.y[i]),
                  half * std::abs(want.y[i]) + 2 * terms * small * largest + 0x1p-24)
            << heads << ' ' << dtype << " y " << i;
        ASSERT_LE(std::abs(dx[i] - want.dx[i]),
                  half * std::abs(want.dx[i]) + terms * small * want.dx_size[i] + 0x1p-24)
            << heads << ' ' << dtype << " dx " << i;
    }
    if (heads.norm && !heads.without_gain) {
        const auto rows = static_cast<double>(y.size()) / static_cast<double>(heads.dim);
        const auto dq = host(p.weights.q.grad), dk = host(p.weights.k.grad);
        for (std::size_t i = 0; i < width; ++i) {
            ASSERT_LE(std::abs(dq[i] - want.dq[i]), (rows + 16) * small * want.weight_size[0][i] + 1e-30)
                << heads << ' ' << dtype << " weight of queries " << i;
            ASSERT_LE(std::abs(dk[i] - want.dk[i]), (rows + 16) * small * want.weight_size[1][i] + 1e-30)
                << heads << ' ' << dtype << " weight of keys " << i;
        }
    }
    // The values, which follow the heads in each packed row, and with a norm the whole x, do not change.
    const auto after = host(p.memory), gradients_after = host(p.gradient_memory);
    const auto packed = static_cast<std::size_t>(p.memory.size(2)),
               changed = static_cast<std::size_t>(heads.heads() * heads.dim);
    for (std::size_t i = 0; i < after.size(); ++i) {
        if (i % packed >= changed) {
            ASSERT_EQ(gradients_after[i], gradients_before[i]);
        }
        if (i % packed >= changed || heads.norm) {
            ASSERT_EQ(after[i], before[i]);
        }
    }
}

/// Head dims with and without whole vectors, odd head counts, lengths that leave teams without a row.
constexpr HeadSizes head_cases[] = {
    {2, 5, 4, 2, 64, true, true},
    {1, 1, 1, 1, 64, true, true},
    {2, 33, 3, 1, 128, true, true},
    {1, 70, 14, 2, 64, true, true},
    {2, 9, 5, 5, 80, true, true},
    {1, 7, 2, 1, 256, true, true},
    {1, 19, 2, 2, 32, true, true},
    {2, 6, 3, 3, 10, true, true},
    {1, 12, 2, 1, 14, true, false},
    {2, 7, 3, 1, 9, true, false},
    {2, 17, 2, 2, 64, true, false},
    {2, 31, 6, 2, 64, false, true},
    {2, 13, 3, 2, 6, false, true},
    {1, 21, 2, 2, 96, false, true},
    {2, 150, 25, 25, 16, true, true},
    {3, 250, 12, 12, 64, true, true},
    {2, 33, 3, 1, 128, true, true, true},
    {2, 7, 3, 1, 9, true, false, true},
    {1, 70, 14, 2, 64, true, true, false, 1.0},
    {2, 6, 3, 3, 10, true, true, false, 1.0},
};

TEST(HeadTransform, EqualsItsFormulas) {
    const Context ctx(Device::cpu(), 2);
    for (const DType dtype : floating_dtypes)
        for (const HeadSizes& heads : head_cases) expect_exact_heads(ctx, heads, dtype);
}

TEST(HeadTransform, DoesNotDependOnTheNumberOfThreads) {
    std::vector<double> expected;
    for (const int threads : {1, 3}) {
        const Context ctx(Device::cpu(), threads);
        HeadProblem p(ctx, {3, 50, 4, 2, 64, true, true}, DType::bf16);
        p.run(ctx);
        std::vector<double> all = to_host(ctx, p.y);
        for (const Tensor& x : {p.gradient, p.weights.q.grad, p.weights.k.grad})
            for (const double value : to_host(ctx, x)) all.push_back(value);
        if (threads == 1) expected = all;
        EXPECT_EQ(all, expected);
    }
}

TEST(HeadTransform, AccumulatesOrOverwritesTheWeightsGradients) {
    const Context ctx(Device::cpu(), 1);
    HeadProblem once(ctx, {2, 5, 4, 2, 64, true, true}, DType::f64), twice(ctx, once.heads, DType::f64);
    once.run(ctx);
    fill(ctx, twice.weights.k.grad, std::nan(""));
    twice.weights.k.write = GradientWrite::overwrite;
    fill(ctx, twice.weights.q.grad, 1.0);
    twice.run(ctx);
    EXPECT_EQ(to_host(ctx, twice.weights.k.grad), to_host(ctx, once.weights.k.grad));
    const auto sum = to_host(ctx, twice.weights.q.grad), alone = to_host(ctx, once.weights.q.grad);
    // 41 additions in another order, with terms below 8 |d| < 64, as |n| is at most sqrt(64).
    const double bound = 41 * 41 * 64 * std::numeric_limits<double>::epsilon();
    for (std::size_t i = 0; i < sum.size(); ++i) EXPECT_NEAR(sum[i], alone[i] + 1.0, bound);
}

TEST(HeadTransform, RefusesOperandsThatDoNotFit) {
    const Context ctx(Device::cpu(), 1);
    const HeadProblem p(ctx, {2, 5, 4, 2, 64, true, true}, DType::f32);
    const auto with = [&](auto change) {
        HeadProblem changed = p;
        change(changed);
        return [&ctx, changed] { changed.run(ctx); };
    };
    EXPECT_NO_THROW(with([](HeadProblem&) {})());
    EXPECT_THROW(with([](HeadProblem& x) { x.transform.queries = 7; })(), Error);
    EXPECT_THROW(with([](HeadProblem& x) { x.transform.k_weight = {}; })(), Error);
    EXPECT_THROW(with([](HeadProblem& x) { x.rstd = {}; })(), Error);
    EXPECT_THROW(with([](HeadProblem& x) { x.y = x.x; })(), Error);
    EXPECT_THROW(
        with([&](HeadProblem& x) { x.transform.angles = x.rope.angles_from(ctx, 0, 6, DType::f32); })(),
        Error);
    EXPECT_THROW(with([&](HeadProblem& x) { x.transform.q_weight = zeros(ctx, {32}, DType::f32); })(), Error);
    EXPECT_THROW(with([](HeadProblem& x) { x.weights.k = {}; })(), Error);
    const Tensor x = zeros(ctx, {1, 2, 3, 4}, DType::f32);
    EXPECT_THROW(transform_heads(ctx, x, {}, x, {.queries = 2}), Error);
    EXPECT_THROW(differentiate_heads(ctx, x, {}, x, {.queries = 2}), Error);
    EXPECT_THROW(with([&](HeadProblem& h) { h.weights.k.grad = zeros(ctx, {32}, DType::f32); })(), Error);
    EXPECT_THROW(with([&](HeadProblem& h) { h.weights.q.grad = zeros(ctx, {64}, DType::bf16); })(), Error);
}

using HeadTransformOnCuda = test::CudaTest;

TEST_F(HeadTransformOnCuda, EqualsItsFormulas) {
    for (const DType dtype : floating_dtypes)
        for (const HeadSizes& heads : head_cases) expect_exact_heads(gpu(), heads, dtype);
}

/// More rows than a GPU has teams, so that every team has several.
TEST_F(HeadTransformOnCuda, EqualsItsFormulasForManyTokens) {
    for (const HeadSizes& heads :
         {HeadSizes{16, 390, 12, 4, 64, true, true}, HeadSizes{8, 390, 5, 2, 128, true, true},
          HeadSizes{16, 390, 14, 2, 64, false, true}})
        expect_exact_heads(gpu(), heads, DType::bf16);
}

TEST_F(HeadTransformOnCuda, RepeatsToTheBit) {
    std::vector<double> expected;
    for (int i = 0; i < 3; ++i) {
        HeadProblem p(gpu(), {8, 390, 14, 2, 64, true, true}, DType::bf16);
        p.run(gpu());
        std::vector<double> all = to_host(gpu(), p.gradient);
        for (const Tensor& x : {p.weights.q.grad, p.weights.k.grad})
            for (const double value : to_host(gpu(), x)) all.push_back(value);
        if (i == 0) expected = all;
        EXPECT_EQ(all, expected);
    }
}

}  // namespace
}  // namespace gradtile
