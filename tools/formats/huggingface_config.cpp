#include <gradtile/tools/formats/huggingface_config.h>

#include <algorithm>
#include <array>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/json_writer.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/formats/transformers_members.h>
#include <gradtile/train/config/train_config.h>

namespace gradtile {
namespace {

/// Names for one setting. Transformers accepts each name.
using Names = std::initializer_list<const char*>;

/// Reads the members of a config.json. Errors name file and member.
class ConfigReader {
  public:
    ConfigReader(const JsonValue& value, std::string_view source) : value_(value), source_(source) {
        check(value.is_object(), source_, ": expected an object");
    }

    bool has(const char* name) const { return value_.contains(name) && !value_[name].is_null(); }
    std::int64_t integer(Names names, std::int64_t missing) const {
        const char* const name = name_among(names);
        if (!name) return missing;
        const JsonValue& value = value_[name];
        check(value.is_number_unsigned() && value.number() <= 1e15, source_, ": ", name, ": ",
              json_excerpt(value), "; expected an integer, 0 or more");
        return value.get<std::int64_t>();
    }
    std::int64_t integer(const char* name, std::int64_t missing) const { return integer({name}, missing); }
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
    std::string text(Names names, const char* missing) const {
        const char* const name = name_among(names);
        if (!name) return missing;
        check(value_[name].is_string(), source_, ": ", name, ": ", json_excerpt(value_[name]),
              "; expected a string");
        return value_[name].get<std::string>();
    }
    std::string text(const char* name, const char* missing) const { return text({name}, missing); }
    const JsonValue& operator[](const char* name) const { return value_[name]; }
    const std::string& source() const { return source_; }

  private:
    /// Returns the name in `names` that the object has; null if it has none. If two names have different
    /// values, transformers' version decides which value counts, so two different values are refused.
    const char* name_among(Names names) const {
        const char* found = nullptr;
        for (const char* const name : names) {
            if (!has(name)) continue;
            check(!found || value_[found] == value_[name], source_, ": ", found ? found : "", ": ",
                  found ? json_excerpt(value_[found]) : "", ", but ", name, ": ", json_excerpt(value_[name]),
                  "; expected one of these members, or equal values");
            if (!found) found = name;
        }
        return found;
    }

    const JsonValue& value_;
    std::string source_;
};

struct ActivationName {
    std::string_view name;
    Activation activation;
};
/// Activation names in transformers. If an activation has several names, export writes the first one.
constexpr std::array gpt2_activations{ActivationName{"gelu_new", Activation::gelu_tanh},
                                      ActivationName{"gelu_pytorch_tanh", Activation::gelu_tanh},
                                      ActivationName{"gelu", Activation::gelu},
                                      ActivationName{"relu2", Activation::relu2}};

ModelConfig read_gpt2(const ConfigReader& reader) {
    const std::string activation = reader.text("activation_function", "gelu_new");
    const auto known = std::ranges::find(gpt2_activations, activation, &ActivationName::name);
    check(known != gpt2_activations.end(), reader.source(), ": activation_function: '", printable(activation),
          "' is not known; expected gelu_new, gelu_pytorch_tanh, gelu or relu2");
    return {.layers = reader.integer({"n_layer", "num_hidden_layers"}, 12),
            .heads = reader.integer({"n_head", "num_attention_heads"}, 12),
            .width = reader.integer({"n_embd", "hidden_size"}, 768),
            .hidden = reader.integer("n_inner", 0),
            .context = reader.integer({"n_positions", "max_position_embeddings"}, 1024),
            .vocabulary = reader.integer("vocab_size", 50257),
            .activation = known->activation,
            .norm_epsilon = reader.number("layer_norm_epsilon", 1e-5),
            .tied_head = reader.boolean("tie_word_embeddings", true)};
}

/// Returns the rotary positions' base. The base is in rope_theta, or, since transformers 5, in
/// rope_parameters, whose older name is rope_scaling.
double read_rope_base(const ConfigReader& reader, UnknownMembers& unknown) {
    constexpr double default_base = 10000.0;
    const bool is_top = reader.has("rope_theta");
    double base = reader.number("rope_theta", default_base);
    const char* const name = reader.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
    if (!reader.has(name)) return base;
    check(!reader.has("rope_parameters") || reader[name] == reader["rope_parameters"], reader.source(),
          ": rope_scaling and rope_parameters differ; expected one of them");
    const ConfigReader rope(reader[name], concat(reader.source(), ": ", name));
    check_members(reader[name], rope_members(), rope.source(), unknown);
    const std::string type = rope.text({"rope_type", "type"}, "default");
    check(type == "default", rope.source(), ": rope_type '", printable(type),
          "' is not supported; expected default (no scaling)");
    if (rope.has("rope_theta")) {
        const double inner = rope.number("rope_theta", default_base);
        check(!is_top || inner == base, rope.source(), ": rope_theta: ", inner, ", but rope_theta beside ",
              name, ": ", base, "; expected one of these members, or equal values");
        base = inner;
    }
    return base;
}

ModelConfig read_llama(const ConfigReader& reader, UnknownMembers& unknown) {
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
                                   .rope_base = read_rope_base(reader, unknown),
                                   .norm_epsilon = reader.number("rms_norm_eps", 1e-6)});
    config.kv_heads = reader.integer("num_key_value_heads", 0);
    config.tied_head = reader.boolean("tie_word_embeddings", false);
    config.bias = bias;
    const bool divides = config.heads > 0 && config.width % config.heads == 0;
    check(!reader.has("head_dim") || (divides && reader.integer("head_dim", 0) == config.head_dim()),
          reader.source(), ": head_dim: ", reader.integer("head_dim", 0), " is not supported; expected ",
          "hidden_size / num_attention_heads");
    return config;
}

std::int32_t token_id_of(const JsonValue& id, const ConfigReader& reader) {
    check(id.fits<std::int32_t>() && id.get<std::int32_t>() >= -1, reader.source(),
          ": eos_token_id: ", json_excerpt(id), "; expected a token id or a list of them");
    return id.get<std::int32_t>();
}

TextEnds read_text_ends(const ConfigReader& reader) {
    TextEnds ends;
    if (reader.has("eos_token_id")) {
        const JsonValue& eos = reader["eos_token_id"];
        ends.tokens.emplace();
        if (eos.is_array()) {
            for (const JsonValue& id : eos.elements()) ends.tokens->push_back(token_id_of(id, reader));
        } else {
            ends.tokens->push_back(token_id_of(eos, reader));
        }
    }
    if (!reader.has("stop_strings")) return ends;
    const JsonValue& stops = reader["stop_strings"];
    for (const JsonValue& stop : stops.is_array() ? stops.elements() : JsonValue::Array{stops}) {
        check(stop.is_string(), reader.source(), ": stop_strings: ", json_excerpt(stop),
              "; expected a text or a list of texts");
        ends.texts.push_back(stop.get<std::string>());
    }
    return ends;
}

/// Returns the config in a form in which equal models have equal configs: with defaults replaced by their
/// values.
ModelConfig comparable(ModelConfig config) {
    config.kv_heads = config.key_value_heads();
    config.hidden = config.hidden_width();
    const ModelConfig plain;
    // Without a window the pattern has no effect.
    if (config.window == 0) config.window_pattern = plain.window_pattern;
    if (!rotates_heads(config.positions)) config.rope_base = plain.rope_base;
    return config;
}

/// Throws Error that names the first setting in `config` which changes when the config is written and read
/// again. A setting that is added to the program later is refused in this way, too, until the file can
/// express it.
void check_same_model(const ModelConfig& config, const ModelConfig& written, std::string_view type,
                      std::string_view source) {
    const JsonValue own = to_json(comparable(config)), read = to_json(comparable(written));
    for (const auto& [name, value] : own.items())
        check(value == read[name], source, ": ", name, " ", json_excerpt(value),
              " cannot be stored in a model of type ", type, "; it has ", name, " ",
              json_excerpt(read[name]));
    check(comparable(config) == comparable(written), source, ": the model cannot be stored in type ", type);
}

JsonValue gpt2_json(const ModelConfig& c, const TrainingOptions& training) {
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
                              {"attn_pdrop", training.attention_dropout},
                              {"embd_pdrop", training.dropout},
                              {"resid_pdrop", training.dropout}});
}

JsonValue llama_json(const ModelConfig& c, const TrainingOptions& training) {
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
                              {"attention_dropout", training.attention_dropout},
                              {"rms_norm_eps", c.norm_epsilon},
                              {"rope_theta", c.rope_base},
                              {"rope_scaling", nullptr}});
}

constexpr std::array<std::string_view, 2> dtype_members{"dtype", "torch_dtype"};

/// Prints a config.json with another dtype. Keeps the member order, which a JsonValue does not.
class DTypeReplacer final : public JsonHandler {
  public:
    explicit DTypeReplacer(DType dtype) : dtype_(name_of(dtype)) {}

    void scalar(JsonValue value) override {
        writer_.scalar(is_dtype_ && !value.is_null() ? JsonValue(dtype_) : std::move(value));
        is_dtype_ = false;
    }
    void name(std::string name) override {
        is_dtype_ = depth_ == 1 && std::ranges::find(dtype_members, name) != dtype_members.end();
        writer_.name(std::move(name));
    }
    void begin_array() override {
        begin();
        writer_.begin_array();
    }
    void begin_object() override {
        begin();
        writer_.begin_object();
    }
    void end() override {
        --depth_;
        writer_.end();
    }

    std::string take() {
        writer_.finish();
        text_ += '\n';
        return std::move(text_);
    }

  private:
    void begin() {
        ++depth_;
        is_dtype_ = false;
    }

    std::string_view dtype_;
    int depth_ = 0;
    bool is_dtype_ = false;  // the next value is the model's dtype
    std::string text_;
    JsonWriter writer_{text_, 2};
};

}  // namespace

HuggingFaceModel read_huggingface_config(const JsonValue& value, std::string_view source,
                                         UnknownMembers& unknown) {
    const ConfigReader reader(value, source);
    const std::string type = reader.text("model_type", "");
    check(type == "gpt2" || type == "llama", source, ": model_type: '", printable(type),
          "' is not supported; expected gpt2 or llama");
    const bool llama = type == "llama";
    HuggingFaceModel model{.layout =
                               llama ? WeightLayout::huggingface_llama : WeightLayout::huggingface_gpt2};
    check_members(value, config_members(model.layout), source, unknown);
    model.config = llama ? read_llama(reader, unknown) : read_gpt2(reader);
    model.ends = read_text_ends(reader);
    model.tokenizer_class = reader.text("tokenizer_class", "");
    try {
        validate(model.config);
        check(model.config.vocabulary >= 1, "vocabulary: 0; expected at least 1");
    } catch (const Error& error) {
        throw Error(concat(source, ": ", error.what()));
    }
    return model;
}

TextEnds read_generation_config(const JsonValue& value, std::string_view source, UnknownMembers& unknown) {
    const ConfigReader reader(value, source);
    check_members(value, generation_members(), source, unknown);
    return read_text_ends(reader);
}

WeightLayout huggingface_layout_of(const ModelConfig& config) {
    return rotates_heads(config.positions) ? WeightLayout::huggingface_llama : WeightLayout::huggingface_gpt2;
}

JsonValue huggingface_config_of(const ModelConfig& config, const TrainingOptions& training, DType dtype,
                                const TextTokens& tokens, std::string_view source) {
    const bool llama = huggingface_layout_of(config) == WeightLayout::huggingface_llama;
    JsonValue value = llama ? llama_json(config, training) : gpt2_json(config, training);
    value.set("tie_word_embeddings", config.tied_head);
    value.set("torch_dtype", name_of(dtype));
    value.set("bos_token_id", tokens.begin ? JsonValue(*tokens.begin) : JsonValue());
    // Converters to other formats read one id here. generation_config.json has all ids.
    value.set("eos_token_id", tokens.end.empty() ? JsonValue() : JsonValue(tokens.end.front()));
    UnknownMembers none;
    check_same_model(config, read_huggingface_config(value, source, none).config, llama ? "llama" : "gpt2",
                     source);
    return value;
}

std::optional<std::string> kept_config_of(const std::string& text, const ModelConfig& config, DType dtype,
                                          std::string_view source) {
    UnknownMembers unknown{.allowed = true};
    const JsonValue value = parse_json(text, source);
    const ModelConfig kept = read_huggingface_config(value, source, unknown).config;
    if (comparable(kept) != comparable(config)) return std::nullopt;
    const bool is_changed = std::ranges::any_of(dtype_members, [&](std::string_view name) {
        const JsonValue* const written = value.find(name);
        return written && !written->is_null() && *written != name_of(dtype);
    });
    if (!is_changed) return text;
    DTypeReplacer replacer(dtype);
    read_json(text, source, replacer);
    return replacer.take();
}

}  // namespace gradtile
