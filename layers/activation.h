#pragma once
/// MLP activations: the enumeration and a table with their properties. The formulas are in
/// activation_formulas.h.
#include <gradtile/core/enum_names.h>

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

}  // namespace gradtile
