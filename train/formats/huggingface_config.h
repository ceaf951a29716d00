#pragma once
/// config.json of Hugging Face transformers, for model types "gpt2" and "llama".
#include <string_view>

#include <gradtile/core/dtype.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/train/formats/weight_names.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

struct HuggingFaceModel {
    WeightLayout layout = WeightLayout::huggingface_gpt2;
    ModelConfig config;
};

/// Reads a config.json. If a member is missing, it has transformers' default value. Throws Error that begins
/// with `source` and names the member when the value is not a model that this program has: another model
/// type, scaled rotary positions, a head width other than width / heads, an activation that is not known.
HuggingFaceModel read_huggingface_config(const JsonValue& value, std::string_view source);

/// Returns a config.json from which read_huggingface_config() reads an equal config. Throws Error that begins
/// with `source` and names the setting when neither model type can express the config (query and key norms,
/// for example). Settings of training (dropouts, recompute, deterministic) are ignored.
JsonValue huggingface_config_of(const ModelConfig& config, DType dtype, const Tokenizer* tokenizer,
                                std::string_view source);

/// Returns the layout that huggingface_config_of() chooses: Llama's layout for rotary positions, otherwise
/// GPT-2's.
WeightLayout huggingface_layout_of(const ModelConfig& config);

}  // namespace gradtile
