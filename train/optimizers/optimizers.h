#pragma once
/// The optimizers that a run can choose. Each is listed by its settings struct, which defines its name for
/// --optimizer, flags, config file keys, help, factory, memory plan and cost. docs/adding_a_layer.md, "An
/// optimizer", lists what the struct holds.
#include <array>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include <gradtile/core/check.h>
#include <gradtile/core/enum_names.h>
#include <gradtile/train/optimizers/adamw.h>
#include <gradtile/train/optimizers/lion.h>
#include <gradtile/train/optimizers/muon.h>

namespace gradtile {

/// Optimizers that update each element separately: ElementwiseOptimizer applies Settings::Rule.
using ElementwiseSettings = std::tuple<AdamWSettings, LionSettings>;

/// Optimizers with their own class, which Settings::make() creates.
using OtherSettings = std::tuple<MuonSettings>;

/// The settings of every optimizer.
using OptimizerSettings = decltype(std::tuple_cat(ElementwiseSettings(), OtherSettings()));

struct ModelConfig;

template <class... Settings>
std::variant<typename Settings::Rule...> any_rule_of(std::type_identity<std::tuple<Settings...>>);
/// Any elementwise optimizer's rule.
using ElementwiseRule = decltype(any_rule_of(std::type_identity<ElementwiseSettings>()));

/// The run settings that an optimizer's factory reads.
struct OptimizerSetup {
    double lr = 0.0;  ///< peak learning rate
    double weight_decay = 0.0;
    bool cautious_decay = false;
    LearningRateFactor lr_factor;  ///< of the parameters that an ElementwiseOptimizer updates
    MomentStorage moments = {};
    const ModelConfig& model;
    const OptimizerSettings& settings;
};

/// An optimizer. Its number is its index in OptimizerSettings; see kind_of.
enum class OptimizerKind : std::size_t {};

template <class Settings, class... All>
constexpr OptimizerKind kind_in(std::type_identity<std::tuple<All...>>) {
    static_assert((std::is_same_v<Settings, All> || ...), "not in a list of optimizers");
    std::size_t place = 0;
    static_cast<void>(((std::is_same_v<Settings, All> || (++place, false)) || ...));
    return static_cast<OptimizerKind>(place);
}
/// The optimizer kind that has these settings: kind_of<MuonSettings> for Muon.
template <class Settings>
inline constexpr OptimizerKind kind_of = kind_in<Settings>(std::type_identity<OptimizerSettings>());

template <class... Settings>
constexpr auto optimizer_names(std::type_identity<std::tuple<Settings...>>) {
    return std::array{std::pair{kind_of<Settings>, Settings::name}...};
}
template <>
struct EnumNames<OptimizerKind> {
    static constexpr std::array names = optimizer_names(std::type_identity<OptimizerSettings>());
};

/// Calls visit(settings) with the settings for the optimizer `kind`.
template <class Visit>
auto visit_optimizer(OptimizerKind kind, const OptimizerSettings& all, const Visit& visit) {
    std::optional<decltype(visit(std::get<0>(all)))> result;
    const auto visit_one = [&]<class Settings>(const Settings& settings) {
        if (kind == kind_of<Settings>) result = visit(settings);
    };
    std::apply([&](const auto&... settings) { (visit_one(settings), ...); }, all);
    check(result.has_value(), "optimizer: ", static_cast<std::size_t>(kind), " is not a known optimizer");
    return std::move(*result);
}

}  // namespace gradtile
