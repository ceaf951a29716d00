#pragma once
/// The layer suite on the GPU.
#include <gradtile/layers/column_sums.h>
#include <support/cuda_test.h>
#include <support/layer_suite.h>

namespace gradtile::test {

class OnCuda : public CudaTest {};

/// Expects a SummedGradient's column sums to equal the sums over its stored elements, within one rounding per
/// addition (at most one addition per row).
inline void expect_column_sums(const Context& gpu, const SummedGradient& gradient) {
    const auto& [dy, made] = gradient;
    const Tensor total = zeros(gpu, {dy.size(-1)}, accumulator_of(dy.dtype()));
    ASSERT_TRUE(made.defined());
    add_column_sums(gpu, {total}, gradient);
    const auto sums = to_host(gpu, total), elements = to_host(gpu, dy);
    const std::size_t columns = sums.size(), rows = elements.size() / columns;
    const double rounding = dy.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24;
    for (std::size_t c = 0; c < columns; ++c) {
        double sum = 0, magnitudes = 0;
        for (std::size_t r = 0; r < rows; ++r) {
            sum += elements[r * columns + c];
            magnitudes += std::abs(elements[r * columns + c]);
        }
        ASSERT_NEAR(sums[c], sum, static_cast<double>(rows) * rounding * magnitudes)
            << "column " << c << " of " << dy;
    }
}

/// Checks a layer on the GPU with dense and strided rows: accuracy against float64 within the CPU bounds,
/// bit-identical repetition, and parameter gradient accumulation.
template <class Make>
void check_layer_on_cuda(const Context& gpu, Make make, const LayerSuite& suite) {
    const Context cpu(Device::cpu(), 2);
    const auto expect_near = [&](const LayerResult& result, const LayerResult& exact, DType dtype,
                                 double rows) {
        const double sum = dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
        const double within = suite.rounded_within * rounding_of_storage(dtype) / sum;
        expect_accurate(result.y, exact.y, dtype, suite.operations + within, "y");
        if (!suite.dx_cancels)
            expect_accurate(result.dx, exact.dx, dtype, 2 * suite.operations + within, "dx");
        expect_accurate(result.gradients, exact.gradients, accumulator_of(dtype),
                        suite.operations + rows + within, "gradient");
    };
    for (const auto& leading : suite.leading) {
        if (leading.size() == 1 && !suite.rank_2) continue;
        const Shape shape = with_width(leading, suite.width);
        const Shape out = output_shape(cpu, make, shape);
        const double rows = static_cast<double>(shape.elements()) / static_cast<double>(suite.width);
        const LayerResult exact = run_layer(cpu, make, numbers(cpu, shape, DType::f64, 1),
                                            numbers(cpu, out, DType::f64, 2), DType::f64);
        LayerResult exact_twice = exact;
        for (double& gradient : exact_twice.gradients) gradient *= 2;
        for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
            SCOPED_TRACE(concat("x ", shape, ' ', dtype));
            const Tensor x = numbers(gpu, shape, dtype, 1), dy = numbers(gpu, out, dtype, 2);
            const LayerResult result = run_layer(gpu, make, x, dy, dtype);
            expect_near(result, exact, dtype, rows);
            EXPECT_TRUE(result == run_layer(gpu, make, x, dy, dtype)) << "two runs";
            expect_near(run_layer(gpu, make, x, dy, dtype, 2), exact_twice, dtype, 2 * rows);
            // Replacing and accumulating products are different kinds of products, so their summation orders
            // may differ.
            for (const int passes : {1, 2})
                expect_near(run_layer(gpu, make, x, dy, dtype, passes, Start::reset),
                            passes == 1 ? exact : exact_twice, dtype, passes * rows);
            if (!suite.strided) continue;
            SCOPED_TRACE("strided rows");
            expect_near(run_layer(gpu, make, strided_copy(gpu, x), strided_copy(gpu, dy), dtype), exact,
                        dtype, rows);
        }
    }
    const Shape none = with_width({2, 0}, suite.width);
    const LayerResult empty_result =
        run_layer(gpu, make, numbers(gpu, none, DType::f32, 1),
                  numbers(gpu, output_shape(cpu, make, none), DType::f32, 2), DType::f32);
    for (const double g : empty_result.gradients) ASSERT_EQ(g, 0.0);
}

}  // namespace gradtile::test
