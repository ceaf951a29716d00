#include <algorithm>
#include <cmath>
#include <numeric>

#include <gradtile/core/internal/master_weights.h>
#include <gradtile/train/optimizers/internal/matrix_optimizer_backend.h>
#include <gradtile/train/optimizers/internal/rounded_moments_cpu.h>

namespace gradtile::cpu {
namespace {

constexpr std::int64_t grain = 1 << 14;

double value_of(const Tensor& scale) {
    return scale.defined() ? *scale.data<double>() : 1.0;
}

template <class Gradient, class Real>
void momentum_range(const Gradient* __restrict gradient, Real* __restrict momentum, Real* __restrict update,
                    std::int64_t n, Real scale, Real mix, bool nesterov) {
    for (std::int64_t i = 0; i < n; ++i) {
        const Real g = convert<Real>(gradient[i]) * scale;
        const Real m = momentum[i] + mix * (g - momentum[i]);
        momentum[i] = m;
        update[i] = nesterov ? m + mix * (g - m) : m;
    }
}

/// Updates a range of a matrix's momentum.
template <class Gradient, class Real>
void update_momentum(const MatrixArrays& arrays, const MatrixOffsets& offsets, const FlatRange& range,
                     const MomentDraws& draws, Real* update, Real scale, Real mix, bool nesterov) {
    const Gradient* const gradient = arrays.gradients.data<Gradient>() + offsets.gradient + range.begin;
    const std::int64_t moment = offsets.momentum + range.begin;
    visit_kept_type<Real>(arrays.momentum.dtype(), [&]<class Moment>(TypeTag<Moment>) {
        Moment* const momentum = arrays.momentum.data<Moment>() + moment;
        if constexpr (std::is_same_v<Moment, Real>) {
            momentum_range(gradient, momentum, update, range.length, scale, mix, nesterov);
        } else {
            with_float_moments(range.length, draws, offsets.element + range.begin, std::array{momentum},
                               [&](std::int64_t begin, std::int64_t n, auto& in_float) {
                                   momentum_range(gradient + begin, in_float[0], update + begin, n, scale,
                                                  mix, nesterov);
                               });
        }
    });
}

/// Computes row `row` of a I + b A + c A^2. At the call `sum` holds this row of A^2, and `power` holds this
/// row of A.
template <class T>
void add_row(const T* __restrict power, T* __restrict sum, std::int64_t n, std::int64_t row,
             const MatrixPolynomial& polynomial) {
    using Real = Accumulator<T>;
    const Real a = static_cast<Real>(polynomial.a), b = static_cast<Real>(polynomial.b),
               c = static_cast<Real>(polynomial.c);
    const Real diagonal = c * convert<Real>(sum[row]) + b * convert<Real>(power[row]) + a;
    for (std::int64_t i = 0; i < n; ++i)
        sum[i] = convert<T>(c * convert<Real>(sum[i]) + b * convert<Real>(power[i]));
    sum[row] = convert<T>(diagonal);
}

template <class Update, class Real, class Weight, class Value>
void apply_range(const Update* __restrict update, Weight* __restrict weight, Value* __restrict value,
                 std::int64_t n, const DecayFactors<Real> decay, Real rate) {
    for (std::int64_t i = 0; i < n; ++i) {
        const Real step = rate * convert<Real>(update[i]);
        const Real updated = decay.decayed(loaded_weight<Real>(weight[i], value[i]), step) - step;
        weight[i] = kept_weight<Weight>(updated);
        if constexpr (!std::is_same_v<Real, Value>) value[i] = value_of_weight<Value>(updated);
    }
}

/// Calls body(matrix, begin, end) for element ranges in each of `count` matrices.
template <class Body>
void for_ranges(const Context& ctx, std::int64_t count, std::int64_t elements, const Body& body) {
    const std::int64_t ranges = ceil_div(elements, grain);
    parallel_for(ctx, count * ranges, [&](std::int64_t block) {
        const std::int64_t begin = block % ranges * grain;
        body(block / ranges, begin, std::min(elements, begin + grain));
    });
}

/// Calls body(matrix, part, begin, end) for the matrix_norm_parts parts in each of `count` matrices.
template <class Body>
void for_parts(const Context& ctx, std::int64_t count, std::int64_t elements, const Body& body) {
    const std::int64_t length = ceil_div(elements, matrix_norm_parts);
    parallel_for(ctx, count * matrix_norm_parts, [&](std::int64_t block) {
        const std::int64_t part = block % matrix_norm_parts, begin = std::min(elements, part * length);
        body(block / matrix_norm_parts, part, begin, std::min(elements, begin + length));
    });
}

template <class T>
double range_sum_of_squares(const T* x, std::int64_t n) {
    double sum = 0.0;
    for (std::int64_t i = 0; i < n; ++i) {
        const auto value = static_cast<double>(convert<Accumulator<T>>(x[i]));
        sum += value * value;
    }
    return sum;
}

/// Calls body(row, begin, end) for the pieces of [begin, end) that lie in one row.
template <class Body>
void for_rows(std::int64_t begin, std::int64_t end, std::int64_t cols, const Body& body) {
    for (std::int64_t first = begin; first < end;) {
        const std::int64_t row = first / cols, last = std::min(end, (row + 1) * cols);
        body(row, first, last);
        first = last;
    }
}

/// Returns the factor that gives a matrix's update the norm that it had before its rows were multiplied.
double norm_ratio(const RowFactors& rows, std::int64_t matrix) {
    const double* const squares = rows.squares.data<double>() + 2 * matrix * matrix_norm_parts;
    double before = 0.0, after = 0.0;
    for (std::int64_t part = 0; part < matrix_norm_parts; ++part) {
        before += squares[2 * part];
        after += squares[2 * part + 1];
    }
    return std::sqrt(before) / (std::sqrt(after) + row_factor_epsilon);
}

/// Subtracts the updates [count, rows, cols] from a group's weights.
template <class Update, class Real, class Weight, class Value>
void apply_updates(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                   const Tensor& updates, const RowFactors& rows, double lr, const MatrixRate& derived) {
    const double step = derived.step(lr);
    const std::int64_t elements = group.shape.elements();
    for_ranges(ctx, group.count(), elements, [&](std::int64_t i, std::int64_t begin, std::int64_t end) {
        const MatrixOffsets& offsets = group.matrices[static_cast<std::size_t>(i)];
        const auto apply = [&](std::int64_t first, std::int64_t last, double factor) {
            apply_range(updates.data<Update>() + i * elements + first,
                        weight_data<Weight>(arrays.weights) + offsets.weight + first,
                        arrays.values.data<Value>() + offsets.value + first, last - first,
                        derived.decay<Real>(lr), static_cast<Real>(factor));
        };
        if (!rows.defined()) return apply(begin, end, step);
        const double ratio = norm_ratio(rows, i);
        const Real* const factors = rows.factors.data<Real>() + i * group.shape[0];
        for_rows(begin, end, group.shape[1], [&](std::int64_t row, std::int64_t first, std::int64_t last) {
            apply(first, last, step * ratio * static_cast<double>(factors[row]));
        });
    });
}

}  // namespace

void matrix_momentum(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                     const Tensor& scale, const MomentumRule& rule, const Tensor& updates,
                     const Tensor& partial) {
    const double factor = value_of(scale);
    const std::int32_t updates_before = *arrays.updates.data<std::int32_t>();
    const double mix = 1.0 - rule.decay_after(updates_before);
    const std::int64_t elements = group.shape.elements();
    const MomentDraws draws = MomentDraws::of(arrays.seed, updates_before + 1);
    double* const sums = partial.data<double>();
    visit_arithmetic_type(updates.dtype(), [&]<class Real>(TypeTag<Real>) {
        visit_kept_type<Real>(arrays.gradients.dtype(), [&]<class Gradient>(TypeTag<Gradient>) {
            for_parts(ctx, group.count(), elements,
                      [&](std::int64_t i, std::int64_t part, std::int64_t begin, std::int64_t end) {
                          const MatrixOffsets& offsets = group.matrices[static_cast<std::size_t>(i)];
                          Real* const update = updates.data<Real>() + i * elements + begin;
                          if (factor == 0.0) {
                              std::fill_n(update, end - begin, Real{0});
                          } else {
                              update_momentum<Gradient>(arrays, offsets, {begin, end - begin}, draws, update,
                                                        static_cast<Real>(factor), static_cast<Real>(mix),
                                                        rule.nesterov);
                          }
                          sums[i * matrix_norm_parts + part] = range_sum_of_squares(update, end - begin);
                      });
        });
    });
}

void decode_momentum(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                     const Tensor& momentum) {
    const std::int64_t elements = group.shape.elements();
    for_ranges(ctx, group.count(), elements, [&](std::int64_t i, std::int64_t begin, std::int64_t end) {
        const MatrixOffsets& offsets = group.matrices[static_cast<std::size_t>(i)];
        const auto* const stored =
            moments_at<MomentBlock>(arrays.momentum, offsets.momentum_block * moment_block + begin);
        load_moments(stored, end - begin, momentum.data<float>() + offsets.momentum + begin, 0);
    });
}

void encode_momentum(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                     const Tensor& scale, const Tensor& momentum) {
    if (value_of(scale) == 0.0) return;
    const std::int64_t elements = group.shape.elements();
    const MomentDraws draws = MomentDraws::of(arrays.seed, *arrays.updates.data<std::int32_t>() + 1);
    for_ranges(ctx, group.count(), elements, [&](std::int64_t i, std::int64_t begin, std::int64_t end) {
        const MatrixOffsets& offsets = group.matrices[static_cast<std::size_t>(i)];
        auto* const stored =
            moments_at<MomentBlock>(arrays.momentum, offsets.momentum_block * moment_block + begin);
        const float* const from = momentum.data<float>() + offsets.momentum + begin;
        // The update reads no stored moments: they are overwritten.
        with_float_moments(end - begin, draws, offsets.element + begin, std::array{stored},
                           [&](std::int64_t first, std::int64_t n, auto& in_float) {
                               std::copy_n(from + first, n, in_float[0]);
                           });
    });
}

void sums_of_squares(const Context& ctx, const Tensor& x, const Tensor& partial) {
    const std::int64_t count = x.size(0), elements = count == 0 ? 0 : x.elements() / count;
    double* const sums = partial.data<double>();
    visit_arithmetic_type(x.dtype(), [&]<class Real>(TypeTag<Real>) {
        for_parts(ctx, count, elements,
                  [&](std::int64_t i, std::int64_t part, std::int64_t begin, std::int64_t end) {
                      sums[i * matrix_norm_parts + part] =
                          range_sum_of_squares(x.data<Real>() + i * elements + begin, end - begin);
                  });
    });
}

void normalize_matrices(const Context& ctx, const Tensor& x, const Tensor& partial, const Tensor& out) {
    const std::int64_t count = x.size(0), elements = count == 0 ? 0 : x.elements() / count;
    const double* const sums = partial.data<double>();
    visit_arithmetic_type(x.dtype(), [&]<class Real>(TypeTag<Real>) {
        visit_floating(out.dtype(), [&]<class T>(TypeTag<T>) {
            for_ranges(ctx, count, elements, [&](std::int64_t i, std::int64_t begin, std::int64_t end) {
                const double* const matrix_sums = sums + i * matrix_norm_parts;
                const double norm =
                    std::sqrt(std::accumulate(matrix_sums, matrix_sums + matrix_norm_parts, 0.0));
                const auto factor = static_cast<Real>(1.0 / (norm + matrix_norm_epsilon));
                const Real* const from = x.data<Real>() + i * elements;
                T* const to = out.data<T>() + i * elements;
                for (std::int64_t k = begin; k < end; ++k) to[k] = convert<T>(from[k] * factor);
            });
        });
    });
}

void add_lower_powers(const Context& ctx, const Tensor& squares, const Tensor& gram,
                      const MatrixPolynomial& polynomial) {
    const std::int64_t n = gram.size(-1);
    visit_floating(gram.dtype(), [&]<class T>(TypeTag<T>) {
        const T* const powers = gram.data<T>();
        T* const sums = squares.data<T>();
        const std::int64_t rows = gram.elements() / std::max<std::int64_t>(1, n);
        parallel_ranges(ctx, rows, std::max<std::int64_t>(1, grain / std::max<std::int64_t>(1, n)),
                        [&](std::int64_t begin, std::int64_t end) {
                            for (std::int64_t row = begin; row < end; ++row)
                                add_row(powers + row * n, sums + row * n, n, row % n, polynomial);
                        });
    });
}

void row_factors(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                 const Tensor& updates, const Tensor& scale, double beta2, const RowFactors& rows) {
    const bool refused = value_of(scale) == 0.0;
    const std::int64_t matrix_rows = group.shape[0], cols = group.shape[1];
    double* const squares = rows.squares.data<double>();
    visit_arithmetic_type(rows.factors.dtype(), [&]<class Real>(TypeTag<Real>) {
        visit_floating(updates.dtype(), [&]<class Update>(TypeTag<Update>) {
            for_parts(ctx, group.count(), matrix_rows,
                      [&](std::int64_t i, std::int64_t part, std::int64_t begin, std::int64_t end) {
                          Real* const moments = arrays.second_moment.data<Real>() +
                                                group.matrices[static_cast<std::size_t>(i)].second_moment;
                          double before = 0.0, after = 0.0;
                          for (std::int64_t row = begin; row < end; ++row) {
                              const std::int64_t index = i * matrix_rows + row;
                              const double sum =
                                  range_sum_of_squares(updates.data<Update>() + index * cols, cols);
                              if (!refused)
                                  moments[row] +=
                                      static_cast<Real>(1.0 - beta2) *
                                      (static_cast<Real>(sum / static_cast<double>(cols)) - moments[row]);
                              const Real factor =
                                  1 / (std::sqrt(moments[row]) + static_cast<Real>(row_factor_epsilon));
                              rows.factors.data<Real>()[index] = factor;
                              before += sum;
                              after += sum * static_cast<double>(factor) * static_cast<double>(factor);
                          }
                          squares[2 * (i * matrix_norm_parts + part)] = before;
                          squares[2 * (i * matrix_norm_parts + part) + 1] = after;
                      });
        });
    });
}

void matrix_apply(const Context& ctx, const MatrixArrays& arrays, const MatrixGroup& group,
                  const Tensor& updates, const RowFactors& rows, const Tensor& rate,
                  const MatrixRate& derived, const UpdateOptions& options) {
    if (value_of(options.gradient_scale) == 0.0) return;
    const double lr = *rate.data<double>();
    visit_floating(arrays.values.dtype(), [&]<class Value>(TypeTag<Value>) {
        using Real = Accumulator<Value>;
        visit_weight_type<Real, Value>(arrays.weights.dtype(), [&]<class Weight>(TypeTag<Weight>) {
            visit_floating(updates.dtype(), [&]<class Update>(TypeTag<Update>) {
                if constexpr (sizeof(Update) <= sizeof(Real))
                    apply_updates<Update, Real, Weight, Value>(ctx, arrays, group, updates, rows, lr,
                                                               derived);
            });
        });
    });
}

}  // namespace gradtile::cpu
