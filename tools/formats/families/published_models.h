#pragma once
/// The published models of each family whose weights people have.
#include <cstdint>
#include <span>
#include <string_view>

#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

struct PublishedModel {
    std::string_view family;  ///< ModelFamily::type
    std::string_view name;
    std::int64_t parameters = 0;  ///< as published; a tied head counts once
    /// The members of its config.json that memory and work depend on, without braces; other members have the
    /// family's defaults. Scaled rotary positions cost nothing, so they are left out.
    std::string_view members;
};

/// All published models, family by family in the order of model_families(), the smallest first.
std::span<const PublishedModel> published_models();
/// The model's sizes.
ModelConfig config_of(const PublishedModel& model);

}  // namespace gradtile
