#pragma once
/// Checks that every layer must pass. A new layer's test is one call:
///
///     TEST(Silu, PassesTheLayerSuite) {
///         test::check_layer([](ParameterStore&) { return Silu(); }, {.width = 37, .operations = 8});
///     }
#include <cmath>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <gradtile/core/gradcheck.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::test {

struct LayerSuite {
    std::int64_t width = 0;  ///< size of x's last axis
    /// float32 roundings per element of y or dx, for the error bound: nested additions in a sum over the
    /// width (width / 32 lanes + 5 reduction steps) plus the formula's operations.
    double operations = 0;
    /// How many intermediate results are rounded to the dtype. None is larger than the largest element in the
    /// layer's result.
    double rounded_within = 0;
    /// x's leading axes, one shape for each test. 3 x 171 rows are enough for several parallel blocks.
    std::vector<std::vector<std::int64_t>> leading = {{1}, {2, 3}, {5, 1, 2}, {3, 171}};
    bool dx_cancels = false;  ///< dx subtracts nearly equal numbers, so its accuracy is not compared
    bool strided = true;      ///< x and dy may be views with strided rows
    bool rank_2 = true;       ///< x may be [N,C]
};

/// Forward and backward results, on the host.
struct LayerResult {
    std::vector<double> y, dx, gradients;
    bool operator==(const LayerResult&) const = default;
};

/// A layer with its store; all parameters are random, norm weights and biases included.
template <class Make>
struct LayerUnderTest {
    ParameterStore store;
    decltype(std::declval<Make>()(std::declval<ParameterStore&>())) layer;

    LayerUnderTest(const Context& ctx, Make& make, DType dtype) : layer(make(store)) {
        store.allocate(ctx, dtype);
        if (store.flat_elements() == 0) return;
        // bfloat16 numbers are exact in every dtype.
        copy(ctx, store.values(), randn(ctx, store.values().shape(), DType::bf16, Seed{11}));
    }
};

/// Initial gradients: zeros, or NaN followed by reset_gradients(), which must not affect the result.
enum class Start { zeroed, reset };

template <class Make>
LayerResult run_layer(const Context& ctx, Make& make, const Tensor& x, const Tensor& dy, DType dtype,
                      int backward_passes = 1, Start start = Start::zeroed) {
    LayerUnderTest<Make> test(ctx, make, dtype);
    if (start == Start::reset) {
        for (const Parameter& parameter : test.store.parameters()) fill(ctx, parameter.grad(), std::nan(""));
        test.store.reset_gradients();
    }
    using Layer = std::remove_reference_t<decltype(test.layer)>;
    LayerResult result;
    typename Layer::Saved saved;
    const Tensor y = test.layer.forward(ctx, x, saved);
    result.y = to_host(ctx, y);
    EXPECT_EQ(y.shape(), dy.shape());
    EXPECT_EQ(y.dtype(), dtype);
    for (int i = 0; i < backward_passes; ++i) {
        const Tensor dx = test.layer.backward(ctx, dy, std::as_const(saved));
        EXPECT_EQ(dx.shape(), x.shape());
        EXPECT_EQ(dx.dtype(), dtype);
        result.dx = to_host(ctx, dx);
    }
    if (test.store.flat_elements() > 0) result.gradients = to_host(ctx, test.store.gradients());
    return result;
}

inline Shape with_width(const std::vector<std::int64_t>& leading, std::int64_t width) {
    std::vector<std::int64_t> axes = leading;
    axes.push_back(width);
    return Shape(std::span<const std::int64_t>(axes));
}

/// The shape of y for an x with `shape`, from a planning run.
template <class Make>
Shape output_shape(const Context& ctx, Make& make, const Shape& shape) {
    LayerUnderTest<Make> test(ctx, make, DType::f32);
    typename std::remove_reference_t<decltype(test.layer)>::Saved saved;
    const Context plan = ctx.plan(Arena::for_planning(ctx.device()));
    return test.layer.forward(plan, empty(plan, shape, DType::f32), saved).shape();
}

/// Random numbers that are exact in every dtype.
inline Tensor numbers(const Context& ctx, const Shape& shape, DType dtype, std::uint64_t seed) {
    return cast(ctx, randn(ctx, shape, DType::bf16, Seed{seed}), dtype);
}

/// Copies x into a slice of wider rows; the elements outside the slice are NaN.
inline Tensor strided_copy(const Context& ctx, const Tensor& x) {
    Shape wide = x.shape();
    wide[-1] += 5;
    const Tensor full = empty(ctx, wide, x.dtype());
    fill(ctx, full, std::nan(""));
    Tensor view = full.slice(-1, 3, x.size(-1));
    copy(ctx, view, x);
    return view;
}

inline double rounding_of_storage(DType dtype) {
    const double sum = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
    return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : sum;
}

/// Expects |value - reference| to be at most one rounding in `dtype` (when the value is stored) plus
/// `roundings` float32 roundings (float64 for float64), relative to the largest element.
inline void expect_accurate(const std::vector<double>& values, const std::vector<double>& reference,
                            DType dtype, double roundings, const char* what) {
    ASSERT_EQ(values.size(), reference.size()) << what;
    double largest = 0;
    for (const double r : reference) largest = std::max(largest, std::abs(r));
    const double sum = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
    const double store = rounding_of_storage(dtype);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double bound = store * std::abs(reference[i]) + roundings * sum * largest;
        ASSERT_LE(std::abs(values[i] - reference[i]), bound)
            << what << ' ' << i << " in " << dtype << ": " << values[i] << ", reference " << reference[i];
    }
}

template <class Make>
void check_gradients(Make& make, const Shape& shape) {
    const Context ctx(Device::cpu(), 2);
    LayerUnderTest<Make> test(ctx, make, DType::f64);
    const auto report = gradient_check_layer(ctx, test.layer, randn(ctx, shape, DType::f64, Seed{5}),
                                             test.store.parameters());
    EXPECT_TRUE(report.ok()) << report;
}

template <class Make>
void check_accumulation(Make& make, const Shape& shape, const Shape& out) {
    const Context ctx(Device::cpu(), 2);
    const Tensor x = numbers(ctx, shape, DType::f64, 1), dy = numbers(ctx, out, DType::f64, 2);
    const LayerResult once = run_layer(ctx, make, x, dy, DType::f64);
    const LayerResult twice = run_layer(ctx, make, x, dy, DType::f64, 2);
    EXPECT_EQ(once.dx, twice.dx) << "activation gradients overwrite";
    double largest = 0;
    for (const double g : once.gradients) largest = std::max(largest, std::abs(g));
    const double bound =
        static_cast<double>(shape.elements()) * 0x1p-53 * largest;  // one rounding per addend
    for (std::size_t i = 0; i < once.gradients.size(); ++i)
        ASSERT_NEAR(twice.gradients[i], 2 * once.gradients[i], bound) << "parameter gradients accumulate";
}

/// After reset_gradients() the first backward pass replaces gradients and later ones accumulate, with the
/// same result as after zeroing.
template <class Make>
void check_replacement(const Context& ctx, Make& make, const Shape& shape, const Shape& out, DType dtype) {
    const Tensor x = numbers(ctx, shape, dtype, 1), dy = numbers(ctx, out, dtype, 2);
    for (const int passes : {1, 2})
        EXPECT_EQ(run_layer(ctx, make, x, dy, dtype, passes, Start::reset).gradients,
                  run_layer(ctx, make, x, dy, dtype, passes).gradients)
            << passes << " backward passes, " << dtype;
}

template <class Make>
void check_accuracy(Make& make, const LayerSuite& suite, const Shape& shape, const Shape& out, DType dtype) {
    const Context ctx(Device::cpu(), 2);
    const LayerResult exact = run_layer(ctx, make, numbers(ctx, shape, DType::f64, 1),
                                        numbers(ctx, out, DType::f64, 2), DType::f64);
    const LayerResult result =
        run_layer(ctx, make, numbers(ctx, shape, dtype, 1), numbers(ctx, out, dtype, 2), dtype);
    const double rows = static_cast<double>(shape.elements()) / static_cast<double>(suite.width);
    const double within = suite.rounded_within * rounding_of_storage(dtype) / 0x1p-24;
    expect_accurate(result.y, exact.y, dtype, suite.operations + within, "y");
    if (!suite.dx_cancels) expect_accurate(result.dx, exact.dx, dtype, 2 * suite.operations + within, "dx");
    expect_accurate(result.gradients, exact.gradients, DType::f32, suite.operations + rows + within,
                    "gradient");
}

template <class Make>
void check_threads(Make& make, const Shape& shape, const Shape& out, DType dtype) {
    const auto run = [&](int threads) {
        const Context ctx(Device::cpu(), threads);
        return run_layer(ctx, make, numbers(ctx, shape, dtype, 1), numbers(ctx, out, dtype, 2), dtype);
    };
    const LayerResult one_thread = run(1);
    EXPECT_TRUE(one_thread == run(2)) << "2 threads, " << dtype;
    EXPECT_TRUE(one_thread == run(3)) << "3 threads, " << dtype;
}

template <class Make>
void check_strides(Make& make, const Shape& shape, const Shape& out) {
    const Context ctx(Device::cpu(), 2);
    const Tensor x = numbers(ctx, shape, DType::f32, 1), dy = numbers(ctx, out, DType::f32, 2);
    const LayerResult dense = run_layer(ctx, make, x, dy, DType::f32);
    const LayerResult strided = run_layer(ctx, make, strided_copy(ctx, x), strided_copy(ctx, dy), DType::f32);
    EXPECT_TRUE(dense == strided);
}

/// A planning run accesses no memory (its addresses are not mapped) and predicts the arena size exactly.
template <class Make>
void check_planning(Make& make, const Shape& shape, const Shape& out) {
    const Context ctx(Device::cpu(), 2);
    LayerUnderTest<Make> test(ctx, make, DType::f32);
    const auto run = [&](const Context& c, const std::shared_ptr<Arena>& arena) {
        typename std::remove_reference_t<decltype(test.layer)>::Saved saved;
        const Tensor x = empty(c, shape, DType::f32), dy = empty(c, out, DType::f32);
        fill(c, x, 0.5);
        fill(c, dy, 0.25);
        const Tensor y = test.layer.forward(c, x, saved);
        const Tensor dx = test.layer.backward(c, dy, std::as_const(saved));
        return arena->peak_bytes();
    };
    const auto planning = Arena::for_planning(Device::cpu());
    const std::size_t planned = run(ctx.plan(planning), planning);
    const auto arena = std::make_shared<Arena>(Device::cpu(), planned);
    EXPECT_EQ(run(ctx.with_allocator(arena), arena), planned);
    EXPECT_EQ(arena->bytes_in_use(), 0u);
}

/// Runs all checks. make(ParameterStore&) returns a layer with Saved, forward and backward.
template <class Make>
void check_layer(Make make, const LayerSuite& suite) {
    const Context ctx(Device::cpu(), 2);
    for (const auto& leading : suite.leading) {
        if (leading.size() == 1 && !suite.rank_2) continue;
        const Shape shape = with_width(leading, suite.width);
        const Shape out = output_shape(ctx, make, shape);
        SCOPED_TRACE(concat("x ", shape));
        check_gradients(make, shape);
        check_accumulation(make, shape, out);
        for (const DType dtype : {DType::f32, DType::bf16}) check_replacement(ctx, make, shape, out, dtype);
        for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
            check_accuracy(make, suite, shape, out, dtype);
        for (const DType dtype : {DType::f32, DType::bf16}) check_threads(make, shape, out, dtype);
        if (suite.strided) check_strides(make, shape, out);
        check_planning(make, shape, out);
    }
    // Without rows nothing is read, and the gradients are zero.
    const Shape none = with_width({2, 0}, suite.width);
    for (const Start start : {Start::zeroed, Start::reset}) {
        const LayerResult empty_result =
            run_layer(ctx, make, numbers(ctx, none, DType::f32, 1),
                      numbers(ctx, output_shape(ctx, make, none), DType::f32, 2), DType::f32, 1, start);
        for (const double g : empty_result.gradients) ASSERT_EQ(g, 0.0);
    }
}

}  // namespace gradtile::test
