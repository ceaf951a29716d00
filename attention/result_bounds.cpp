#include <gradtile/attention/internal/result_bounds.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gradtile/attention/accuracy.h>
#include <gradtile/core/check.h>

namespace gradtile::attention {
namespace {

/// A score's error. The score's terms are products of normal numbers over sqrt(head_dim), and their
/// magnitudes add up to less than sqrt(head_dim).
double score_error(const accuracy::Roundoff& roundoff, std::int64_t head_dim) {
    return roundoff.sum_error(head_dim) * std::sqrt(static_cast<double>(head_dim));
}

}  // namespace

ResultBound result_bound(DType dtype, const Device& device, std::int64_t head_dim, std::int64_t terms) {
    // A result is a sum of terms P V, dS K and so on. Each result element is rounded when it is stored, and P
    // or dS before the product. The terms are independent, so the root mean square of their summed errors is
    // at most a term's relative error times the root mean square of the sum. P also has errors from the
    // exponential, from its exponent (a score) and from some operations. dP - D has an error like a score's,
    // also where it cancels. Both results have such an error.
    const accuracy::Roundoff roundoff = accuracy::roundoff_of(dtype, device);
    const double score = score_error(roundoff, head_dim),
                 relative = roundoff.storage + roundoff.factors + roundoff.exponential +
                            4 * roundoff.arithmetic + score + roundoff.sum_error(terms);
    return {2 * relative, 2 * score};
}

ResultBound lse_bound(DType dtype, const Device& device, std::int64_t head_dim, std::int64_t keys) {
    // The logarithm turns the exponential sum's relative error into an absolute one.
    const accuracy::Roundoff roundoff = accuracy::roundoff_of(dtype, device);
    const double absolute = roundoff.exponential + 8 * roundoff.arithmetic + score_error(roundoff, head_dim) +
                            roundoff.sum_error(keys);
    return {4 * roundoff.arithmetic, 2 * absolute};
}

double fraction_of_bound(const Context& cpu, const Tensor& a, const Tensor& b, const ResultBound& bound) {
    check(a.shape() == b.shape() && a.dtype() == b.dtype(), "fraction_of_bound: the tensors are ", a, " and ",
          b, "; expected equal shapes and dtypes");
    constexpr std::int64_t run = 4096;
    const std::int64_t elements = a.elements(), runs = std::max<std::int64_t>(1, elements / run);
    std::vector<double> fractions(static_cast<std::size_t>(runs), 0.0);
    visit_floating(a.dtype(), [&]<class T>(TypeTag<T>) {
        const T *const x = a.data<T>(), *const y = b.data<T>();
        parallel_for(cpu, runs, [&](std::int64_t i) {
            const std::int64_t begin = i * run, end = i + 1 == runs ? elements : begin + run;
            double difference = 0, size = 0;
            for (std::int64_t j = begin; j < end; ++j) {
                const auto p = convert<double>(x[j]), q = convert<double>(y[j]);
                if (p == q && std::isinf(p)) continue;  // the LSE of a row without keys
                difference += (p - q) * (p - q);
                size += q * q;
            }
            const double allowed = bound.relative * std::sqrt(size) +
                                   bound.absolute * std::sqrt(static_cast<double>(end - begin));
            const double fraction = difference == 0 ? 0 : std::sqrt(difference) / allowed;
            fractions[static_cast<std::size_t>(i)] =
                std::isnan(fraction) ? std::numeric_limits<double>::infinity() : fraction;
        });
    });
    return *std::ranges::max_element(fractions);
}

}  // namespace gradtile::attention
