#pragma once
/// Classifies the members of Hugging Face's config.json and generation_config.json: used, harmless or
/// refused. tests/reference/transformers_members.json lists the same members with values to test them, and
/// tests/judge/members_judge.py compares that list with transformers.
#include <vector>

#include <gradtile/core/text/known_members.h>
#include <gradtile/tools/formats/weight_names.h>

namespace gradtile {

/// The members of a config.json: the members for all models, the members for the layout's model type, and the
/// generation settings, which older transformers versions wrote to this file.
std::vector<KnownMember> config_members(WeightLayout layout);

/// The members of rope_parameters and rope_scaling.
std::vector<KnownMember> rope_members();

std::vector<KnownMember> generation_members();

}  // namespace gradtile
