#pragma once
/// Compares gradients with finite differences, input by input, with a derived error bound.
///
///     const auto report = gradient_check(ctx, my_attention, {q, k, v});
///     std::cout << report;                  // one line per input
///     EXPECT_TRUE(gradient_check_layer(ctx, layer, x, store.parameters()).ok());
#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gradtile/core/parameter_store.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// A function and its hand-written derivative. Each backward call directly follows forward on the same
/// inputs, so forward may store state for backward.
struct Differentiable {
    using Tensors = std::vector<Tensor>;
    /// Computes the outputs from the inputs.
    std::function<Tensors(const Context&, const Tensors& inputs)> forward;
    /// (inputs, output gradients) -> input gradients, each in its input's shape. An undefined Tensor means
    /// that the input has no gradient; this input is not checked.
    std::function<Tensors(const Context&, const Tensors& inputs, const Tensors& grad_outputs)> backward;
};

struct GradientCheckOptions {
    std::uint64_t seed = 1;
    /// How many random elements are perturbed in each input; in a smaller input, all elements. Larger inputs
    /// are also checked along one random direction that contains all elements.
    int elements = 128;
    /// The assumed error of each output, in units of eps times the output's size. Independent rounding errors
    /// grow with the square root of their number, so 32 allows about 1000 operations per output.
    double roundings = 32.0;
    /// The inputs' names in the report; the default is "input 0" and so on.
    std::vector<std::string> names = {};
};

/// Check results: for each input or parameter, the element with the largest error / bound.
struct GradientReport {
    struct Input {
        std::string name;
        Shape shape;
        int checked = 0;       ///< derivatives compared
        int inconclusive = 0;  ///< compared derivatives whose bound was too wide (a kink, or a bad scale)
        Shape place = {};      ///< the worst element's index; all -1 for the random direction
        double analytic = 0.0, numeric = 0.0;
        double error = 0.0, bound = 0.0;
        bool ok = true;
    };
    std::vector<Input> inputs;
    bool ok() const;
};
/// Prints one line per input.
std::ostream& operator<<(std::ostream& out, const GradientReport& report);

/// Compares the analytic gradient of L = sum over outputs of sum(w * output), w fixed random weights, with
/// central differences D(h) = (L(x + h) - L(x - h)) / 2h, h = 2^-12 max(|x|, rms of the input), extrapolated
/// to R = (4 D(h) - D(2h)) / 3. An element is right when |analytic - R| is at most
///     |D(2h) - D(h)| / 3                              truncation: D(h) = L' + c h^2 + O(h^4)
///     + roundings * eps * sum |w| size / h            rounding of the outputs that changed
///     + roundings * eps * largest |analytic|          rounding of backward itself.
/// An input is right when all its elements are right and at most one in ten is inconclusive (its bound
/// exceeds a thousandth of the gradient's size).
///
/// Inputs are float64 on ctx's device; each is perturbed in place and then restored. Parameters are float64,
/// too. backward must write their gradients as begin_gradient_write() says. To test this, backward runs
/// twice, each time after forward: once with non-zero gradients, to which it must ADD, and once after
/// reset_gradient() with NaN gradients, which it must OVERWRITE. Throws Error on other dtypes, on views with
/// overlapping elements, and when backward returns gradients with other shapes. Source: Press et al.,
/// Numerical Recipes, 5.7.
GradientReport gradient_check(const Context& ctx, const Differentiable& function,
                              const std::vector<Tensor>& inputs, std::span<const Parameter> parameters,
                              const GradientCheckOptions& options = {});

namespace detail {
inline std::vector<Tensor> as_list(Tensor one) {
    return {std::move(one)};
}
inline std::vector<Tensor> as_list(std::vector<Tensor> many) {
    return many;
}
}  // namespace detail

/// Checks an object with forward(ctx, inputs) -> output and backward(ctx, inputs, grad_output) -> gradients.
/// Outputs and gradients are one Tensor or a std::vector<Tensor>.
template <class Function>
GradientReport gradient_check(const Context& ctx, Function&& function, const std::vector<Tensor>& inputs,
                              const GradientCheckOptions& options = {}) {
    using Tensors = Differentiable::Tensors;
    const Differentiable differentiable{
        [&](const Context& c, const Tensors& xs) { return detail::as_list(function.forward(c, xs)); },
        [&](const Context& c, const Tensors& xs, const Tensors& grads) {
            if constexpr (requires { function.backward(c, xs, grads); }) {
                return detail::as_list(function.backward(c, xs, grads));
            } else {
                return detail::as_list(function.backward(c, xs, grads.at(0)));
            }
        }};
    return gradient_check(ctx, differentiable, inputs, std::span<const Parameter>{}, options);
}

/// Checks a layer with forward(ctx, x, saved) -> y and backward(ctx, dy, saved) -> dx, and its `parameters`.
template <class Layer>
GradientReport gradient_check_layer(const Context& ctx, Layer& layer, const Tensor& x,
                                    std::span<const Parameter> parameters = {},
                                    GradientCheckOptions options = {}) {
    using Tensors = Differentiable::Tensors;
    typename Layer::Saved saved;
    const Differentiable differentiable{[&](const Context& c, const Tensors& xs) {
                                            saved = typename Layer::Saved();
                                            return Tensors{layer.forward(c, xs[0], saved)};
                                        },
                                        [&](const Context& c, const Tensors&, const Tensors& grads) {
                                            return Tensors{layer.backward(c, grads[0], std::as_const(saved))};
                                        }};
    if (options.names.empty()) options.names = {"x"};
    return gradient_check(ctx, differentiable, {x}, parameters, options);
}

}  // namespace gradtile
