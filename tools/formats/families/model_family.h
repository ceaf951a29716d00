#pragma once
/// The families of models that import and export know. A family is one row: how transformers' config.json and
/// tensors, and llama.cpp's GGUF, describe a ModelConfig.
#include <span>
#include <string_view>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/core/text/known_members.h>
#include <gradtile/layers/transformer/model_config.h>
#include <gradtile/tools/formats/families/config_members.h>

namespace gradtile {

/// How a file stores a matrix whose rows are the parameter's rows.
enum class RowOrder {
    plain,       ///< in the parameter's order
    transposed,  ///< [in, out], as GPT-2's Conv1D does
    by_head,     ///< q, k and v of the first head, then of the second head, and so on (GPT-NeoX)
    pairs,       ///< q and k: in each head, the two rows of a rotated pair are neighbours (GGUF's llama)
};

/// A module's name in this project ("attn.qkv"), and the modules that hold its rows in another project
/// ({"self_attn.q_proj", ...}), one after the other.
struct ModuleNames {
    std::string_view own;
    std::vector<std::string_view> theirs;
    RowOrder order = RowOrder::plain;
};

struct TensorNames {
    std::string_view block;           ///< the part before the block number in a name
    std::vector<ModuleNames> blocks;  ///< the modules of a block; a model need not have all of them
    std::vector<ModuleNames> others;
};

/// The architecture of llama.cpp that is to hold a config.
struct GgufTarget {
    std::string_view architecture;
    std::string_view source;  ///< begins the errors

    /// Throws Error unless the architecture can express the setting; `expected` says what it has.
    template <class Value, class... Expected>
    void require(bool fits, std::string_view setting, const Value& value, const Expected&... expected) const {
        check(fits, source, ": ", setting, ' ', value, " cannot be stored in GGUF's ", architecture,
              "; it has ", expected...);
    }
};

/// What llama.cpp calls a family, and what of it llama.cpp does not compute.
struct GgufFamily {
    std::string_view architecture;
    RowOrder qk_order = RowOrder::plain;  ///< plain or pairs
    bool fused = false;                   ///< whether q, k and v are one tensor, as are gate and up
    /// Throws Error, as GgufTarget::require() does, for configs of the family that the architecture cannot
    /// express.
    void (*check)(const ModelConfig& config, const GgufTarget& target);
};

struct ModelFamily {
    std::string_view type;          ///< config.json's model_type
    std::string_view architecture;  ///< in config.json's architectures
    std::string_view models;        ///< the models that people know, for `gradtile import --list`
    /// transformers' values for the members that a config.json may lack.
    ModelConfig (*defaults)();
    /// Maps config.json's members. `training` is written only.
    void (*map)(ConfigMembers& members, ModelConfig& config, const TrainingOptions& training);
    /// The members that `map` does not see: harmless or refused.
    std::vector<KnownMember> other_members;
    TensorNames tensors;
    GgufFamily gguf;
};

/// Every family, in the order in which export looks for one that can hold a model.
std::span<const ModelFamily> model_families();
/// Returns the family with this model_type; null if there is none.
const ModelFamily* find_family(std::string_view type);
/// Returns the names of every member that the family's `map` sees.
std::vector<std::string_view> mapped_members(const ModelFamily& family);
/// Returns llama.cpp's names for the tensors.
TensorNames gguf_tensors(const GgufFamily& gguf);

// The rows. Each is defined in a file of its own, or with the families that it resembles.
ModelFamily gpt2_family();
ModelFamily llama_family();
ModelFamily mistral_family();
ModelFamily qwen2_family();
ModelFamily qwen3_family();
ModelFamily smollm3_family();
ModelFamily olmo2_family();
ModelFamily gemma2_family();
ModelFamily gemma3_family();
ModelFamily gpt_neox_family();
ModelFamily phi3_family();

}  // namespace gradtile
