#include <gradtile/tools/formats/transformers_members.h>

#include <algorithm>
#include <array>

namespace gradtile {
namespace {

using enum MemberMeaning;

/// Config members for all model types, in transformers 2 to 5.
constexpr auto common_members = std::to_array<KnownMember>({
    {"model_type"},
    {"tokenizer_class"},
    // Names, versions and records.
    {"architectures", harmless},
    {"transformers_version", harmless},
    {"_name_or_path", harmless},
    {"name_or_path", harmless},
    {"_commit_hash", harmless},
    {"transformers.js_config", harmless},
    {"unsloth_fixed", harmless},
    {"unsloth_version", harmless},
    // The files say in which type each weight is stored.
    {"dtype", harmless},
    {"torch_dtype", harmless},
    {"use_bfloat16", harmless},
    // How transformers computes the same values.
    {"_attn_implementation", harmless},
    {"_attn_implementation_autoset", harmless},
    {"_attn_implementation_internal", harmless},
    {"attn_implementation", harmless},
    {"_experts_implementation", harmless},
    {"_experts_implementation_internal", harmless},
    {"experts_implementation", harmless},
    {"chunk_size_feed_forward", harmless},
    {"gradient_checkpointing", harmless},
    {"torchscript", harmless},
    {"use_cache", harmless},
    // What transformers returns beside the logits.
    {"output_attentions", harmless},
    {"_output_attentions", harmless},
    {"output_hidden_states", harmless},
    {"output_past", harmless},
    {"return_dict", harmless},
    {"use_return_dict", harmless},
    {"tie_last_hidden_states", harmless},
    // Training, and classifier heads.
    {"initializer_range", harmless},
    {"finetuning_task", harmless},
    {"id2label", harmless},
    {"label2id", harmless},
    {"num_labels", harmless},
    {"_num_labels", harmless},
    {"problem_type", harmless},
    {"task_specific_params", harmless},
    // Without an encoder these have no meaning.
    {"is_decoder", harmless},
    {"tie_encoder_decoder", harmless},
    {"sep_token_id", harmless},
    // Another model, other weights or other text.
    {"add_cross_attention", refused, "[false]"},
    {"attention_chunk_size", refused},
    {"cross_attention_hidden_size", refused},
    {"fusion_config", refused},
    {"is_causal", refused, "[true]"},
    {"is_encoder_decoder", refused, "[false]"},
    {"layer_types", refused},
    {"logits_mup_width_multiplier", refused, "[1]"},
    {"mlp_layer_types", refused},
    {"mtp_layer_types", refused},
    {"num_mtp_layers", refused, "[0]"},
    {"per_layer_config", refused, "[{}]"},
    {"prefix", refused, "[\"\"]"},
    {"pruned_heads", refused, "[{}]"},
    {"sliding_window", refused},
    {"transformers_weights", refused},
    {"unpadded_vocab_size", refused},
});

constexpr auto other_models_members = std::to_array<KnownMember>({
    {"auto_map", refused},
    {"quantization_config", refused},
    {"audio_config", refused},
    {"text_config", refused},
    {"vision_config", refused},
});

constexpr auto rope_parameter_members = std::to_array<KnownMember>({
    {"rope_theta"},
    {"rope_type"},
    {"type"},
    {"partial_rotary_factor"},
    {"factor"},
    {"original_max_position_embeddings"},
    {"attention_factor"},
    {"beta_fast"},
    {"beta_slow"},
    {"high_freq_factor"},
    {"long_factor"},
    {"low_freq_factor"},
    {"mscale"},
    {"mscale_all_dim"},
    {"short_factor"},
    {"truncate"},
    {"mrope_section", refused},
});

/// The flags of `sample` and `chat` say how tokens are drawn, so defaults for the same settings are harmless.
/// Settings that have no such flag are refused, because the text would be another one.
constexpr auto generation_settings = std::to_array<KnownMember>({
    {"eos_token_id"},
    {"stop_strings"},
    {"bos_token_id", harmless},
    {"pad_token_id", harmless},
    {"decoder_start_token_id", harmless},
    {"do_sample", harmless},
    {"temperature", harmless},
    {"top_k", harmless},
    {"top_p", harmless},
    {"min_p", harmless},
    {"repetition_penalty", harmless},
    {"max_length", harmless},
    {"max_new_tokens", harmless},
    {"max_time", harmless},
    {"num_return_sequences", harmless},
    // How transformers computes the same tokens, and what it returns beside them.
    {"assistant_confidence_threshold", harmless},
    {"assistant_early_exit", harmless},
    {"assistant_ensemble_weight", harmless},
    {"assistant_lookbehind", harmless},
    {"cache_config", harmless},
    {"cache_implementation", harmless},
    {"compile_config", harmless},
    {"continuous_batching_config", harmless},
    {"disable_compile", harmless},
    {"is_assistant", harmless},
    {"low_memory", harmless},
    {"max_cache_len", harmless},
    {"max_matching_ngram_size", harmless},
    {"num_assistant_tokens", harmless},
    {"num_assistant_tokens_schedule", harmless},
    {"output_logits", harmless},
    {"output_scores", harmless},
    {"prefill_chunk_size", harmless},
    {"prompt_lookup_num_tokens", harmless},
    {"return_dict_in_generate", harmless},
    {"speculation_type", harmless},
    {"target_lookbehind", harmless},
    {"use_mtp", harmless},
    {"remove_invalid_values", harmless},
    {"renormalize_logits", harmless},
    // Beam search only.
    {"diversity_penalty", harmless},
    {"early_stopping", harmless},
    {"length_penalty", harmless},
    {"num_beam_groups", refused, "[1]"},
    {"num_beams", refused, "[1]"},
    // Encoders only.
    {"encoder_no_repeat_ngram_size", refused, "[0]"},
    {"encoder_repetition_penalty", refused, "[1]"},
    // Other tokens are drawn.
    {"bad_words_ids", refused, "[[]]"},
    {"begin_suppress_tokens", refused, "[[]]"},
    {"constraints", refused, "[[]]"},
    {"dola_layers", refused},
    {"epsilon_cutoff", refused, "[0]"},
    {"eta_cutoff", refused, "[0]"},
    {"exponential_decay_length_penalty", refused},
    {"force_words_ids", refused, "[[]]"},
    {"force_bos_token_to_be_generated", refused, "[false]"},
    {"forced_bos_token_id", refused},
    {"forced_eos_token_id", refused},
    {"guidance_scale", refused, "[1]"},
    {"min_length", refused, "[0]"},
    {"min_new_tokens", refused, "[0]"},
    {"no_repeat_ngram_size", refused, "[0]"},
    {"penalty_alpha", refused, "[0]"},
    {"sequence_bias", refused, "[{}]"},
    {"suppress_tokens", refused, "[[]]"},
    {"token_healing", refused, "[false]"},
    {"top_h", refused},
    {"typical_p", refused, "[1]"},
    {"watermarking_config", refused},
});

/// Members of a generation_config.json that a config.json has, too, or that are not settings.
constexpr auto generation_file_members = std::to_array<KnownMember>({
    {"_from_model_config", harmless},
    {"transformers_version", harmless},
    {"_commit_hash", harmless},
    {"output_attentions", harmless},
    {"output_hidden_states", harmless},
    {"use_cache", harmless},
});

template <class... Tables>
std::vector<KnownMember> joined(const Tables&... tables) {
    std::vector<KnownMember> all;
    (all.insert(all.end(), tables.begin(), tables.end()), ...);
    return all;
}

}  // namespace

std::vector<KnownMember> config_members(const ModelFamily& family) {
    std::vector<KnownMember> all;
    for (const std::string_view name : mapped_members(family)) all.push_back({name});
    // A family's own meaning of a name counts.
    for (const KnownMember& member :
         joined(family.other_members, foreign_members(), common_members, generation_settings))
        if (std::ranges::find(all, member.name, &KnownMember::name) == all.end()) all.push_back(member);
    return all;
}

std::vector<KnownMember> foreign_members() {
    return joined(other_models_members);
}

std::vector<KnownMember> rope_members() {
    return joined(rope_parameter_members);
}

std::vector<KnownMember> generation_members() {
    return joined(generation_settings, generation_file_members);
}

}  // namespace gradtile
