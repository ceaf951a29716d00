#include <gradtile/train/formats/huggingface_config.h>

#include <gradtile/core/check.h>
#include <gradtile/core/text/message.h>
#include <gradtile/train/train_config.h>

namespace gradtile {
namespace {

/// The members of a config.json, with an error that names file and member.
class ConfigReader {
  public:
    ConfigReader(const JsonValue& value, std::string_view source) : value_(value), source_(source) {
        check(value.is_object(), source_, ": expected an object");
    }

    bool has(const char* name) const { return value_.contains(name) && !value_[name].is_null(); }
    std::int64_t integer(const char* name, std::int64_t missing) const {
        if (!has(name)) return missing;
        const JsonValue& value = value_[name];
        check(value.is_number_unsigned() && value.number() <= 1e15, source_, ": ", name, ": ",
              json_excerpt(value), "; expected an integer, 0 or more");
        return value.get<std::int64_t>();
    }
    double number(const char* name, double missing) const {
        if (!has(name)) return missing;
        check(value_[name].is_number(), source_, ": ", name, ": ", json_excerpt(value_[name]),
              "; expected a number");
        return value_[name].get<double>();
    }
    bool boolean(const char* name, bool missing) const {
        if (!has(name)) return missing;
        check(value_[name].is_boolean(), source_, ": ", name, ": ", json_excerpt(value_[name]),
              "; expected true or false");
        return value_[name].get<bool>();
    }
    std::string text(const char* name, const char* missing) const {
        if (!has(name)) return missing;
        check(value_[name].is_string(), source_, ": ", name, ": ", json_excerpt(value_[name]),
              "; expected a string");
        return value_[name].get<std::string>();
    }
    /// Throws Error unless the member has the expected value. With another value, the model would be one that
    /// this program does not have.
    void require(const char* name, bool missing, bool expected) const {
        check(boolean(name, missing) == expected, source_, ": ", name, ": ", expected ? "false" : "true",
              " is not supported; expected ", expected ? "true" : "false");
    }
    void require_absent(const char* name) const {
        check(!has(name), source_, ": ", name, " is not supported");
    }
    ConfigReader object(const char* name) const { return {value_[name], concat(source_, ": ", name)}; }
    const std::string& source() const { return source_; }

  private:
    const JsonValue& value_;
    std::string source_;
};

struct ActivationName {
    std::string_view name;
    Activation activation;
};
/// The names of activations in transformers. If an activation has several names, export writes the first one.
constexpr std::array gpt2_activations{ActivationName{"gelu_new", Activation::gelu_tanh},
                                      ActivationName{"gelu_pytorch_tanh", Activation::gelu_tanh},
                                      ActivationName{"gelu", Activation::gelu},
                                      ActivationName{"relu2", Activation::relu2}};

ModelConfig read_gpt2(const ConfigReader& reader) {
    reader.require("scale_attn_weights", true, true);
    reader.require("scale_attn_by_inverse_layer_idx", false, false);
    reader.require("add_cross_attention", false, false);
    const std::string activation = reader.text("activation_function", "gelu_new");
    const auto known = std::ranges::find(gpt2_activations, activation, &ActivationName::name);
    check(known != gpt2_activations.end(), reader.source(), ": activation_function: '", printable(activation),
          "' is not known; expected gelu_new, gelu_pytorch_tanh, gelu or relu2");
    return {.layers = reader.integer("n_layer", 12),
            .heads = reader.integer("n_head", 12),
            .width = reader.integer("n_embd", 768),
            .hidden = reader.integer("n_inner", 0),
            .context = reader.integer("n_positions", 1024),
            .vocabulary = reader.integer("vocab_size", 50257),
            .activation = known->activation,
            .norm_epsilon = reader.number("layer_norm_epsilon", 1e-5),
            .tied_head = reader.boolean("tie_word_embeddings", true)};
}

/// The settings of rotary positions are in rope_theta and rope_scaling, or, since transformers 5, in
/// rope_parameters.
double read_rope_base(const ConfigReader& reader) {
    double base = reader.number("rope_theta", 10000.0);
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
        if (!reader.has(name)) continue;
        const ConfigReader rope = reader.object(name);
        const std::string type = rope.text("rope_type", rope.text("type", "default").c_str());
        check(type == "default", rope.source(), ": rope_type '", printable(type),
              "' is not supported; expected default (no scaling)");
        check(rope.number("partial_rotary_factor", 1.0) == 1.0, rope.source(),
              ": partial_rotary_factor is not supported");
        base = rope.number("rope_theta", base);
    }
    return base;
}

ModelConfig read_llama(const ConfigReader& reader) {
    const std::string activation = reader.text("hidden_act", "silu");
    check(activation == "silu", reader.source(), ": hidden_act: '", printable(activation),
          "' is not supported; expected silu");
    const bool bias = reader.boolean("attention_bias", false);
    check(reader.boolean("mlp_bias", false) == bias, reader.source(),
          ": attention_bias and mlp_bias differ; ", "expected biases in all linear layers or in none");
    ModelConfig config = as_llama({.layers = reader.integer("num_hidden_layers", 32),
                                   .heads = reader.integer("num_attention_heads", 32),
                                   .width = reader.integer("hidden_size", 4096),
                                   .hidden = reader.integer("intermediate_size", 11008),
                                   .context = reader.integer("max_position_embeddings", 2048),
                                   .vocabulary = reader.integer("vocab_size", 32000),
                                   .rope_base = read_rope_base(reader),
                                   .norm_epsilon = reader.number("rms_norm_eps", 1e-6)});
    config.kv_heads = reader.integer("num_key_value_heads", 0);
    config.tied_head = reader.boolean("tie_word_embeddings", false);
    config.bias = bias;
    const bool divides = config.heads > 0 && config.width % config.heads == 0;
    check(!reader.has("head_dim") || (divides && reader.integer("head_dim", 0) == config.head_dim()),
          reader.source(), ": head_dim: ", reader.integer("head_dim", 0), " is not supported; expected ",
          "hidden_size / num_attention_heads");
    check(reader.number("partial_rotary_factor", 1.0) == 1.0, reader.source(),
          ": partial_rotary_factor is not supported");
    return config;
}

/// Returns the config in a form in which equal models have equal configs: with defaults replaced by their
/// values, and with fixed values for the settings of training.
ModelConfig comparable(ModelConfig config) {
    config.kv_heads = config.key_value_heads();
    config.hidden = config.hidden_width();
    const ModelConfig plain;
    config.dropout = plain.dropout;
    config.attention_dropout = plain.attention_dropout;
    // Without a window the pattern has no effect.
    if (config.window == 0) config.window_pattern = plain.window_pattern;
    config.recompute = plain.recompute;
    config.deterministic = plain.deterministic;
    if (!rotates_heads(config.positions)) config.rope_base = plain.rope_base;
    return config;
}

JsonValue settings_of(const ModelConfig& config) {
    TrainConfig train;
    train.model = config;
    return to_json(train);
}

/// Throws Error with the name of the first setting of `config` that changes when the config is written and
/// read again. A setting that is added to the program later is refused in this way, too, until the file can
/// express it.
void check_same_model(const ModelConfig& config, const ModelConfig& written, std::string_view type,
                      std::string_view source) {
    const JsonValue own = settings_of(comparable(config)), read = settings_of(comparable(written));
    for (const auto& [name, value] : own.items())
        check(value == read[name], source, ": ", name, " ", json_excerpt(value),
              " cannot be stored in a model of type ", type, "; it has ", name, " ",
              json_excerpt(read[name]));
    check(comparable(config) == comparable(written), source, ": the model cannot be stored in type ", type);
}

JsonValue gpt2_json(const ModelConfig& c) {
    const auto activation = std::ranges::find(gpt2_activations, c.activation, &ActivationName::activation);
    // If the activation has no name here, the comparison in check_same_model() refuses it.
    const std::string_view name = activation == gpt2_activations.end() ? "gelu_new" : activation->name;
    return JsonValue::object({{"architectures", JsonValue::Array{"GPT2LMHeadModel"}},
                              {"model_type", "gpt2"},
                              {"n_layer", c.layers},
                              {"n_head", c.heads},
                              {"n_embd", c.width},
                              {"n_inner", c.hidden_width()},
                              {"n_positions", c.context},
                              {"n_ctx", c.context},
                              {"vocab_size", c.vocabulary},
                              {"activation_function", name},
                              {"layer_norm_epsilon", c.norm_epsilon},
                              {"attn_pdrop", c.attention_dropout},
                              {"embd_pdrop", c.dropout},
                              {"resid_pdrop", c.dropout}});
}

JsonValue llama_json(const ModelConfig& c) {
    return JsonValue::object({{"architectures", JsonValue::Array{"LlamaForCausalLM"}},
                              {"model_type", "llama"},
                              {"num_hidden_layers", c.layers},
                              {"num_attention_heads", c.heads},
                              {"num_key_value_heads", c.key_value_heads()},
                              {"hidden_size", c.width},
                              {"head_dim", c.head_dim()},
                              {"intermediate_size", c.hidden_width()},
                              {"max_position_embeddings", c.context},
                              {"vocab_size", c.vocabulary},
                              {"hidden_act", "silu"},
                              {"attention_bias", c.bias},
                              {"mlp_bias", c.bias},
                              {"attention_dropout", c.attention_dropout},
                              {"rms_norm_eps", c.norm_epsilon},
                              {"rope_theta", c.rope_base},
                              {"rope_scaling", nullptr}});
}

/// Returns the id of the added token with this text; null if the tokenizer has no such added token.
JsonValue token_id(const Tokenizer* tokenizer, std::string_view text) {
    const BytePairEncoding* const encoding = tokenizer ? tokenizer->byte_pair_encoding() : nullptr;
    const auto id = encoding ? encoding->added_token(text) : std::nullopt;
    return id ? JsonValue(*id) : JsonValue();
}

}  // namespace

HuggingFaceModel read_huggingface_config(const JsonValue& value, std::string_view source) {
    const ConfigReader reader(value, source);
    reader.require_absent("quantization_config");
    const std::string type = reader.text("model_type", "");
    check(type == "gpt2" || type == "llama", source, ": model_type: '", printable(type),
          "' is not supported; expected gpt2 or llama");
    const bool llama = type == "llama";
    HuggingFaceModel model{.layout = llama ? WeightLayout::huggingface_llama : WeightLayout::huggingface_gpt2,
                           .config = llama ? read_llama(reader) : read_gpt2(reader)};
    try {
        validate(model.config);
        check(model.config.vocabulary >= 1, "vocabulary: 0; expected at least 1");
    } catch (const Error& error) {
        throw Error(concat(source, ": ", error.what()));
    }
    return model;
}

WeightLayout huggingface_layout_of(const ModelConfig& config) {
    return rotates_heads(config.positions) ? WeightLayout::huggingface_llama : WeightLayout::huggingface_gpt2;
}

JsonValue huggingface_config_of(const ModelConfig& config, DType dtype, const Tokenizer* tokenizer,
                                std::string_view source) {
    const bool llama = huggingface_layout_of(config) == WeightLayout::huggingface_llama;
    JsonValue value = llama ? llama_json(config) : gpt2_json(config);
    value.set("tie_word_embeddings", config.tied_head);
    value.set("torch_dtype", name_of(dtype));
    JsonValue begin = token_id(tokenizer, "<|begin_of_text|>"), end = token_id(tokenizer, "<|end_of_text|>");
    if (begin.is_null()) begin = end = token_id(tokenizer, "<|endoftext|>");
    value.set("bos_token_id", begin);
    value.set("eos_token_id", end);
    check_same_model(config, read_huggingface_config(value, source).config, llama ? "llama" : "gpt2", source);
    return value;
}

}  // namespace gradtile
