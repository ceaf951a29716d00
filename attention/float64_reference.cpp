#include <algorithm>
#include <cmath>
#include <limits>

#include <gradtile/attention/accuracy.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention::accuracy {
namespace {

using Vector = std::vector<double>;
constexpr double infinity = std::numeric_limits<double>::infinity();

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

/// Rounding error of an n-term dot product: one rounding per partial sum. With random signs, a partial sum is
/// expected to be at most the root of the summed squares.
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

/// Bounds the largest error among millions, in units of r, the root of the summed squared bounds. A rounding
/// error is uniform within its bound e, so its standard deviation is e / sqrt(3). A sum over many errors
/// exceeds 5 standard deviations, which is 5 / sqrt(3) r, once in two million elements.
constexpr double largest_error_factor = 3;

/// Errors of one term in a sum.
struct TermError {
    double independent;  ///< errors that are independent of other terms' errors
    double shared;       ///< errors that may have the same sign in all terms
    double factor;       ///< the factor's rounding to 16 bits; independent of other terms
    double same_sign;    ///< bound on the arithmetic's independent errors if all have the same sign
};

/// Sums over terms with errors, and the sums' errors.
struct Sums {
    Vector value, independent_squared, factor_squared, shared, same_sign;
    explicit Sums(std::int64_t n)
        : value(index(n)),
          independent_squared(index(n)),
          factor_squared(index(n)),
          shared(index(n)),
          same_sign(index(n)) {}
    void add(std::int64_t element, double term, const TermError& error) {
        const std::size_t i = index(element);
        value[i] += term;
        independent_squared[i] += square(error.independent);
        factor_squared[i] += square(error.factor);
        shared[i] += std::abs(error.shared);
        same_sign[i] += std::abs(error.same_sign);
    }
    /// One element's error: the root of the summed squares, the shared errors, and the storage rounding.
    double floor(std::size_t i, double storage) const {
        return largest_error_factor * std::sqrt(independent_squared[i]) + shared[i] +
               storage * std::abs(value[i]);
    }
    double root_mean_square(std::size_t i, double storage) const {
        return std::sqrt(independent_squared[i] + factor_squared[i]) + shared[i] +
               storage * std::abs(value[i]);
    }
    double systematic(std::size_t i) const { return same_sign[i] + shared[i]; }
};

/// dK and dV [B * Sk * Hkv] rows, the bias elements' gradients and the sink gradient [Hq]: sums over all rows
/// in the call.
struct CallSums {
    Sums d_k, d_v;
    std::array<Sums, max_biases> d_biases;
    Sums d_sink;
};

class ReferenceEvaluation {
  public:
    ReferenceEvaluation(const Context& ctx, const Problem& problem, const Inputs& in,
                        const Roundoff& roundoff)
        : p_(problem),
          roundoff_(roundoff),
          u_(roundoff.arithmetic),
          scale_(problem.scale_or_default()),
          q_(to_host(ctx, in.q)),
          k_(to_host(ctx, in.k)),
          v_(to_host(ctx, in.v)),
          d_o_(to_host(ctx, in.d_o)),
          biases_{numbers_of(ctx, in.biases[0]), numbers_of(ctx, in.biases[1])},
          alibi_slopes_(numbers_of(ctx, in.alibi_slopes)),
          sink_(numbers_of(ctx, in.sink)),
          d_lse_(numbers_of(ctx, in.d_lse)),
          row_ranges_(numbers_of(ctx, in.row_ranges)),
          dropout_(
              dropout_draws("accuracy", problem.dropout_p, problem.options().dropout_key, Device::cpu())),
          sums_{Sums(std::ssize(k_)),
                Sums(std::ssize(v_)),
                {Sums(std::ssize(biases_[0])), Sums(std::ssize(biases_[1]))},
                Sums(std::ssize(sink_))},
          row_sum_error_(roundoff.sum_error(problem.queries * (problem.heads / problem.key_heads))) {
        r_.value.o.assign(d_o_.size(), 0);
        r_.value.lse.assign(index(p_.batch * p_.heads * p_.queries), -infinity);
        r_.value.d_q.assign(q_.size(), 0);
        r_.floor = r_.value;
        r_.floor.lse.assign(r_.value.lse.size(), 0);
        r_.root_mean_square = r_.systematic = r_.floor;
        r_.d_q_by_d.assign(q_.size(), 0);
    }

    Reference evaluate() {
        for (std::int64_t row = 0; row < p_.batch * p_.queries * p_.heads; ++row) evaluate_row(row);
        const auto finish = [&](const Sums& sums, Vector Result::*part, double storage) {
            r_.value.*part = sums.value;
            for (std::size_t i = 0; i < sums.value.size(); ++i) {
                (r_.floor.*part).push_back(sums.floor(i, storage));
                (r_.root_mean_square.*part).push_back(sums.root_mean_square(i, storage));
                (r_.systematic.*part).push_back(sums.systematic(i));
            }
        };
        finish(sums_.d_k, &Result::d_k, roundoff_.storage);
        finish(sums_.d_v, &Result::d_v, roundoff_.storage);
        constexpr double float32_roundoff = 0x1p-24;
        finish(sums_.d_biases[0], &Result::d_bias_0, float32_roundoff);
        finish(sums_.d_biases[1], &Result::d_bias_1, float32_roundoff);
        finish(sums_.d_sink, &Result::d_sink, float32_roundoff);
        return std::move(r_);
    }

  private:
    /// One query row (batch, i, head) and the keys that it sees.
    struct Row {
        std::int64_t index, head, i, batch;
        const double *q, *d_o;
        std::vector<std::int64_t> visible = {};
        Vector p = {};        ///< the visible keys' probabilities, before dropout
        Vector dropout = {};  ///< factors for P: 0 or the kept elements' scale
        Vector derivative = {},
               derivative_error = {};  ///< derivatives of scores by products, and their errors
        /// Relative errors in P computed from the running maximum, and in P computed from LSE.
        Vector p_error = {}, p_error_of_lse = {};
        double lse_error = 0;  ///< the p_error_of_lse part that all keys in the row share
        double sum_error = 0;  ///< relative error in a sum over the row's keys
        double delta = 0;      ///< D = dO . O - dLSE
        double delta_error = 0, delta_error_shared = 0, delta_error_same_sign = 0;
    };

    /// Row index in k and v for key j in the row's K/V head.
    std::int64_t key_index(const Row& row, std::int64_t j) const {
        return (row.batch * p_.keys + j) * p_.key_heads + row.head / (p_.heads / p_.key_heads);
    }

    bool is_in_row_ranges(const Row& row, std::int64_t j) const {
        if (row_ranges_.empty()) return true;
        const std::int64_t batch = p_.row_ranges[0] == 1 ? 0 : row.batch,
                           head = p_.row_ranges[1] == 1 ? 0 : row.head;
        const double* const ends = row_ranges_.data() + ((batch * p_.row_ranges[1] + head) * p_.keys + j) * 4;
        const auto i = static_cast<double>(row.i);
        return (ends[0] <= i && i < ends[1]) || (ends[2] <= i && i < ends[3]);
    }

    /// The terms' errors are absolute score errors, so they differ from P's errors in rows where a large bias
    /// cancels the product differences.
    struct Score {
        double value, error;
        double derivative, derivative_error;  ///< d score / d product, and its error
    };
    /// softcap * tanh(scale q.k / softcap) - slope |i + off - j| + biases.
    Score score_of(const Row& row, std::int64_t j) const {
        const double* const k = k_.data() + key_index(row, j) * p_.d_qk;
        Score score{.value = scale_ * dot(p_.d_qk, row.q, k),
                    .error = std::abs(scale_) * dot_error(p_.d_qk, u_, row.q, k),
                    .derivative = 1,
                    .derivative_error = 0};
        score.error += 2 * u_ * std::abs(score.value);  // roundings in the scale and its product
        if (p_.softcap != 0) {
            constexpr double roundings = 8;  // roundings in the quotient, tanh and the product
            const double t = std::tanh(score.value / p_.softcap);
            score.derivative = 1 - t * t;
            score.derivative_error = 2 * std::abs(t) * score.derivative * score.error / p_.softcap +
                                     roundings * u_ * (score.derivative + std::abs(t));
            // Kernels in 16 bits may compute tanh as 1 - 2 / (1 + exp): the error does not become small with
            // t.
            const double t_error = roundings * u_ * (roundoff_.factors > 0 ? 2 : std::abs(t));
            score.error = score.derivative * score.error + p_.softcap * t_error;
            score.value = p_.softcap * t;
        }
        // Terms are added in the arithmetic's precision: next to -1e9, float32 loses the product, and -inf
        // hides the key. The new error is the largest change in the sum when the score moves by `spread`.
        const auto add = [&](double term) {
            const double spread = largest_error_factor * score.error, sum = rounded(score.value + term);
            const double error = std::max(rounded(score.value + spread + term) - sum,
                                          sum - rounded(score.value - spread + term));
            score.error = std::isfinite(sum) ? error : 0;
            score.value = sum;
        };
        if (p_.alibi) {
            const std::int64_t diagonal = p_.top_left ? row.i : row.i + p_.keys - p_.queries;
            add(-alibi_slopes_[index(row.head)] * static_cast<double>(std::abs(diagonal - j)));
        }
        for (std::size_t n = 0; n < max_biases; ++n)
            if (!biases_[n].empty()) add(biases_[n][index(bias_element(n, row, j))]);
        return score;
    }

    /// Rounds to the arithmetic's precision and range.
    double rounded(double x) const { return u_ == 0x1p-53 ? x : static_cast<double>(static_cast<float>(x)); }

    /// Index of the element in bias n that is added to a score.
    std::int64_t bias_element(std::size_t n, const Row& row, std::int64_t j) const {
        const Shape& shape = p_.biases[n];
        const std::int64_t batch = shape[0] == p_.batch ? row.batch
                                   : shape[0] == 1      ? 0
                                                        : row.batch / p_.batch_divisor;
        const std::int64_t head = shape[1] == 1 ? 0 : row.head, i = shape[2] == 1 ? 0 : row.i;
        return ((batch * shape[1] + head) * shape[2] + i) * shape[3] + (shape[3] == 1 ? 0 : j);
    }

    double dropout_factor(const Row& row, std::int64_t j) const {
        if (dropout_.threshold == 0) return 1;
        const Philox::Counter words =
            Philox::draw({static_cast<std::uint32_t>(j / 8), static_cast<std::uint32_t>(row.i),
                          static_cast<std::uint32_t>(row.head),
                          static_cast<std::uint32_t>(dropout_.first_sample + row.batch)},
                         dropout_.key());
        const std::uint32_t bits = words[index(j % 8 / 2)] >> (16 * (j % 2)) & 0xffffu;
        return bits < dropout_.threshold ? 0 : dropout_.scale;
    }

    void evaluate_row(std::int64_t row_index) {
        Row row{.index = row_index,
                .head = row_index % p_.heads,
                .i = row_index / p_.heads % p_.queries,
                .batch = row_index / p_.heads / p_.queries,
                .q = q_.data() + row_index * p_.d_qk,
                .d_o = d_o_.data() + row_index * p_.d_v};
        const double sink = sink_.empty() ? -infinity : sink_[index(row.head)];
        double largest = sink > -infinity ? std::abs(sink) : 0, maximum = sink, sum = 0;
        for (std::int64_t j = 0; j < p_.keys; ++j) {
            if (!is_visible(p_, row.i, j) || !is_in_row_ranges(row, j)) continue;
            const Score score = score_of(row, j);
            if (score.value == -infinity) continue;
            row.visible.push_back(j);
            row.p.push_back(score.value);
            row.dropout.push_back(dropout_factor(row, j));
            row.derivative.push_back(score.derivative);
            row.derivative_error.push_back(score.derivative_error);
            row.p_error.push_back(score.error);
            largest = std::max(largest, std::abs(score.value));
            maximum = std::max(maximum, score.value);
        }
        if (maximum == -infinity) return;
        for (const double s : row.p) sum += std::exp(s - maximum);
        sum += std::exp(sink - maximum);
        const double log_sum = std::log(sum), lse = maximum + log_sum;
        row.sum_error = roundoff_.sum_error(std::ssize(row.visible));
        set_probabilities(row, maximum, log_sum, largest);
        const std::size_t lse_at = index((row.batch * p_.heads + row.head) * p_.queries + row.i);
        r_.value.lse[lse_at] = lse;
        r_.floor.lse[lse_at] = r_.root_mean_square.lse[lse_at] = r_.systematic.lse[lse_at] =
            row.lse_error + row.sum_error + u_ * 3 * (std::abs(lse) + std::abs(maximum));
        add_output(row);
        const double sink_exponent = sink - maximum - log_sum;
        add_sink_gradient(row, std::exp(sink_exponent), row.lse_error + u_ * 2 * std::abs(sink_exponent));
        add_gradients(row);
    }

    /// Replaces the scores in row.p by probabilities, and the score errors in row.p_error by probability
    /// errors.
    void set_probabilities(Row& row, double maximum, double log_sum, double largest) const {
        const double row_number_roundoff = has_biases() ? 0 : roundoff_.row_numbers;
        double average = 0;  // average exponent error, weighted by P
        for (std::size_t n = 0; n < row.p.size(); ++n) {
            const double below_maximum = row.p[n] - maximum;
            row.p[n] = std::exp(below_maximum - log_sum);
            row.p_error[n] += u_ * 3 * std::abs(below_maximum);
            average += row.p[n] * row.p_error[n];
        }
        average += u_ * 4 + roundoff_.exponential + row_number_roundoff * largest;
        row.lse_error = average + row_number_roundoff * std::abs(maximum + log_sum);
        row.p_error_of_lse.resize(row.p.size());
        for (std::size_t n = 0; n < row.p.size(); ++n) {
            const double below_lse = row.p[n] == 0 ? 0 : std::abs(std::log(row.p[n]));
            row.p_error_of_lse[n] = row.p_error[n] + row.lse_error + u_ * 2 * below_lse;
            row.p_error[n] += average;
        }
    }
    bool has_biases() const { return !biases_[0].empty() || !biases_[1].empty(); }

    /// Computes O with its errors, and the resulting error in D = dO . O. This error does not cancel dP's
    /// error, because D and dP are rounded separately.
    void add_output(Row& row) {
        Sums o(p_.d_v);
        for (std::size_t n = 0; n < row.visible.size(); ++n) {
            const double* const v = v_.data() + key_index(row, row.visible[n]) * p_.d_v;
            for (std::int64_t c = 0; c < p_.d_v; ++c) {
                const double term = row.dropout[n] * row.p[n] * v[c];
                // sum_error counts twice: in the numerator and in the denominator.
                o.add(c, term,
                      {row.p_error[n] * term, 2 * row.sum_error * term, roundoff_.factors * term,
                       row.p_error[n] * term});
            }
        }
        const double d_lse =
            d_lse_.empty() ? 0 : d_lse_[index((row.batch * p_.heads + row.head) * p_.queries + row.i)];
        row.delta = dot(p_.d_v, row.d_o, o.value.data()) - d_lse;
        const double product_error =
            dot_error(p_.d_v, u_, row.d_o, o.value.data()) + (d_lse == 0 ? 0 : u_ * std::abs(row.delta));
        double squares = square(product_error), same_sign = product_error;
        for (std::int64_t c = 0; c < p_.d_v; ++c) {
            const std::size_t i = index(c), element = index(row.index * p_.d_v + c);
            const double division_error = 2 * u_ * std::abs(o.value[i]);
            r_.value.o[element] = o.value[i];
            r_.floor.o[element] = o.floor(i, roundoff_.storage) + division_error;
            r_.root_mean_square.o[element] = o.root_mean_square(i, roundoff_.storage) + division_error;
            r_.systematic.o[element] = o.systematic(i) + division_error;
            squares += square(row.d_o[c] * r_.root_mean_square.o[element]);
            same_sign += std::abs(row.d_o[c]) * r_.systematic.o[element];
        }
        row.delta_error = std::sqrt(squares);
        row.delta_error_shared = row.sum_error * std::abs(row.delta);
        row.delta_error_same_sign = same_sign + row.delta_error_shared;
    }

    /// Biases receive dS, whose sum may have as many terms as there are rows, heads and batches.
    void add_bias_gradients(const Row& row, std::size_t n, double d_score, double d_score_error) {
        const double p = row.p[n];
        const double terms = static_cast<double>(p_.batch * p_.heads * p_.queries * p_.keys);
        for (std::size_t b = 0; b < max_biases; ++b) {
            if (biases_[b].empty()) continue;
            const double terms_of_element = terms / static_cast<double>(biases_[b].size());
            const double error_of_delta = sums_keys(b) ? 0 : p * row.delta_error;
            sums_.d_biases[b].add(
                bias_element(b, row, row.visible[n]), d_score,
                {std::hypot(d_score_error, error_of_delta),
                 (2 * row.sum_error + u_ * terms_of_element) * std::abs(d_score) + p * row.delta_error_shared,
                 std::sqrt(2.0) * roundoff_.factors * d_score,
                 d_score_error + p * row.delta_error_same_sign});
        }
    }

    bool sums_keys(std::size_t b) const { return p_.biases[b][3] == 1; }
    /// All keys in a row have the same D. So in a sum over keys D's errors add up: they are not independent.
    void add_errors_of_delta(const Row& row) {
        double sum = 0;
        for (const double p : row.p) sum += p;
        for (std::size_t b = 0; b < max_biases; ++b)
            if (!biases_[b].empty() && sums_keys(b))
                sums_.d_biases[b].add(bias_element(b, row, 0), 0, {sum * row.delta_error, 0, 0, 0});
    }

    /// dSink = -(sum over rows of exp(sink - LSE) D).
    void add_sink_gradient(const Row& row, double p_of_sink, double p_error) {
        if (sink_.empty()) return;
        sums_.d_sink.add(row.head, -p_of_sink * row.delta,
                         {std::hypot(p_error * p_of_sink * row.delta, p_of_sink * row.delta_error),
                          2 * row.sum_error * p_of_sink * row.delta + p_of_sink * row.delta_error_shared, 0,
                          p_of_sink * row.delta_error_same_sign});
    }

    void add_gradients(const Row& row) {
        Sums d_q(p_.d_qk);
        // sum_j P_ij k_j. The derivative d dQ / d D is -scale times this sum.
        Vector mean_key(index(p_.d_qk));
        for (std::size_t n = 0; n < row.visible.size(); ++n) {
            const std::int64_t key = key_index(row, row.visible[n]);
            const double p = row.p[n];
            const double *const k = k_.data() + key * p_.d_qk, *const v = v_.data() + key * p_.d_v;
            const double kept = row.dropout[n];
            const double d_score = p * (kept * dot(p_.d_v, row.d_o, v) - row.delta);
            const double d_score_error =
                std::hypot(row.p_error_of_lse[n] * d_score, p * kept * dot_error(p_.d_v, u_, row.d_o, v));
            add_bias_gradients(row, n, d_score, d_score_error);
            const double derivative = row.derivative[n];
            const double d_s = d_score * derivative;
            const double d_s_error =
                std::hypot(derivative * d_score_error, row.derivative_error[n] * d_score);
            const double p_of_delta = p * derivative;                        // the factor for an error in D
            const double factor = std::sqrt(2.0) * roundoff_.factors * d_s;  // roundings in P and dS
            const double shared = 2 * row.sum_error * d_s;
            for (std::int64_t c = 0; c < p_.d_qk; ++c) {
                const double at_k = scale_ * k[c], at_q = scale_ * row.q[c];
                d_q.add(c, d_s * at_k, {d_s_error * at_k, shared * at_k, factor * at_k, d_s_error * at_k});
                mean_key[index(c)] += p_of_delta * k[c];
                sums_.d_k.add(key * p_.d_qk + c, d_s * at_q,
                              {std::hypot(d_s_error, p_of_delta * row.delta_error) * at_q,
                               (std::abs(shared) + row_sum_error_ * std::abs(d_s) +
                                p_of_delta * row.delta_error_shared) *
                                   at_q,
                               factor * at_q, (d_s_error + p_of_delta * row.delta_error_same_sign) * at_q});
            }
            for (std::int64_t c = 0; c < p_.d_v; ++c) {
                const double term = kept * p * row.d_o[c];
                sums_.d_v.add(key * p_.d_v + c, term,
                              {row.p_error_of_lse[n] * term, (row.sum_error + row_sum_error_) * term,
                               roundoff_.factors * term, row.p_error_of_lse[n] * term});
            }
        }
        add_errors_of_delta(row);
        for (std::int64_t c = 0; c < p_.d_qk; ++c) {
            const std::size_t i = index(c), element = index(row.index * p_.d_qk + c);
            const double by_delta = std::abs(scale_ * mean_key[i]);
            const double lse_error = row.lse_error * std::abs(d_q.value[i]);
            const double shared = row.delta_error_shared * by_delta + lse_error;
            r_.value.d_q[element] = d_q.value[i];
            r_.floor.d_q[element] =
                d_q.floor(i, roundoff_.storage) + largest_error_factor * row.delta_error * by_delta + shared;
            r_.root_mean_square.d_q[element] =
                d_q.root_mean_square(i, roundoff_.storage) + row.delta_error * by_delta + shared;
            r_.systematic.d_q[element] = d_q.systematic(i) + row.delta_error_same_sign * by_delta + lse_error;
            r_.d_q_by_d[element] = -scale_ * row.delta * mean_key[i];
        }
    }

    const Problem& p_;
    const Roundoff& roundoff_;
    const double u_, scale_;
    const Vector q_, k_, v_, d_o_;
    const std::array<Vector, max_biases> biases_;
    const Vector alibi_slopes_, sink_, d_lse_, row_ranges_;
    const DropoutDraws dropout_;
    CallSums sums_;
    const double row_sum_error_;
    Reference r_;
};

}  // namespace

Reference float64_reference(const Context& ctx, const Problem& problem, const Inputs& inputs,
                            const Roundoff& roundoff) {
    return ReferenceEvaluation(ctx, problem, inputs, roundoff).evaluate();
}

}  // namespace gradtile::attention::accuracy
