#include <gradtile/core/gradcheck.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <ostream>

#include <gradtile/core/philox.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

using Tensors = Differentiable::Tensors;
constexpr double step_ratio = 0x1p-12;
constexpr double conclusive_fraction = 1e-3;

/// The sum L over all outputs with random weights w, and how much L differs between two points.
class WeightedSum {
  public:
    WeightedSum(const Context& ctx, const Tensors& outputs, std::uint64_t seed) {
        for (std::size_t i = 0; i < outputs.size(); ++i) {
            weights_.push_back(
                randn(ctx, outputs[i].shape(), outputs[i].dtype(), Seed{mix_seed(seed, 1000 + i)}));
            weight_values_.push_back(to_host(ctx, weights_.back()));
            const auto values = to_host(ctx, outputs[i]);
            double size = 0.0;
            for (const double value : values)
                if (std::isfinite(value)) size = std::max(size, std::abs(value));
            sizes_.push_back(size);
            epsilons_.push_back(outputs[i].dtype() == DType::f64 ? 0x1p-53 : 0x1p-24);
        }
    }
    const Tensors& gradients() const { return weights_; }

    struct Difference {
        double value = 0.0;  ///< L(plus) - L(minus)
        double size = 0.0;   ///< weighted sum of the changed outputs' sizes
        double noise = 0.0;  ///< the error of `value` if each changed output has one rounding error
    };
    /// Subtracts output by output, so that outputs that do not depend on the input cancel exactly.
    Difference difference(const Context& ctx, const Tensors& plus, const Tensors& minus) const {
        Difference result;
        for (std::size_t i = 0; i < plus.size(); ++i) {
            const auto up = to_host(ctx, plus[i]), down = to_host(ctx, minus[i]);
            for (std::size_t e = 0; e < up.size(); ++e) {
                if (up[e] == down[e]) continue;
                result.value += weight_values_[i][e] * (up[e] - down[e]);
                const double size = std::abs(weight_values_[i][e]) * sizes_[i];
                result.size += size;
                result.noise += size * epsilons_[i];
            }
        }
        return result;
    }

  private:
    Tensors weights_;
    std::vector<std::vector<double>> weight_values_;
    std::vector<double> sizes_, epsilons_;
};

/// One perturbation of the input under test.
struct Probe {
    std::int64_t element;  ///< index; -1: all elements, element i in the direction signs[i]
    double step;
};

class Checker {
  public:
    Checker(const Context& ctx, const Differentiable& function, const Tensors& inputs,
            const GradientCheckOptions& options)
        : ctx_(ctx),
          function_(function),
          inputs_(inputs),
          options_(options),
          sum_(ctx, function.forward(ctx, inputs), options.seed) {}

    const WeightedSum& sum() const { return sum_; }

    GradientReport::Input check_input(const std::string& name, const Tensor& x,
                                      const std::vector<double>& analytic, double added_to,
                                      std::uint64_t site) const;

  private:
    struct Derivative {
        double value = 0.0, bound = 0.0, sensitivity = 0.0;
    };
    Derivative differentiate(const Tensor& x, const std::vector<double>& values,
                             const std::vector<double>& signs, const Probe& probe) const;
    Tensors forward_at(const Tensor& x, std::vector<double> values, const std::vector<double>& signs,
                       const Probe& probe, double shift) const;

    const Context& ctx_;
    const Differentiable& function_;
    const Tensors& inputs_;
    const GradientCheckOptions& options_;
    WeightedSum sum_;
};

Shape index_of(const Shape& shape, std::int64_t element) {
    Shape index = shape;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
        index[axis] = element < 0 ? -1 : element % shape[axis];
        if (element >= 0) element /= shape[axis];
    }
    return index;
}

void set_element(const Context& ctx, const Tensor& x, std::int64_t element, double value) {
    const Shape index = index_of(x.shape(), element);
    Tensor one = x;
    for (int axis = 0; axis < x.rank(); ++axis) one = one.slice(axis, index[axis], 1);
    fill(ctx, one, value);
}

Tensors Checker::forward_at(const Tensor& x, std::vector<double> values, const std::vector<double>& signs,
                            const Probe& probe, double shift) const {
    if (probe.element >= 0) {
        set_element(ctx_, x, probe.element, values[static_cast<std::size_t>(probe.element)] + shift);
    } else {
        for (std::size_t i = 0; i < values.size(); ++i) values[i] += signs[i] * shift;
        copy(ctx_, x, from_host(ctx_, values, x.shape(), DType::f64));
    }
    return function_.forward(ctx_, inputs_);
}

Checker::Derivative Checker::differentiate(const Tensor& x, const std::vector<double>& values,
                                           const std::vector<double>& signs, const Probe& probe) const {
    double slope[2] = {}, size = 0.0, noise = 0.0;  // slopes for steps h and 2h
    for (const int i : {0, 1}) {
        const double h = probe.step * (i + 1);
        const Tensors plus = forward_at(x, values, signs, probe, h);
        const Tensors minus = forward_at(x, values, signs, probe, -h);
        const WeightedSum::Difference difference = sum_.difference(ctx_, plus, minus);
        // The width that was really used, because x + h is rounded.
        double width = 2.0 * h;
        if (probe.element >= 0) {
            const double value = values[static_cast<std::size_t>(probe.element)];
            width = (value + h) - (value - h);
        }
        slope[i] = difference.value / width;
        // Takes the larger value from both steps: due to rounding, one step may leave an output unchanged
        // that the other step changes.
        size = std::max(size, difference.size);
        noise = std::max(noise, difference.noise);
    }
    const double truncation = std::abs(slope[1] - slope[0]) / 3.0;
    return {.value = (4.0 * slope[0] - slope[1]) / 3.0,
            .bound = truncation + options_.roundings * noise / probe.step,
            .sensitivity = size * step_ratio / probe.step};
}

GradientReport::Input Checker::check_input(const std::string& name, const Tensor& x,
                                           const std::vector<double>& analytic, double added_to,
                                           std::uint64_t site) const {
    GradientReport::Input report{.name = name, .shape = x.shape()};
    const std::vector<double> values = to_host(ctx_, x);
    const auto count = static_cast<std::int64_t>(values.size());
    if (count == 0) return report;

    double squares = 0.0, largest = 0.0;
    for (const double value : values) squares += value * value;
    for (const double value : analytic) largest = std::max(largest, std::abs(value));
    const double rms = std::sqrt(squares / static_cast<double>(count));
    const double scale = rms > 0.0 ? rms : 1.0;

    // The sample is the first options.elements indices in a random order, made by sorting the indices by
    // random words.
    std::vector<std::int64_t> order(values.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::vector<double> signs(values.size());
    std::vector<std::uint64_t> words(values.size());
    const Philox::Key key = philox_key(mix_seed(options_.seed, site));
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto word =
            Philox::draw({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), 0, 0}, key);
        words[i] = std::uint64_t{word[0]} << 32 | word[1];
        signs[i] = (word[2] & 1u) != 0 ? 1.0 : -1.0;
    }
    std::vector<Probe> probes;
    if (count > options_.elements) {
        std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
            return words[static_cast<std::size_t>(a)] < words[static_cast<std::size_t>(b)];
        });
        order.resize(static_cast<std::size_t>(options_.elements));
        std::sort(order.begin(), order.end());
        // All elements change at once, each by less, so that the output changes as much as for one element.
        probes.push_back({-1, step_ratio * scale / std::sqrt(static_cast<double>(count))});
    }
    for (const std::int64_t element : order)
        probes.push_back(
            {element, step_ratio * std::max(scale, std::abs(values[static_cast<std::size_t>(element)]))});

    double worst = -1.0;  // error / bound
    for (const Probe& probe : probes) {
        Derivative numeric = differentiate(x, values, signs, probe);
        if (probe.element >= 0) {
            set_element(ctx_, x, probe.element, values[static_cast<std::size_t>(probe.element)]);
        } else {
            copy(ctx_, x, from_host(ctx_, values, x.shape(), DType::f64));
        }

        double expected = 0.0, own_size = largest + added_to;
        if (probe.element >= 0) {
            expected = analytic[static_cast<std::size_t>(probe.element)];
        } else {
            for (std::size_t i = 0; i < values.size(); ++i) expected += signs[i] * analytic[i];
            own_size *= static_cast<double>(count);
        }
        numeric.bound += options_.roundings * 0x1p-53 * own_size;
        double error = std::abs(expected - numeric.value);
        if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
        const bool within = error <= numeric.bound;
        const double size = std::max({largest, std::abs(numeric.value), numeric.sensitivity});
        ++report.checked;
        report.ok &= within;
        report.inconclusive += within && !(numeric.bound <= conclusive_fraction * size);
        const double ratio = error == 0.0 ? 0.0 : error / numeric.bound;
        if (!(ratio <= worst)) {
            worst = ratio;
            report.place = index_of(x.shape(), probe.element);
            report.analytic = expected;
            report.numeric = numeric.value;
            report.error = error;
            report.bound = numeric.bound;
        }
    }
    report.ok &= 10 * report.inconclusive <= report.checked;
    return report;
}

void check_perturbable(const std::string& name, const Tensor& x) {
    check(x.dtype() == DType::f64, "gradient_check: ", name, " is ", x.dtype(),
          "; finite differences need float64");
    for (int axis = 0; axis < x.rank(); ++axis)
        check(x.size(axis) <= 1 || x.stride(axis) != 0, "gradient_check: ", name, " ", x.shape(),
              " with strides ", x.strides(), " repeats elements; check the tensor that it was expanded from");
}

/// The gradient written by overwriting must equal the gradient written by adding, except for rounding.
void check_replacement(GradientReport::Input& report, const std::vector<double>& replaced,
                       const std::vector<double>& added, double bound) {
    for (std::size_t i = 0; i < added.size() && report.ok; ++i) {
        const double error = std::abs(replaced[i] - added[i]);
        report.ok = error <= bound;
        if (report.ok) continue;
        report.place = index_of(report.shape, static_cast<std::int64_t>(i));
        report.analytic = replaced[i];
        report.numeric = added[i];
        report.error = error;
        report.bound = bound;
    }
}

}  // namespace

GradientReport gradient_check(const Context& ctx, const Differentiable& function, const Tensors& inputs,
                              std::span<const Parameter> parameters, const GradientCheckOptions& options) {
    const auto name_of_input = [&](std::size_t i) {
        return i < options.names.size() ? options.names[i] : concat("input ", i);
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) check_perturbable(name_of_input(i), inputs[i]);
    for (const Parameter& parameter : parameters) check_perturbable(parameter.name(), parameter.value());

    const Checker checker(ctx, function, inputs, options);
    constexpr double already_there = 1.0;
    for (const Parameter& parameter : parameters) fill(ctx, parameter.grad(), already_there);
    const Tensors gradients = function.backward(ctx, inputs, checker.sum().gradients());
    check(gradients.size() == inputs.size(), "gradient_check: backward returned ", gradients.size(),
          " gradients for ", inputs.size(), " inputs");
    std::vector<std::vector<double>> analytic;  // copied before the next forward, which may reuse the memory
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (gradients[i].defined())
            check(gradients[i].shape() == inputs[i].shape(), "gradient_check: gradient ", gradients[i],
                  " of ", name_of_input(i), " ", inputs[i], "; shapes must be equal");
        analytic.push_back(gradients[i].defined() ? to_host(ctx, gradients[i]) : std::vector<double>{});
    }
    for (const Parameter& parameter : parameters) {
        analytic.push_back(to_host(ctx, parameter.grad()));
        for (double& value : analytic.back()) value -= already_there;
    }
    std::vector<std::vector<double>> replaced;
    if (!parameters.empty()) {
        function.forward(ctx, inputs);
        for (const Parameter& parameter : parameters) {
            fill(ctx, parameter.grad(), std::numeric_limits<double>::quiet_NaN());
            parameter.reset_gradient();
        }
        function.backward(ctx, inputs, checker.sum().gradients());
        for (const Parameter& parameter : parameters) replaced.push_back(to_host(ctx, parameter.grad()));
    }

    GradientReport report;
    for (std::size_t i = 0; i < inputs.size(); ++i)
        if (gradients[i].defined())
            report.inputs.push_back(checker.check_input(name_of_input(i), inputs[i], analytic[i], 0.0, i));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const std::vector<double>& added = analytic[inputs.size() + i];
        report.inputs.push_back(checker.check_input(parameters[i].name(), parameters[i].value(), added,
                                                    already_there, inputs.size() + i));
        double largest = already_there;
        for (const double value : added) largest = std::max(largest, std::abs(value));
        check_replacement(report.inputs.back(), replaced[i], added, options.roundings * 0x1p-53 * largest);
    }
    return report;
}

bool GradientReport::ok() const {
    return !inputs.empty() && std::all_of(inputs.begin(), inputs.end(), [](const Input& i) { return i.ok; });
}

std::ostream& operator<<(std::ostream& out, const GradientReport& report) {
    for (const GradientReport::Input& input : report.inputs) {
        out << input.name << ' ' << input.shape << ": " << (input.ok ? "ok" : "WRONG") << ", "
            << input.checked << " derivatives";
        if (input.inconclusive > 0) out << " (" << input.inconclusive << " inconclusive)";
        if (input.checked > 0) {
            const bool direction = input.place.rank() > 0 && input.place[0] < 0;
            out << "; worst ";
            if (direction) {
                out << "along a random direction";
            } else {
                out << "at " << input.place;
            }
            out << ": analytic " << input.analytic << ", numeric " << input.numeric << ", error "
                << input.error << ", bound " << input.bound;
        }
        out << '\n';
    }
    return out;
}

}  // namespace gradtile
