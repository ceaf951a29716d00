#pragma once
/// Classifies the members of Hugging Face's config.json and generation_config.json: used, harmless or
/// refused. tests/reference/transformers_members.json lists the same members with values to test them, and
/// tests/judge/members_judge.py compares that list with transformers.
#include <vector>

#include <gradtile/core/text/known_members.h>
#include <gradtile/tools/formats/families/model_family.h>

namespace gradtile {

/// The members of a config.json: the family's, the members for all models, and the generation settings, which
/// older transformers versions wrote to this file.
std::vector<KnownMember> config_members(const ModelFamily& family);

/// Members that say that a folder does not hold weights of one of the families: quantized weights, code
/// beside the weights, and parts for images and sounds.
std::vector<KnownMember> foreign_members();

/// The members of rope_parameters and rope_scaling.
std::vector<KnownMember> rope_members();

std::vector<KnownMember> generation_members();

}  // namespace gradtile
