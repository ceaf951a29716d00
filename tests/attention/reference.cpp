#include "reference.h"

#include <algorithm>

namespace gradtile::attention::test {
namespace {

using Vector = std::vector<double>;

std::size_t index(std::int64_t i) {
    return static_cast<std::size_t>(i);
}
double square(double x) {
    return x * x;
}

double dot(std::int64_t n, const double* a, const double* b) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
}

/// Of a product of n terms: a rounding at each partial sum, none of which is larger than the root of the
/// summed squares when signs are random.
double dot_error(std::int64_t n, double u, const double* a, const double* b) {
    double squares = 0;
    for (std::int64_t i = 0; i < n; ++i) squares += square(a[i] * b[i]);
    return u * std::sqrt(static_cast<double>(n) * squares);
}

bool is_visible(const Problem& p, std::int64_t i, std::int64_t j) {
    const std::int64_t diagonal = p.top_left ? i : i + p.keys - p.queries;
    if (p.causal && j > diagonal) return false;
    if (p.window.left >= 0 && j < diagonal - p.window.left) return false;
    if (p.window.right >= 0 && j > diagonal + p.window.right) return false;
    return true;
}

/// Sums of terms that each carry a relative error of their own: the sums, and the squares of the errors.
struct Sums {
    Vector value, squared_error;
    explicit Sums(std::int64_t n) : value(index(n)), squared_error(index(n)) {}
    void add(std::int64_t at, double term, double error) {
        value[index(at)] += term;
        squared_error[index(at)] += square(error);
    }
    /// The root of the summed squares, and the rounding of the stored value.
    Vector floor(double storage) const {
        Vector result(value.size());
        for (std::size_t i = 0; i < value.size(); ++i)
            result[i] = std::sqrt(squared_error[i]) + storage * std::abs(value[i]);
        return result;
    }
};

}  // namespace

Reference reference_of(const Context& ctx, const Problem& p, const Inputs& in, const Roundoff& roundoff) {
    const Vector q = to_host(ctx, in.q), k = to_host(ctx, in.k), v = to_host(ctx, in.v),
                 d_o = to_host(ctx, in.d_o);
    const double scale = p.scale_or_default(), u = roundoff.arithmetic;
    const std::int64_t group = p.heads / p.key_heads;
    Reference r;
    r.value.o.assign(d_o.size(), 0);
    r.value.lse.assign(index(p.batch * p.heads * p.queries), -infinity);
    r.value.d_q.assign(q.size(), 0);
    r.floor = r.value;
    r.floor.lse.assign(r.value.lse.size(), 0);
    Sums d_k(static_cast<std::int64_t>(k.size())), d_v(static_cast<std::int64_t>(v.size()));

    Vector score(index(p.keys));
    for (std::int64_t row = 0; row < p.batch * p.queries * p.heads; ++row) {  // row = (batch, i, head)
        const std::int64_t head = row % p.heads, i = row / p.heads % p.queries,
                           batch = row / p.heads / p.queries;
        const double* const q_i = q.data() + row * p.d_qk;
        const double* const d_o_i = d_o.data() + row * p.d_v;
        // key j of this head, as a row of k and v
        const auto row_of = [&](std::int64_t j) { return (batch * p.keys + j) * p.key_heads + head / group; };

        double largest = 0, maximum = -infinity, sum = 0;
        std::vector<std::int64_t> visible;
        for (std::int64_t j = 0; j < p.keys; ++j) {
            if (!is_visible(p, i, j)) continue;
            visible.push_back(j);
            score[index(j)] = scale * dot(p.d_qk, q_i, k.data() + row_of(j) * p.d_qk);
            largest = std::max(largest, std::abs(score[index(j)]));
            maximum = std::max(maximum, score[index(j)]);
        }
        if (visible.empty()) continue;
        for (const std::int64_t j : visible) sum += std::exp(score[index(j)] - maximum);
        const double lse = maximum + std::log(sum);
        const double p_error = u * (3 * largest + 4);                             // of exp(s - m), relative
        const double p_error_of_lse = u * (3 * largest + 3 * std::abs(lse) + 4);  // of exp(s - LSE)
        const std::int64_t lse_at = (batch * p.heads + head) * p.queries + i;
        r.value.lse[index(lse_at)] = lse;
        r.floor.lse[index(lse_at)] = p_error_of_lse;

        Sums o(p.d_v);
        for (const std::int64_t j : visible) {
            const double p_ij = std::exp(score[index(j)] - lse);
            const double* const v_j = v.data() + row_of(j) * p.d_v;
            for (std::int64_t c = 0; c < p.d_v; ++c) o.add(c, p_ij * v_j[c], p_error * p_ij * v_j[c]);
        }
        const Vector o_floor = o.floor(roundoff.storage + 2 * u);
        std::copy_n(o.value.begin(), p.d_v, r.value.o.begin() + row * p.d_v);
        std::copy_n(o_floor.begin(), p.d_v, r.floor.o.begin() + row * p.d_v);

        // D = dO . O takes over O's errors, and is a sum of its own that does not cancel dP's.
        const double delta = dot(p.d_v, d_o_i, o.value.data());
        double delta_error = square(dot_error(p.d_v, u, d_o_i, o.value.data()));
        for (std::int64_t c = 0; c < p.d_v; ++c) delta_error += square(d_o_i[c] * o_floor[index(c)]);
        delta_error = std::sqrt(delta_error);

        Sums d_q(p.d_qk);
        Vector mean_key(index(p.d_qk));  // what D's error multiplies in dQ: sum over j of P_ij k_j
        for (const std::int64_t j : visible) {
            const double p_ij = std::exp(score[index(j)] - lse);
            const double* const k_j = k.data() + row_of(j) * p.d_qk;
            const double* const v_j = v.data() + row_of(j) * p.d_v;
            const double d_s = p_ij * (dot(p.d_v, d_o_i, v_j) - delta);
            const double d_s_error = std::hypot(p_error_of_lse * d_s, p_ij * dot_error(p.d_v, u, d_o_i, v_j));
            for (std::int64_t c = 0; c < p.d_qk; ++c) {
                d_q.add(c, scale * d_s * k_j[c], scale * d_s_error * k_j[c]);
                mean_key[index(c)] += p_ij * k_j[c];
                d_k.add(row_of(j) * p.d_qk + c, scale * d_s * q_i[c],
                        scale * std::hypot(d_s_error, p_ij * delta_error) * q_i[c]);
            }
            for (std::int64_t c = 0; c < p.d_v; ++c)
                d_v.add(row_of(j) * p.d_v + c, p_ij * d_o_i[c], p_error_of_lse * p_ij * d_o_i[c]);
        }
        const Vector d_q_floor = d_q.floor(roundoff.storage + p_error_of_lse);
        for (std::int64_t c = 0; c < p.d_qk; ++c) {
            r.value.d_q[index(row * p.d_qk + c)] = d_q.value[index(c)];
            r.floor.d_q[index(row * p.d_qk + c)] =
                d_q_floor[index(c)] + std::abs(scale) * delta_error * std::abs(mean_key[index(c)]);
        }
    }
    r.value.d_k = d_k.value;
    r.value.d_v = d_v.value;
    r.floor.d_k = d_k.floor(roundoff.storage);
    r.floor.d_v = d_v.floor(roundoff.storage);
    return r;
}

double largest_error(const Vector& a, const Vector& b) {
    double largest = a.size() == b.size() ? 0 : infinity;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
        if (a[i] == b[i]) continue;
        const double error = std::abs(a[i] - b[i]);
        largest = std::isnan(error) ? infinity : std::max(largest, error);
    }
    return largest;
}

void expect_as_accurate_as(const Result& naive, const Result& result, const Reference& reference,
                           const Factors& factors) {
    const auto expect = [&](const char* name, double factor, Vector Result::*part) {
        const Vector &values = result.*part, &expected = reference.value.*part,
                     &floor = reference.floor.*part;
        ASSERT_EQ(values.size(), expected.size());
        const double of_naive = largest_error(naive.*part, expected);
        std::size_t worst = 0;
        double worst_excess = -infinity;
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (values[i] == expected[i]) continue;
            const double excess = std::abs(values[i] - expected[i]) - factor * of_naive - floor[i];
            if (excess > worst_excess || std::isnan(excess)) {
                worst = i;
                worst_excess = std::isnan(excess) ? infinity : excess;
            }
        }
        EXPECT_LE(worst_excess, 0) << name << ", element " << worst << ": " << values[worst] << ", float64 "
                                   << expected[worst] << "; naive is off by " << of_naive
                                   << " at most, the floor is " << floor[worst];
    };
    expect("O", factors.forward, &Result::o);
    expect("LSE", factors.forward, &Result::lse);
    expect("dQ", factors.gradients, &Result::d_q);
    expect("dK", factors.gradients, &Result::d_k);
    expect("dV", factors.gradients, &Result::d_v);
}

void expect_float64_accuracy(const Result& naive32, const Result& result, const Reference& reference) {
    const auto expect = [&](const char* name, double factor, Vector Result::*part) {
        const Vector& floor = reference.floor.*part;
        const double error32 = largest_error(naive32.*part, reference.value.*part);
        const double largest_floor = floor.empty() ? 0 : *std::max_element(floor.begin(), floor.end());
        EXPECT_LE(largest_error(result.*part, reference.value.*part),
                  (factor + 1) * 0x1p-29 * error32 + 2 * largest_floor)
            << name;
    };
    expect("O", 2, &Result::o);
    expect("LSE", 2, &Result::lse);
    expect("dQ", 3, &Result::d_q);
    expect("dK", 3, &Result::d_k);
    expect("dV", 3, &Result::d_v);
}

}  // namespace gradtile::attention::test
