#pragma once
/// Soft limits for a model's output logits.
#include <array>
#include <string_view>
#include <utility>

#include <gradtile/core/enum_names.h>

namespace gradtile {

/// How a logit x is limited to (-c, c): c tanh(x / c) (Gemma Team 2024, "Gemma 2"), or x / sqrt(1 + (x /
/// c)^2) (modded-nanogpt, 2025), which needs no exponential.
enum class SoftcapForm { tanh, root };

struct LogitSoftcap {
    double limit = 0.0;  ///< c; 0: logits are not limited
    SoftcapForm form = SoftcapForm::tanh;

    bool operator==(const LogitSoftcap&) const = default;
};

template <>
struct EnumNames<SoftcapForm> {
    static constexpr std::array names = {std::pair{SoftcapForm::tanh, std::string_view("tanh")},
                                         std::pair{SoftcapForm::root, std::string_view("root")}};
};

}  // namespace gradtile
