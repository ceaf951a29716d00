// Folders with the members of published models' files: imported as they are, and exported to both formats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/tools/formats/gguf_metadata.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>
#include <gradtile/train/tokenizers/tokenizer_folder.h>

#include <support/error_message.h>
#include <tools/formats/weights_fixture.h>

namespace gradtile {
namespace {

#if GRADTILE_HAVE_PCRE2

using nlohmann::json;
using test::json_of;
using test::message_of;
using test::TemporaryDirectory;
using test::write_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

namespace fs = std::filesystem;

/// How a published tokenizer.json cuts and normalizes text.
struct Pipeline {
    const char* gguf;  ///< llama.cpp's name; "llama": scores
    json pre_tokenizer = {};
    json normalizer = nullptr;
    bool whole_pieces = false;
    const char* file = nullptr;  ///< a tokenizer.json of SentencePiece's kind, in place of the others
};

json byte_level(bool use_regex) {
    return {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}
json sequence(const json& first, const json& second) {
    return {{"type", "Sequence"}, {"pretokenizers", {first, second}}};
}
json split(std::string_view pattern) {
    const json step{
        {"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
    return sequence(step, byte_level(false));
}

Pipeline pipeline_named(std::string_view name) {
    const json nfc{{"type", "NFC"}};
    if (name == "gpt2") return {"gpt-2", byte_level(true)};
    if (name == "neox") return {"gpt-2", byte_level(true), nfc};
    if (name == "smollm")
        return {"smollm", sequence({{"type", "Digits"}, {"individual_digits", true}}, byte_level(true))};
    if (name == "llama3") return {"llama-bpe", split(llama3_pattern()), nullptr, true};
    if (name == "cl100k") return {"dbrx", split(llama3_pattern())};  // as it stands in converted files
    if (name == "o200k") return {"gpt-4o", split(o200k_pattern())};
    if (name == "qwen2") return {"qwen2", split(qwen2_pattern()), nfc};
    if (name == "llama2") return {.gguf = "llama", .file = "llama2.json"};
    if (name == "mistral") return {.gguf = "llama", .file = "mistral.json"};
    return {.gguf = "llama", .file = "gemma.json"};
}

/// The members and values of a published model's files, without those that say how large it is. config.json
/// of SmolLM2, Llama 3, Qwen2.5, SmolLM3, Gemma 2, Gemma 3 and Phi-4-mini was compared with copies in other
/// repositories, some of them partial; the other files only with transformers' classes.
struct PublishedFolder {
    const char *name, *family, *pipeline;
    std::vector<const char*> tokens;  ///< added tokens beside those that `file` has
    const char *config, *tokenizer_config, *special_tokens_map, *generation_config;
    bool replaces_pattern = false;  ///< transformers 5 takes the class's pattern
};

const PublishedFolder published_folders[] = {
    {"gpt2",
     "gpt2",
     "gpt2",
     {"<|endoftext|>"},
     R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
         "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
         "n_ctx": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
         "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
         "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}})",
     R"({"model_max_length": 1024})",
     "{}",
     R"({"_from_model_config": true, "bos_token_id": 50256, "eos_token_id": 50256,
         "transformers_version": "4.26.0.dev0"})"},
    {"pythia",
     "gpt_neox",
     "neox",
     {"<|endoftext|>", "<|padding|>"},
     R"({"architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "gelu",
         "initializer_range": 0.02, "torch_dtype": "float16", "transformers_version": "4.24.0",
         "use_cache": true, "use_parallel_residual": true, "tie_word_embeddings": false})",
     R"({"add_prefix_space": false, "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
         "name_or_path": "EleutherAI/gpt-neox-20b", "special_tokens_map_file": "/home/x/special_tokens_map.json",
         "tokenizer_class": "GPTNeoXTokenizer", "unk_token": "<|endoftext|>"})",
     R"({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"})",
     ""},
    {"pythia_later",
     "gpt_neox",
     "neox",
     {"<|endoftext|>", "<|padding|>"},
     R"({"attention_bias": true})",
     R"({"add_bos_token": false, "add_eos_token": false, "add_prefix_space": false, "bos_token": "<|endoftext|>",
         "clean_up_tokenization_spaces": true, "eos_token": "<|endoftext|>", "pad_token": null,
         "tokenizer_class": "GPTNeoXTokenizer", "unk_token": "<|endoftext|>"})",
     "{}",
     ""},
    {"smollm2_instruct",
     "llama",
     "smollm",
     {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"},
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
         "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.041666666666666664,
         "is_llama_config": true, "mlp_bias": false, "pad_token_id": 2, "pretraining_tp": 1,
         "rope_interleaved": false, "rope_scaling": null, "torch_dtype": "bfloat16",
         "transformers.js_config": {"dtype": "q4", "kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"},
         "use_external_data_format": {"model.onnx": true, "model_fp16.onnx": true}},
         "transformers_version": "4.42.3", "use_cache": true})",
     R"({"add_prefix_space": false, "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
         "bos_token": "<|im_start|>", "chat_template": "{{ messages }}", "clean_up_tokenization_spaces": false,
         "eos_token": "<|im_end|>", "model_max_length": 8192, "pad_token": "<|im_end|>",
         "tokenizer_class": "GPT2Tokenizer", "unk_token": "<|endoftext|>", "vocab_size": 49152})",
     R"({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token":
         {"content": "<|im_start|>", "lstrip": false, "normalized": false, "rstrip": false, "single_word": false}})",
     R"({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
         "transformers_version": "4.42.3"})",
     true},
    {"llama32_instruct",
     "llama",
     "llama3",
     {"<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|eom_id|>", "<|eot_id|>"},
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
         "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu",
         "initializer_range": 0.02, "mlp_bias": false, "pretraining_tp": 1, "torch_dtype": "bfloat16",
         "transformers_version": "4.45.0.dev0", "use_cache": true})",
     R"({"bos_token": "<|begin_of_text|>", "chat_template": "{{ messages }}",
         "clean_up_tokenization_spaces": true, "eos_token": "<|eot_id|>",
         "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 131072,
         "tokenizer_class": "PreTrainedTokenizerFast"})",
     R"({"bos_token": {"content": "<|begin_of_text|>", "lstrip": false, "normalized": false, "rstrip": false,
         "single_word": false}, "eos_token": {"content": "<|eot_id|>", "lstrip": false, "normalized": false,
         "rstrip": false, "single_word": false}})",
     R"({"bos_token_id": 128000, "do_sample": true, "eos_token_id": [128001, 128008, 128009],
         "temperature": 0.6, "top_p": 0.9, "transformers_version": "4.45.0.dev0"})"},
    {"tinyllama_chat",
     "llama",
     "llama2",
     {},
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1, "eos_token_id": 2,
         "hidden_act": "silu", "initializer_range": 0.02, "pretraining_tp": 1, "rope_scaling": null,
         "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.35.0",
         "use_cache": true})",
     R"({"bos_token": "<s>", "chat_template": "{{ messages }}", "clean_up_tokenization_spaces": false,
         "eos_token": "</s>", "legacy": false, "model_max_length": 1000000000000000019884624838656,
         "pad_token": "</s>", "padding_side": "right", "sp_model_kwargs": {}, "tokenizer_class": "LlamaTokenizer",
         "unk_token": "<unk>", "use_default_system_prompt": false})",
     R"({"bos_token": {"content": "<s>", "lstrip": false, "normalized": false, "rstrip": false,
         "single_word": false}, "pad_token": "</s>"})",
     R"({"bos_token_id": 1, "eos_token_id": 2, "max_length": 2048, "pad_token_id": 0,
         "transformers_version": "4.35.0"})"},
    {"llama2",
     "llama",
     "llama2",
     {},
     R"({"_name_or_path": "meta-llama/Llama-2-7b-hf", "bos_token_id": 1, "eos_token_id": 2,
         "pretraining_tp": 1, "rope_scaling": null, "torch_dtype": "float16"})",
     R"({"add_bos_token": true, "add_eos_token": false,
         "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": false, "normalized": false,
         "rstrip": false, "single_word": false}, "clean_up_tokenization_spaces": false, "eos_token": "</s>",
         "legacy": false, "model_max_length": 1000000000000000019884624838656, "pad_token": null,
         "padding_side": "right", "sp_model_kwargs": {}, "tokenizer_class": "LlamaTokenizer",
         "unk_token": "<unk>"})",
     "{}",
     R"({"do_sample": true, "temperature": 0.6, "max_length": 4096, "top_p": 0.9, "pad_token_id": 0,
              "bos_token_id": 1, "eos_token_id": 2})"},
    {"mistral_instruct",
     "mistral",
     "mistral",
     {},
     R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
         "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "tie_word_embeddings": false,
         "torch_dtype": "bfloat16", "transformers_version": "4.42.0.dev0", "use_cache": true})",
     R"({"add_bos_token": false, "add_eos_token": false, "add_prefix_space": true, "additional_special_tokens": [],
         "bos_token": "<s>", "chat_template": [{"name": "default", "template": "{{ messages }}"},
         {"name": "tool_use", "template": "{{ tools }}"}], "clean_up_tokenization_spaces": false,
         "eos_token": "</s>", "legacy": false, "model_max_length": 1000000000000000019884624838656,
         "pad_token": null, "sp_model_kwargs": {}, "spaces_between_special_tokens": false,
         "tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", "use_default_system_prompt": false})",
     "{}",
     R"({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": 2})"},
    {"qwen25_instruct",
     "qwen2",
     "qwen2",
     {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_pad|>"},
     R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
         "eos_token_id": 151645, "hidden_act": "silu", "initializer_range": 0.02, "max_window_layers": 21,
         "sliding_window": 32768, "torch_dtype": "bfloat16", "transformers_version": "4.43.1", "use_cache": true,
         "use_sliding_window": false})",
     R"({"add_bos_token": false, "add_prefix_space": false,
         "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": null,
         "chat_template": "{{ messages }}", "clean_up_tokenization_spaces": false, "eos_token": "<|im_end|>",
         "errors": "replace", "model_max_length": 131072, "pad_token": "<|endoftext|>",
         "split_special_tokens": false, "tokenizer_class": "Qwen2Tokenizer", "unk_token": null})",
     "{}",
     R"({"bos_token_id": 151643, "pad_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643],
              "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20})"},
    {"qwen3",
     "qwen3",
     "qwen2",
     {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"},
     R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
         "bos_token_id": 151643, "eos_token_id": 151645, "max_window_layers": 28, "rope_scaling": null,
         "sliding_window": null, "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false})",
     R"({"add_bos_token": false, "add_prefix_space": false, "additional_special_tokens": ["<|im_start|>"],
         "bos_token": null, "clean_up_tokenization_spaces": false, "eos_token": "<|im_end|>", "errors": "replace",
         "model_max_length": 131072, "pad_token": "<|endoftext|>", "split_special_tokens": false,
         "tokenizer_class": "Qwen2Tokenizer", "unk_token": null})",
     "{}",
     R"({"bos_token_id": 151643, "do_sample": true, "eos_token_id": [151645, 151643], "pad_token_id": 151643,
              "temperature": 0.6, "top_k": 20, "top_p": 0.95, "transformers_version": "4.51.0"})"},
    {"smollm3",
     "smollm3",
     "llama3",
     {"<|begin_of_text|>", "<|end_of_text|>", "<|im_start|>", "<|im_end|>"},
     R"({"architectures": ["SmolLM3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
         "bos_token_id": 128000, "eos_token_id": 128012, "hidden_act": "silu", "initializer_range": 0.02,
         "max_window_layers": 28, "mlp_bias": false, "pad_token_id": 128004, "pretraining_tp": 2,
         "rope_scaling": null, "sliding_window": null, "torch_dtype": "bfloat16",
         "transformers_version": "4.54.0.dev0", "use_cache": false, "use_sliding_window": false})",
     R"({"bos_token": null, "clean_up_tokenization_spaces": true, "eos_token": "<|im_end|>",
         "extra_special_tokens": {}, "fast": false, "model_input_names": ["input_ids", "attention_mask"],
         "model_max_length": 131072, "pad_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"})",
     "{}",
     R"({"bos_token_id": 128000, "do_sample": true, "eos_token_id": 128012, "pad_token_id": 128012,
              "temperature": 0.6, "top_p": 0.95, "transformers_version": "4.54.0"})"},
    {"olmo2",
     "olmo2",
     "cl100k",
     {"<|endoftext|>", "<|endofprompt|>", "<|pad|>"},
     R"({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
         "eos_token_id": 100257, "hidden_act": "silu", "initializer_range": 0.02, "pad_token_id": 100277,
         "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float32",
         "transformers_version": "4.47.0", "use_cache": true})",
     R"({"add_prefix_space": false, "bos_token": "<|endoftext|>", "clean_up_tokenization_spaces": false,
         "eos_token": "<|endoftext|>", "extra_special_tokens": {}, "model_max_length": 8192, "pad_token": "<|pad|>",
         "tokenizer_class": "GPT2Tokenizer", "unk_token": "<|endoftext|>"})",
     "{}",
     R"({"_from_model_config": true, "eos_token_id": 100257, "pad_token_id": 100277})",
     true},
    {"gemma2",
     "gemma2",
     "gemma",
     {},
     R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
         "bos_token_id": 2, "cache_implementation": "hybrid", "eos_token_id": 1,
         "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "initializer_range": 0.02,
         "pad_token_id": 0, "sliding_window_size": 4096, "torch_dtype": "float32", "use_cache": true})",
     R"({"add_bos_token": false, "add_eos_token": false, "additional_special_tokens": ["<s>", "</s>"],
         "bos_token": "<s>", "chat_template": "{{ messages }}", "clean_up_tokenization_spaces": false,
         "eos_token": "</s>", "model_max_length": 1000000000000000019884624838656, "sp_model_kwargs": {},
         "spaces_between_special_tokens": false, "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>",
         "use_default_system_prompt": false})",
     "{}",
     R"({"_from_model_config": true, "bos_token_id": 2, "cache_implementation": "hybrid",
              "eos_token_id": 1, "pad_token_id": 0})"},
    {"gemma3",
     "gemma3_text",
     "gemma",
     {},
     R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
         "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid",
         "eos_token_id": [1, 106], "final_logit_softcapping": null, "hidden_activation": "gelu_pytorch_tanh",
         "initializer_range": 0.02, "pad_token_id": 0, "rope_scaling": null, "torch_dtype": "bfloat16",
         "use_bidirectional_attention": false, "use_cache": true})",
     R"({"add_bos_token": false, "add_eos_token": false, "boi_token": "<tok>", "bos_token": "<s>",
         "clean_up_tokenization_spaces": false, "eoi_token": "<tok>", "eos_token": "</s>",
         "extra_special_tokens": {"boi_token": "<tok>"}, "image_token": "<tok>",
         "model_max_length": 1000000000000000019884624838656, "processor_class": "Gemma3Processor",
         "sp_model_kwargs": null, "spaces_between_special_tokens": false, "tokenizer_class": "GemmaTokenizer",
         "unk_token": "<unk>", "use_default_system_prompt": false})",
     R"({"boi_token": "<tok>", "bos_token": "<s>"})",
     R"({"bos_token_id": 2, "cache_implementation": "hybrid", "do_sample": true, "eos_token_id": [1, 106],
         "pad_token_id": 0, "top_k": 64, "top_p": 0.95, "transformers_version": "4.50.0.dev0"})"},
    {"phi3_mini",
     "phi3",
     "llama2",
     {},
     R"({"_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"], "attention_bias": false,
         "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config",
         "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}, "bos_token_id": 1, "embd_pdrop": 0.0,
         "eos_token_id": 32000, "hidden_act": "silu", "initializer_range": 0.02, "pad_token_id": 32000,
         "resid_pdrop": 0.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true})",
     R"({"add_bos_token": true, "add_eos_token": false, "bos_token": "<s>", "chat_template": "{{ messages }}",
         "clean_up_tokenization_spaces": false, "eos_token": "</s>", "legacy": false, "model_max_length": 4096,
         "pad_token": "</s>", "padding_side": "left", "sp_model_kwargs": {}, "tokenizer_class": "LlamaTokenizer",
         "unk_token": "<unk>", "use_default_system_prompt": false})",
     "{}",
     R"({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": [32000, 32001, 32007],
              "pad_token_id": 32000})"},
    {"phi4_mini",
     "phi3",
     "o200k",
     {"<|endoftext|>", "<|end|>", "<|user|>"},
     R"({"architectures": ["Phi3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
         "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config",
         "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM", "AutoTokenizer": "Xenova/gpt-4o"},
         "bos_token_id": 199999, "embd_pdrop": 0.0, "eos_token_id": 199999, "full_attn_mod": 1,
         "hidden_act": "silu", "initializer_range": 0.02, "interpolate_factor": 1, "lm_head_bias": false,
         "mlp_bias": false, "pad_token_id": 199999, "resid_pdrop": 0.0, "torch_dtype": "bfloat16"})",
     R"({"add_bos_token": false, "add_eos_token": false, "add_prefix_space": false, "bos_token": "<|endoftext|>",
         "chat_template": "{{ messages }}", "clean_up_tokenization_spaces": false, "eos_token": "<|endoftext|>",
         "model_max_length": 131072, "pad_token": "<|endoftext|>", "tokenizer_class": "GPT2Tokenizer",
         "unk_token": "<|endoftext|>"})",
     "{}",
     R"({"_from_model_config": true, "bos_token_id": 199999, "eos_token_id": [200020, 199999],
              "pad_token_id": 199999})",
     true},
};

void PrintTo(const PublishedFolder& folder, std::ostream* out) {
    *out << folder.name;
}

/// tokenizer.json of byte tokens and the folder's added tokens, or the committed file.
std::string tokenizer_text(const std::vector<const char*>& tokens, const Pipeline& pipeline) {
    const fs::path references = fs::path(GRADTILE_SOURCE_DIR) / "tests/reference/tokenizers";
    if (pipeline.file) return json_of(references / "sentencepiece" / pipeline.file).dump();
    BytePairVocabulary vocabulary;
    for (int byte = 0; byte < 256; ++byte) vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
    for (const char* const token : tokens)
        vocabulary.added.push_back(
            {.id = 256 + static_cast<std::int32_t>(vocabulary.added.size()), .text = token});
    json file = json::parse(Tokenizer::byte_pairs(std::move(vocabulary), "test").file().content);
    file["pre_tokenizer"] = pipeline.pre_tokenizer;
    file["normalizer"] = pipeline.normalizer;
    file["model"]["ignore_merges"] = pipeline.whole_pieces;
    return file.dump();
}

class PublishedFiles : public testing::TestWithParam<PublishedFolder> {
  protected:
    void SetUp() override {
        if (pipeline_.normalizer == json{{"type", "NFC"}} && !GRADTILE_HAVE_UTF8PROC)
            GTEST_SKIP() << "NFC needs utf8proc";
        const std::string tokenizer = tokenizer_text(GetParam().tokens, pipeline_);
        const std::string file = place_.write("tokenizer.json", tokenizer);
        tokenizer_ = load_tokenizer(file);
        for (const test::FamilyModel& small : test::models_of_families())
            if (small.name == std::string_view(GetParam().family)) config_ = small.config;
        config_.vocabulary = tokenizer_->vocab_size();
        ImportedModel model = test::random_model(config_);
        export_model(checkpoint_of(model, "x"), "run", {.out = folder_.string()});
        std::ofstream(folder_ / "tokenizer.json") << tokenizer;
        json config = json_of(folder_ / "config.json");
        config.update(json::parse(GetParam().config));
        config["torch_dtype"] = "float32";  // as the small model's weights
        write_json(folder_ / "config.json", config);
        write_json(folder_ / "special_tokens_map.json", json::parse(GetParam().special_tokens_map));
        const std::string generation = GetParam().generation_config;
        if (!generation.empty()) write_json(folder_ / "generation_config.json", json::parse(generation));
        json text = json::parse(GetParam().tokenizer_config);
        for (const AddedToken& token : tokenizer_->byte_pair_encoding()->vocabulary().added)
            text["added_tokens_decoder"][std::to_string(token.id)] = {{"content", token.text},
                                                                      {"lstrip", token.lstrip},
                                                                      {"normalized", token.normalized},
                                                                      {"rstrip", token.rstrip},
                                                                      {"single_word", token.single_word},
                                                                      {"special", token.special}};
        write_json(folder_ / "tokenizer_config.json", text);
    }

    Pipeline pipeline_ = pipeline_named(GetParam().pipeline);
    TemporaryDirectory place_;
    fs::path folder_ = place_ / "model";
    std::optional<Tokenizer> tokenizer_;
    ModelConfig config_;
};

TEST_P(PublishedFiles, AreImportedAsTheModelComputesThem) {
    const ImportedModel model = import_model(folder_.string());
    EXPECT_EQ(model.config.layers, config_.layers);
    // tokenizer.json counts.
    EXPECT_EQ(model.tokenizer, tokenizer_);
    const auto replaced = HasSubstr("cuts text otherwise than tokenizer.json");
    const auto template_note = HasSubstr("`chat` needs --chat-template");
    std::vector<std::string> notes;
    for (const std::string& note : model.notes)
        // The small model has fewer tokens than the published one.
        if (note.find("longrope") == std::string::npos && note.find("eos_token_id") == std::string::npos &&
            !testing::Value(note, template_note))
            notes.push_back(note);
    if (GetParam().replaces_pattern) {
        EXPECT_THAT(notes, ElementsAre(replaced));
    } else {
        EXPECT_THAT(notes, IsEmpty());
    }
    // Both exports hold the tokenizer.
    write_imported_run(model, place_ / "run");
    const Checkpoint checkpoint = load_checkpoint(place_ / "run");
    export_model(checkpoint, "run", {.out = place_ / "out"});
    for (const char* const file : {"config.json", "tokenizer.json", "tokenizer_config.json"})
        EXPECT_EQ(json_of(place_ / "out" / file), json_of(folder_ / file)) << file;
    const GgufMetadata metadata = gguf_tokenizer_metadata(&*model.tokenizer, model.config.vocabulary,
                                                          {.tokens = {.begin = 1, .end = {2}}}, "run");
    const std::map<std::string, GgufValue> values(metadata.begin(), metadata.end());
    const bool has_scores = std::string_view(pipeline_.gguf) == "llama";
    EXPECT_EQ(values.at(has_scores ? "tokenizer.ggml.model" : "tokenizer.ggml.pre"),
              GgufValue(std::string(pipeline_.gguf)));
    EXPECT_EQ(values.contains("tokenizer.ggml.scores"), has_scores);
}

INSTANTIATE_TEST_SUITE_P(Models, PublishedFiles, testing::ValuesIn(published_folders),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(PublishedFolders, OfEveryFamilyAreAmongTheRows) {
    for (const ModelFamily& family : model_families())
        EXPECT_TRUE(std::ranges::any_of(published_folders, [&](const PublishedFolder& folder) {
            return folder.family == family.type;
        })) << family.type;
}

/// A folder with one file of byte tokens and a class of transformers.
TEST(TokenizerFolder, KnowsTheClassesOfItsTableAndNoOther) {
    const TemporaryDirectory place;
    const fs::path folder = place / "folder";
    fs::create_directory(folder);
    std::ofstream(folder / "tokenizer.json")
        << tokenizer_text({"<|endoftext|>", "<|padding|>"}, pipeline_named("smollm"));
    const auto message_with = [&](const std::string& name) {
        write_json(folder / "tokenizer_config.json", {{"tokenizer_class", name}});
        return message_of([&] { load_tokenizer(folder.string()); });
    };
    for (const std::string_view name : tokenizer_classes()) {
        EXPECT_EQ(message_with(std::string(name)), "no error") << name;
        EXPECT_EQ(message_with(concat(name, "Fast")), name.empty() ? message_with("Fast") : "no error")
            << name;
        EXPECT_THAT(message_with("BertTokenizer"), HasSubstr(name));
    }
    EXPECT_THAT(message_with("BertTokenizer"),
                HasSubstr("tokenizer_class: 'BertTokenizer' is not supported"));
}

/// vocab.json has no pattern, so the class's counts.
TEST(TokenizerFolder, VocabJsonIsCutAsItsClassCuts) {
    if (!GRADTILE_HAVE_UTF8PROC) GTEST_SKIP() << "NFC needs utf8proc";
    const TemporaryDirectory place;
    const fs::path folder = place / "folder";
    fs::create_directory(folder);
    const json file = json::parse(tokenizer_text({"<|endoftext|>"}, pipeline_named("gpt2")));
    json vocab = file["model"]["vocab"];
    vocab["<|endoftext|>"] = 256;
    write_json(folder / "vocab.json", vocab);
    std::ofstream(folder / "merges.txt") << "#version: 0.2\n";
    write_json(folder / "tokenizer_config.json", {{"tokenizer_class", "Qwen2Tokenizer"}});
    const Tokenizer tokenizer = load_tokenizer(folder.string());
    const BytePairVocabulary& found = tokenizer.byte_pair_encoding()->vocabulary();
    EXPECT_EQ(found.patterns, std::vector{SplitPattern{std::string(qwen2_pattern())}});
    EXPECT_EQ(found.normalizer, std::vector<NormalizerStep>{UnicodeForm::nfc});
}

#endif

}  // namespace
}  // namespace gradtile
