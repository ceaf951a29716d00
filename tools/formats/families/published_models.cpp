// The sizes in the config.json files that the models' publishers have released.
#include <gradtile/core/check.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/tools/formats/families/model_family.h>
#include <gradtile/tools/formats/families/published_models.h>

namespace gradtile {
namespace {

constexpr PublishedModel all_models[] = {
    {"gpt2", "DistilGPT2", 81'912'576, R"("n_layer": 6, "n_head": 12, "n_embd": 768)"},
    {"gpt2", "GPT-2", 124'439'808, R"("n_layer": 12, "n_head": 12, "n_embd": 768)"},
    {"gpt2", "GPT-2 medium", 354'823'168, R"("n_layer": 24, "n_head": 16, "n_embd": 1024)"},
    {"gpt2", "GPT-2 large", 774'030'080, R"("n_layer": 36, "n_head": 20, "n_embd": 1280)"},
    {"gpt2", "GPT-2 XL", 1'557'611'200, R"("n_layer": 48, "n_head": 25, "n_embd": 1600)"},
    {"llama", "SmolLM2-135M", 134'515'008,
     R"("num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, )"
     R"("hidden_size": 576, "intermediate_size": 1536, "max_position_embeddings": 8192, )"
     R"("vocab_size": 49152, "tie_word_embeddings": true)"},
    {"llama", "SmolLM2-360M", 361'821'120,
     R"("num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5, )"
     R"("hidden_size": 960, "intermediate_size": 2560, "max_position_embeddings": 8192, )"
     R"("vocab_size": 49152, "tie_word_embeddings": true)"},
    {"llama", "TinyLlama-1.1B", 1'100'048'384,
     R"("num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, )"
     R"("hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 2048, )"
     R"("vocab_size": 32000)"},
    {"llama", "Llama-3.2-1B", 1'235'814'400,
     R"("num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, )"
     R"("hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, )"
     R"("vocab_size": 128256, "tie_word_embeddings": true)"},
    {"llama", "SmolLM2-1.7B", 1'711'376'384,
     R"("num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 32, )"
     R"("hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 8192, )"
     R"("vocab_size": 49152, "tie_word_embeddings": true)"},
    {"llama", "Llama-3.2-3B", 3'212'749'824,
     R"("num_hidden_layers": 28, "num_attention_heads": 24, "num_key_value_heads": 8, )"
     R"("hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072, )"
     R"("vocab_size": 128256, "tie_word_embeddings": true)"},
    {"llama", "Llama-2-7B", 6'738'415'616,
     R"("num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, )"
     R"("hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096, )"
     R"("vocab_size": 32000)"},
    {"llama", "Llama-3.1-8B", 8'030'261'248,
     R"("num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, )"
     R"("hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072, )"
     R"("vocab_size": 128256)"},
    {"llama", "Llama-2-13B", 13'015'864'320,
     R"("num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40, )"
     R"("hidden_size": 5120, "intermediate_size": 13824, "max_position_embeddings": 4096, )"
     R"("vocab_size": 32000)"},
    {"llama", "Llama-3.1-70B", 70'553'706'496,
     R"("num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, )"
     R"("hidden_size": 8192, "intermediate_size": 28672, "max_position_embeddings": 131072, )"
     R"("vocab_size": 128256)"},
    {"mistral", "Mistral-7B-v0.1", 7'241'732'096,
     R"("num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, )"
     R"("hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, )"
     R"("vocab_size": 32000, "sliding_window": 4096)"},
    {"mistral", "Mistral-7B-v0.3", 7'248'023'552,
     R"("num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, )"
     R"("hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, )"
     R"("vocab_size": 32768, "sliding_window": null)"},
    {"mistral", "Mistral-Nemo-12B", 12'247'782'400,
     R"("num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, )"
     R"("hidden_size": 5120, "intermediate_size": 14336, "max_position_embeddings": 131072, )"
     R"("vocab_size": 131072, "sliding_window": null, "head_dim": 128)"},
    {"qwen2", "Qwen2.5-0.5B", 494'032'768,
     R"("num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, )"
     R"("hidden_size": 896, "intermediate_size": 4864, "max_position_embeddings": 32768, )"
     R"("vocab_size": 151936, "tie_word_embeddings": true)"},
    {"qwen2", "Qwen2.5-1.5B", 1'543'714'304,
     R"("num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, )"
     R"("hidden_size": 1536, "intermediate_size": 8960, "max_position_embeddings": 131072, )"
     R"("vocab_size": 151936, "tie_word_embeddings": true)"},
    {"qwen2", "Qwen2.5-3B", 3'085'938'688,
     R"("num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2, )"
     R"("hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 32768, )"
     R"("vocab_size": 151936, "tie_word_embeddings": true)"},
    {"qwen2", "Qwen2.5-7B", 7'615'616'512,
     R"("num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, )"
     R"("hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 131072, )"
     R"("vocab_size": 152064)"},
    {"qwen2", "Qwen2.5-14B", 14'770'033'664,
     R"("num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, )"
     R"("hidden_size": 5120, "intermediate_size": 13824, "max_position_embeddings": 131072, )"
     R"("vocab_size": 152064)"},
    {"qwen2", "Qwen2.5-32B", 32'763'876'352,
     R"("num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8, )"
     R"("hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 131072, )"
     R"("vocab_size": 152064)"},
    {"qwen2", "Qwen2.5-72B", 72'706'203'648,
     R"("num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, )"
     R"("hidden_size": 8192, "intermediate_size": 29568, "max_position_embeddings": 131072, )"
     R"("vocab_size": 152064)"},
    {"qwen3", "Qwen3-0.6B", 596'049'920,
     R"("num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, )"
     R"("hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, )"
     R"("vocab_size": 151936, "tie_word_embeddings": true)"},
    {"qwen3", "Qwen3-1.7B", 1'720'574'976,
     R"("num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, )"
     R"("hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960, )"
     R"("vocab_size": 151936, "tie_word_embeddings": true)"},
    {"qwen3", "Qwen3-4B", 4'022'468'096,
     R"("num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, )"
     R"("hidden_size": 2560, "intermediate_size": 9728, "max_position_embeddings": 40960, )"
     R"("vocab_size": 151936, "tie_word_embeddings": true)"},
    {"qwen3", "Qwen3-8B", 8'190'735'360,
     R"("num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, )"
     R"("hidden_size": 4096, "intermediate_size": 12288, "max_position_embeddings": 40960, )"
     R"("vocab_size": 151936)"},
    {"qwen3", "Qwen3-14B", 14'768'307'200,
     R"("num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 8, )"
     R"("hidden_size": 5120, "intermediate_size": 17408, "max_position_embeddings": 40960, )"
     R"("vocab_size": 151936)"},
    {"qwen3", "Qwen3-32B", 32'762'123'264,
     R"("num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, )"
     R"("hidden_size": 5120, "intermediate_size": 25600, "max_position_embeddings": 40960, )"
     R"("vocab_size": 151936)"},
    {"smollm3", "SmolLM3-3B", 3'075'098'624,
     R"("num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 4, )"
     R"("hidden_size": 2048, "intermediate_size": 11008, "max_position_embeddings": 65536, )"
     R"("vocab_size": 128256)"},
    {"olmo2", "OLMo-2-1B", 1'484'916'736,
     R"("num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16, )"
     R"("hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 4096, )"
     R"("vocab_size": 100352)"},
    {"olmo2", "OLMo-2-7B", 7'298'617'344,
     R"("num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, )"
     R"("hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096, )"
     R"("vocab_size": 100352)"},
    {"olmo2", "OLMo-2-13B", 13'716'198'400,
     R"("num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 40, )"
     R"("hidden_size": 5120, "intermediate_size": 13824, "max_position_embeddings": 4096, )"
     R"("vocab_size": 100352)"},
    {"olmo2", "OLMo-2-32B", 32'234'279'936,
     R"("num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8, )"
     R"("hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 4096, )"
     R"("vocab_size": 100352)"},
    {"gemma2", "Gemma-2-2B", 2'614'341'888,
     R"("num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, )"
     R"("hidden_size": 2304, "intermediate_size": 9216, "head_dim": 256)"},
    {"gemma2", "Gemma-2-9B", 9'241'705'984,
     R"("num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8, )"
     R"("hidden_size": 3584, "intermediate_size": 14336, "head_dim": 256)"},
    {"gemma2", "Gemma-2-27B", 27'227'128'320,
     R"("num_hidden_layers": 46, "num_attention_heads": 32, "num_key_value_heads": 16, )"
     R"("hidden_size": 4608, "intermediate_size": 36864, "head_dim": 128)"},
    {"gemma3_text", "Gemma-3-270M", 268'098'176,
     R"("num_hidden_layers": 18, "num_attention_heads": 4, "num_key_value_heads": 1, )"
     R"("hidden_size": 640, "intermediate_size": 2048, "head_dim": 256, )"
     R"("max_position_embeddings": 32768, "vocab_size": 262144, "sliding_window": 512)"},
    {"gemma3_text", "Gemma-3-1B", 999'885'952,
     R"("num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, )"
     R"("hidden_size": 1152, "intermediate_size": 6912, "head_dim": 256, )"
     R"("max_position_embeddings": 32768, "vocab_size": 262144, "sliding_window": 512)"},
    {"gpt_neox", "Pythia-70M", 70'426'624,
     R"("num_hidden_layers": 6, "num_attention_heads": 8, "hidden_size": 512, )"
     R"("intermediate_size": 2048, "vocab_size": 50304)"},
    {"gpt_neox", "Pythia-160M", 162'322'944,
     R"("num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768, )"
     R"("intermediate_size": 3072, "vocab_size": 50304)"},
    {"gpt_neox", "Pythia-410M", 405'334'016,
     R"("num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 1024, )"
     R"("intermediate_size": 4096, "vocab_size": 50304)"},
    {"gpt_neox", "Pythia-1B", 1'011'781'632,
     R"("num_hidden_layers": 16, "num_attention_heads": 8, "hidden_size": 2048, )"
     R"("intermediate_size": 8192, "vocab_size": 50304)"},
    {"gpt_neox", "Pythia-1.4B", 1'414'647'808,
     R"("num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 2048, )"
     R"("intermediate_size": 8192, "vocab_size": 50304)"},
    {"gpt_neox", "Pythia-2.8B", 2'775'208'960,
     R"("num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 2560, )"
     R"("intermediate_size": 10240, "vocab_size": 50304)"},
    {"gpt_neox", "Pythia-6.9B", 6'857'302'016,
     R"("num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096, )"
     R"("intermediate_size": 16384, "vocab_size": 50432)"},
    {"gpt_neox", "Pythia-12B", 11'846'072'320,
     R"("num_hidden_layers": 36, "num_attention_heads": 40, "hidden_size": 5120, )"
     R"("intermediate_size": 20480, "vocab_size": 50688)"},
    {"gpt_neox", "GPT-NeoX-20B", 20'554'567'680,
     R"("num_hidden_layers": 44, "num_attention_heads": 64, "hidden_size": 6144, )"
     R"("intermediate_size": 24576, "vocab_size": 50432)"},
    {"phi3", "Phi-3-mini-4k", 3'821'079'552,
     R"("num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, )"
     R"("hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096, )"
     R"("vocab_size": 32064, "sliding_window": 2047)"},
    {"phi3", "Phi-4-mini", 3'836'021'760,
     R"("num_hidden_layers": 32, "num_attention_heads": 24, "num_key_value_heads": 8, )"
     R"("hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 131072, )"
     R"("vocab_size": 200064, "tie_word_embeddings": true, "partial_rotary_factor": 0.75)"},
    {"phi3", "Phi-3-medium-4k", 13'960'238'080,
     R"("num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 10, )"
     R"("hidden_size": 5120, "intermediate_size": 17920, "max_position_embeddings": 4096, )"
     R"("vocab_size": 32064, "sliding_window": 2047)"},
    {"phi3", "Phi-4", 14'659'507'200,
     R"("num_hidden_layers": 40, "num_attention_heads": 40, "num_key_value_heads": 10, )"
     R"("hidden_size": 5120, "intermediate_size": 17920, "max_position_embeddings": 16384, )"
     R"("vocab_size": 100352)"},
};

}  // namespace

std::span<const PublishedModel> published_models() {
    return all_models;
}

ModelConfig config_of(const PublishedModel& model) {
    const ModelFamily* const family = find_family(model.family);
    check(family != nullptr, model.name, ": no family '", model.family, "'");
    const JsonValue value = parse_json(concat('{', model.members, '}'), model.name);
    ConfigMembers members(value, model.name);
    ModelConfig config = family->defaults();
    family->map(members, config, {});
    validate(config);
    return config;
}

}  // namespace gradtile
