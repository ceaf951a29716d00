#pragma once
/// Problems whose sums have thousands of terms; one term is much larger than all others. A single running sum
/// would lose the small terms' last bits, each time in the same direction.
#include <string>
#include <type_traits>

#include <support/sanitized.h>

#include "attention_testing.h"

namespace gradtile::attention::test {

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
