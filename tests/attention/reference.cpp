#include "reference.h"

#include <algorithm>

namespace gradtile::attention::test {
namespace {

void expect_ok(const std::vector<Finding>& findings) {
    for (const Finding& finding : findings) EXPECT_TRUE(finding.ok()) << finding;
}

}  // namespace

void expect_as_accurate_as(const Result& naive, const Result& result, const Reference& reference,
                           const Factors& factors) {
    expect_ok(largest_errors(naive, result, reference, factors));
}

void expect_accurate(DType dtype, const Result& naive, const Result& result, const Reference& reference) {
    expect_ok(largest_errors(naive, result, reference, factors_of(dtype)));
    expect_ok(root_mean_square_errors(naive, result, reference, average_factors_of(dtype)));
}

void expect_no_bias(const Problem& problem, const Result& result, const Reference& reference) {
    expect_ok(biases(problem, result, reference));
}

void expect_float64_accuracy(const Result& naive32, const Result& result, const Reference& reference) {
    const auto expect = [&](const char* name, double factor, std::vector<double> Result::*part) {
        const std::vector<double>& floor = reference.floor.*part;
        const double error32 = largest_difference(naive32.*part, reference.value.*part);
        const double largest_floor = floor.empty() ? 0 : *std::max_element(floor.begin(), floor.end());
        EXPECT_LE(largest_difference(result.*part, reference.value.*part),
                  (factor + 1) * 0x1p-29 * error32 + 2 * largest_floor)
            << name;
    };
    expect("O", 2, &Result::o);
    expect("LSE", 2, &Result::lse);
    expect("dQ", 3, &Result::d_q);
    expect("dK", 3, &Result::d_k);
    expect("dV", 3, &Result::d_v);
    expect("dBias 0", 3, &Result::d_bias_0);
    expect("dBias 1", 3, &Result::d_bias_1);
    expect("dSink", 3, &Result::d_sink);
}

}  // namespace gradtile::attention::test
