#pragma once
/// Checking gradients against finite differences, input by input, with a bound that is derived and printed.
///
///     const auto report = gradient_check(ctx, my_attention, {q, k, v});
///     std::cout << report;                  // one line an input
///     EXPECT_TRUE(gradient_check_layer(ctx, layer, x, store.parameters()).ok());
#include <concepts>
#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gradtile/core/parameter_store.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// A function with its hand-written derivative. backward is always called right after forward of the same
/// inputs, so forward may store state for backward.
struct Differentiable {
    using Tensors = std::vector<Tensor>;
    /// inputs -> outputs.
    std::function<Tensors(const Context&, const Tensors& inputs)> forward;
    /// (inputs, gradient of each output) -> gradient of each input, in its shape. An undefined Tensor says
    /// that the input has no gradient (it is then not checked).
    std::function<Tensors(const Context&, const Tensors& inputs, const Tensors& grad_outputs)> backward;
};

struct GradientCheckOptions {
    std::uint64_t seed = 1;
    /// Elements of each input that are perturbed, drawn at random (all when it has no more). Inputs with more
    /// are also checked along one random direction, which every element takes part in.
    int elements = 128;
    /// How many roundings' worth of error an output carries, in units of eps times its size. Independent
    /// roundings add up like the root of their number, so 32 stands for about 1000 operations an output.
    double roundings = 32.0;
    /// Names for the report; "input 0" and so on by default.
    std::vector<std::string> names = {};
};

/// What the check found for one input (or parameter): the element with the largest error / bound.
struct GradientReport {
    struct Input {
        std::string name;
        Shape shape;
        int checked = 0;       ///< derivatives compared
        int inconclusive = 0;  ///< of those: the bound was too wide to tell (a kink, or a bad scale)
        Shape place = {};      ///< of the worst element; all -1: the random direction
        double analytic = 0.0, numeric = 0.0;
        double error = 0.0, bound = 0.0;
        bool ok = true;
    };
    std::vector<Input> inputs;
    bool ok() const;
};
/// One line an input.
std::ostream& operator<<(std::ostream& out, const GradientReport& report);

/// Compares the analytic gradient of L = sum over outputs of sum(w * output), w fixed random weights, with
/// central differences D(h) = (L(x + h) - L(x - h)) / 2h, h = 2^-12 max(|x|, rms of the input), extrapolated
/// to R = (4 D(h) - D(2h)) / 3. An element is right when |analytic - R| is at most
///     |D(2h) - D(h)| / 3                              truncation: D(h) = L' + c h^2 + O(h^4)
///     + roundings * eps * sum |w| size / h            rounding of the outputs that moved at all
///     + roundings * eps * largest |analytic|          rounding of backward itself.
/// An input is right when all its elements are and at most one in ten is inconclusive (bound over a
/// thousandth of the gradient's size).
///
/// Inputs are float64 on ctx's device; each is perturbed in place and put back. Parameters are float64 too;
/// backward must write as begin_gradient_write() says: it is run twice, each time after forward, once with a
/// grad() that is not zero, to which it must ADD, and once after reset_gradient() with a grad() of NaN, which
/// it must OVERWRITE. Throws Error for other dtypes, for views that overlap themselves, and when backward
/// returns gradients of other shapes. Source: Press et al., Numerical Recipes, 5.7.
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

/// For any object with forward(ctx, inputs) -> output and backward(ctx, inputs, grad_output) -> gradients;
/// outputs and gradients are one Tensor or a vector of them.
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

/// For a layer: forward(ctx, x, saved) -> y, backward(ctx, dy, saved) -> dx, parameters listed.
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
