#pragma once
/// Problems whose sums have thousands of terms; one term is much larger than all others. A single running sum
/// would lose the small terms' last bits, each time in the same direction.
#include <string>
#include <type_traits>

#include <support/sanitized.h>

#include "attention_testing.h"

namespace gradtile::attention::test {

/// Returns x with row `row` along axis 1 multiplied by `factor`.
inline Tensor with_scaled_row(const Context& ctx, const Tensor& x, std::int64_t row, double factor) {
    std::vector<double> numbers = to_host(ctx, x);
    const std::int64_t length = x.size(1), width = x.size(2) * x.size(3);
    for (std::size_t i = 0; i < numbers.size(); ++i)
        if (static_cast<std::int64_t>(i) / width % length == row) numbers[i] *= factor;
    return from_host(ctx, numbers, x.shape(), x.dtype());
}

/// Inputs where one query row's gradient is `height` times the other rows' gradients, which are nearly equal.
/// This row dominates the sums over rows, dK and dV.
inline Inputs heavy_row_inputs(const Context& ctx, const Problem& p, DType dtype, std::int64_t row,
                               double height) {
    Inputs in = random_inputs(ctx, p, dtype);
    constexpr double noise = 0x1p-5;
    std::vector<double> d_o = to_host(ctx, in.d_o), q = to_host(ctx, in.q);
    for (double& e : d_o) e = 1 + noise * e;
    for (double& e : q) e = 1 + noise * e;
    in.q = from_host(ctx, q, in.q.shape(), dtype);
    in.d_o = with_scaled_row(ctx, from_host(ctx, d_o, in.d_o.shape(), dtype), row, height);
    return in;
}

struct LongSum {
    std::string name;
    Problem problem;
    Inputs (*make)(const Context& ctx, const Problem& problem, DType dtype);
    Inputs inputs(const Context& ctx, DType dtype) const { return make(ctx, problem, dtype); }
};

/// Attention sinks at the first and at the last key, and a row whose gradient is much larger than the other
/// rows' gradients.
inline std::vector<LongSum> long_sums() {
    std::vector<LongSum> sums;
    const auto add_sink = [&]<int height>(std::int64_t keys, std::integral_constant<int, height>) {
        if (gradtile::test::sanitized && keys > 8192) return;
        const Problem problem{.queries = 12, .keys = keys, .d_qk = 64, .d_v = 64};
        const std::string which = " of " + std::to_string(keys) + " keys exceeds the others by ";
        sums.push_back({"the first" + which + std::to_string(height), problem,
                        [](const Context& ctx, const Problem& p, DType t) {
                            return sink_inputs(ctx, p, t, 0, height);
                        }});
        sums.push_back({"the last" + which + std::to_string(height), problem,
                        [](const Context& ctx, const Problem& p, DType t) {
                            return sink_inputs(ctx, p, t, p.keys - 1, height);
                        }});
    };
    // exp(-17) is just below 2^-24: if 8192 such terms are added to 1 one by one, all are lost.
    add_sink(8192, std::integral_constant<int, 10>());
    add_sink(8192, std::integral_constant<int, 17>());
    add_sink(8192, std::integral_constant<int, 20>());
    add_sink(16384, std::integral_constant<int, 17>());
    const Problem rows{.queries = 8192, .keys = 12, .d_qk = 64, .d_v = 64};
    sums.push_back({"the gradient of the first of 8192 rows outweighs the others", rows,
                    [](const Context& ctx, const Problem& p, DType t) {
                        return heavy_row_inputs(ctx, p, t, 0,
                                                t == DType::f16 ? 500 : 1e7);  // keeps dP finite
                    }});
    return sums;
}

}  // namespace gradtile::attention::test
