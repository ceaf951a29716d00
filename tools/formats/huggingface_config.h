#pragma once
/// config.json for Hugging Face transformers, for the families of families/model_family.h.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/dtype.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/known_members.h>
#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/tools/formats/families/model_family.h>

namespace gradtile {

/// Where transformers' `generate` ends a text.
struct TextEnds {
    std::optional<std::vector<std::int32_t>> tokens = {};  ///< eos_token_id, if the file has it
    std::vector<std::string> texts = {};                   ///< stop_strings
};

struct HuggingFaceModel {
    const ModelFamily* family = nullptr;
    ModelConfig config = {};
    TextEnds ends = {};
    std::string tokenizer_class = {};  ///< empty if the file names none
};

/// Reads a config.json. If a member is missing, it has transformers' default value. Throws Error that begins
/// with `source` and names the member when the value is not a model that this program has (another model
/// type, an activation that is not known), when two names for one setting have different values, and when a
/// member may change the model in a way that is not known (see transformers_members.h).
HuggingFaceModel read_huggingface_config(const JsonValue& value, std::string_view source,
                                         UnknownMembers& unknown);

/// Reads a generation_config.json. Throws Error as read_huggingface_config() does.
TextEnds read_generation_config(const JsonValue& value, std::string_view source, UnknownMembers& unknown);

/// The tokens that begin and end a text.
struct TextTokens {
    std::optional<std::int32_t> begin = {};
    std::vector<std::int32_t> end = {};
};

/// Returns the family that holds an export of the config: the family of `kept_config`, the config.json text
/// that an import kept, if it can hold the config; else the first one that can. Throws Error that begins with
/// `source` and names a setting if none can.
const ModelFamily& family_of(const ModelConfig& config, const std::optional<std::string>& kept_config,
                             std::string_view source);

/// Returns a config.json from which read_huggingface_config() reads an equal config. Throws Error that begins
/// with `source` and names the setting when the family cannot express the config. The file also names the
/// dropout probabilities.
JsonValue huggingface_config_of(const ModelFamily& family, const ModelConfig& config,
                                const TrainingOptions& training, DType dtype, const TextTokens& tokens,
                                std::string_view source);

/// Returns the config.json text that an import kept, for `dtype` weights: the text itself if it names this
/// type or none. Returns nullopt if the text is not this model's config. Throws Error that begins with
/// `source` if it is no config.
std::optional<std::string> kept_config_of(const std::string& text, const ModelConfig& config, DType dtype,
                                          std::string_view source);

}  // namespace gradtile
