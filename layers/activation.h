#pragma once
/// MLP activations: the enumeration, a table with their properties, and the activation as a separate layer.
/// The formulas are in activation_formulas.h.
#include <gradtile/core/enum_names.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

enum class Activation {
    gelu_tanh,  ///< x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), GPT-2's approximation of gelu
    gelu,       ///< x Phi(x) (Hendrycks and Gimpel 2016)
    swiglu,     ///< silu(gate) * up with silu(a) = a * sigmoid(a) (Shazeer 2020, section 2)
    relu2,      ///< max(x, 0)^2 (So et al. 2021, "Primer")
};

struct ActivationTraits {
    Activation activation;
    std::string_view name;  ///< the name in flags, config files and reports
    /// A gated activation maps x [.., 2C], which packs gate and up, to y [.., C]; the MLP then has a third
    /// matrix. Other activations map x [.., C] to y [.., C].
    bool gated;
    /// Used in error bounds: the error in an element of y is at most this many float32 roundings, in an
    /// element of dx at most twice as many.
    int roundings;
};

inline constexpr std::array activation_table{
    ActivationTraits{
        .activation = Activation::gelu_tanh, .name = "gelu-tanh", .gated = false, .roundings = 20},
    ActivationTraits{.activation = Activation::gelu, .name = "gelu", .gated = false, .roundings = 20},
    ActivationTraits{.activation = Activation::swiglu, .name = "swiglu", .gated = true, .roundings = 12},
    ActivationTraits{.activation = Activation::relu2, .name = "relu2", .gated = false, .roundings = 2},
};

template <>
struct EnumNames<Activation> {
    static constexpr auto names =
        names_in_table(activation_table, &ActivationTraits::activation, &ActivationTraits::name);
};

constexpr const ActivationTraits& traits_of(Activation activation) {
    static_assert(names_every_enumerator<Activation>());
    const auto index = static_cast<std::size_t>(activation);
    if (index >= activation_table.size())
        throw Error(
            concat("activation: unknown activation ", index, "; expected ", choices_of<Activation>()));
    return activation_table[index];
}

/// y = f(x), element by element. A gated activation takes x [.., 2C], which packs gate and up, and returns y
/// [.., C]. Other activations take x [.., C] and return y [.., C]. Rows are contiguous; any floating dtype is
/// allowed.
struct ActivationLayer {
    struct Saved {
        Tensor x;
    };

    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const;
    Tensor backward(const Context& ctx, const Tensor& dy, const Saved& saved) const;
    /// Like forward() and backward(), but write to the caller's tensor. They throw Error if the output shares
    /// memory with another operand, with these exceptions: for a gated activation, dx may be x itself; for
    /// other activations, y may be x itself and dx may be dy itself.
    void forward_into(const Context& ctx, const Tensor& y, const Tensor& x) const;
    void backward_into(const Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) const;

    Activation activation = Activation::gelu_tanh;
};

}  // namespace gradtile
