#pragma once
/// Members of config.json and tensor names that several families share.
#include <string_view>

#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/tools/formats/families/config_members.h>
#include <gradtile/tools/formats/families/model_family.h>

namespace gradtile {

/// Llama's sizes, RMSNorm's epsilon, tied embeddings and dropout.
void map_llama_sizes(ConfigMembers& members, ModelConfig& config, const TrainingOptions& training);

/// head_dim. A family whose config class has no such field writes it only if it is not width / heads.
enum class HeadDim { written, written_if_unusual };
void map_head_dim(ConfigMembers& members, ModelConfig& config, HeadDim written);

/// The sizes, the activation silu and head_dim.
void map_llama_members(ConfigMembers& members, ModelConfig& config, const TrainingOptions& training,
                       HeadDim written = HeadDim::written_if_unusual);

/// attention_bias and mlp_bias: biases in all linear layers or in none.
void map_biases(ConfigMembers& members, ModelConfig& config);

struct RopeMembers {
    const char* base = "rope_theta";
    /// The rotated part of a head; null: all of it is rotated.
    const char* rotated_part = nullptr;
    double default_part = 1.0;
    /// The context before an extension, in a member of its own (Phi-3); null: it is in rope_scaling.
    const char* original_context = nullptr;
};
/// Rotary positions: the base, the rotated part, and rope_scaling, which transformers 5 calls rope_parameters
/// and in which it also writes the other two. Throws Error for kinds that transformers does not have.
void map_rope(ConfigMembers& members, ModelConfig& config, const RopeMembers& names = {});
/// The same for two bases: rope_theta in layers that see all keys, rope_local_base_freq in layers with a
/// window.
void map_window_rope(ConfigMembers& members, ModelConfig& config);

/// layer_types: which layers have the window. If the member is absent, config.window_pattern keeps its value.
/// Throws Error unless every N-th layer, all layers or no layer sees the whole context.
void map_layer_types(ConfigMembers& members, ModelConfig& config);
/// Returns Llama's settings for these sizes, with the epsilon 1e-6, as in most config classes.
ModelConfig llama_defaults(ModelConfig sizes);

/// Llama's tensors.
TensorNames llama_tensors();
/// The tensors of models with norms after the branches (OLMo 2, Gemma), which are called what Llama's second
/// norm is.
TensorNames tensors_with_post_norms();

/// Returns N such that `is_special` holds for every N-th layer, counted from 1, and no other; 0 if it holds
/// for none. Throws Error that names `member` if there is no such N.
std::int64_t pattern_of(const std::vector<bool>& is_special, const ConfigMembers& members,
                        std::string_view member);

// What llama.cpp's architectures do not compute; see GgufTarget::require().
void refuse_windows(const ModelConfig& config, const GgufTarget& target);
void refuse_head_width(const ModelConfig& config, const GgufTarget& target);
void refuse_tied_head(const ModelConfig& config, const GgufTarget& target);
void refuse_biases(const ModelConfig& config, const GgufTarget& target);

}  // namespace gradtile
