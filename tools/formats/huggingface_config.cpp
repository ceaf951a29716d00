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

std::int32_t token_id_of(const JsonValue& id, std::string_view source) {
    check(id.fits<std::int32_t>() && id.get<std::int32_t>() >= -1, source,
          ": eos_token_id: ", json_excerpt(id), "; expected a token id or a list of them");
    return id.get<std::int32_t>();
}

TextEnds read_text_ends(const JsonValue& object, std::string_view source) {
    TextEnds ends;
    if (const JsonValue* const eos = object.find_value("eos_token_id")) {
        ends.tokens.emplace();
        for (const JsonValue& id : eos->is_array() ? eos->elements() : JsonValue::Array{*eos})
            ends.tokens->push_back(token_id_of(id, source));
    }
    const JsonValue* const stops = object.find_value("stop_strings");
    if (!stops) return ends;
    for (const JsonValue& stop : stops->is_array() ? stops->elements() : JsonValue::Array{*stops}) {
        check(stop.is_string(), source, ": stop_strings: ", json_excerpt(stop),
              "; expected a text or a list of texts");
        ends.texts.push_back(stop.get<std::string>());
    }
    return ends;
}

std::string text_of(const JsonValue& object, const char* name, std::string_view source) {
    const JsonValue* const value = object.find_value(name);
    if (!value) return "";
    check(value->is_string(), source, ": ", name, ": ", json_excerpt(*value), "; expected a string");
    return value->text();
}

/// "gpt2, llama or qwen2".
std::string known_types() {
    std::string text;
    const auto families = model_families();
    for (std::size_t i = 0; i < families.size(); ++i)
        text += concat(i == 0 ? "" : i + 1 < families.size() ? ", " : " or ", families[i].type);
    return text;
}

/// Throws Error if rope_scaling or rope_parameters, or one of the two in them for two kinds of layers, has a
/// member that is not known.
void check_rope_members(const JsonValue& config, std::string_view source, UnknownMembers& unknown) {
    for (const char* const name : {"rope_scaling", "rope_parameters"}) {
        const JsonValue* const rope = config.find_value(name);
        if (!rope) continue;
        const std::string rope_source = concat(source, ": ", name);
        bool is_nested = false;
        for (const char* const layers : {"full_attention", "sliding_attention"})
            if (const JsonValue* const inner = rope->find_value(layers)) {
                is_nested = true;
                check_members(*inner, rope_members(), concat(rope_source, ": ", layers), unknown);
            }
        if (!is_nested) check_members(*rope, rope_members(), rope_source, unknown);
    }
}

/// Returns the scaling in a form in which equal frequencies have equal settings.
RopeScaling comparable(RopeScaling s, std::int64_t context) {
    const RopeScaling plain;
    const RopeKind kind = s.kind;
    if (kind == RopeKind::none || kind == RopeKind::half_truncated) return {.kind = kind};
    if (kind == RopeKind::linear) s.original_context = plain.original_context;
    if (kind != RopeKind::linear && s.original_context == 0) s.original_context = context;
    // Within the original context dynamic scaling changes nothing.
    if (kind == RopeKind::dynamic) s.original_context = std::min(s.original_context, context);
    if (kind != RopeKind::llama3) s.low_factor = plain.low_factor, s.high_factor = plain.high_factor;
    if (kind != RopeKind::yarn) {
        s.beta_fast = plain.beta_fast;
        s.beta_slow = plain.beta_slow;
        s.truncate = plain.truncate;
        s.mscale = s.mscale_all_dim = 0;
    }
    if (kind != RopeKind::longrope) s.short_factors = s.long_factors = {};
    if (kind != RopeKind::yarn && kind != RopeKind::longrope) s.attention_factor = 0;
    return s;
}

/// Returns the config in a form in which equal models have equal configs: with defaults replaced by their
/// values.
ModelConfig comparable(ModelConfig config) {
    const ModelConfig plain;
    config.kv_heads = config.key_value_heads();
    config.hidden = config.hidden_width();
    config.head_width = config.head_dim();
    config.rotary_width = config.rotated_width();
    config.rope_scaling = comparable(config.rope_scaling, config.context);
    config.qkv_bias = config.qkv_bias || config.bias;
    if (config.query_scalar == 0) config.query_scalar = static_cast<double>(config.head_dim());
    if (!config.qk_norm) config.qk_norm_kind = plain.qk_norm_kind;
    if (config.logit_softcap.limit == 0) config.logit_softcap = {};
    // A pattern has no effect without a window, nor in a model with fewer layers.
    if (config.window == 0 || config.window_pattern > config.layers) config.window_pattern = 0;
    if (config.rope_pattern > config.layers) config.rope_pattern = 0;
    if (config.window == 0 || config.window_rope_base == 0) config.window_rope_base = config.rope_base;
    if (rotates_heads(config.positions)) return config;
    config.rope_base = config.window_rope_base = plain.rope_base;
    config.rotary_width = plain.rotary_width;
    config.rope_scaling = {};
    config.rope_pattern = plain.rope_pattern;
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

ModelConfig read_config(const ModelFamily& family, const JsonValue& value, std::string_view source) {
    ConfigMembers members(value, source);
    ModelConfig config = family.defaults();
    family.map(members, config, {});
    try {
        validate(config);
        check(config.vocabulary >= 1, "vocabulary: 0; expected at least 1");
    } catch (const Error& error) {
        throw Error(concat(source, ": ", error.what()));
    }
    return config;
}

/// Returns the members that describe the model. Throws Error, as check_same_model() does, if the family
/// cannot express it.
JsonValue model_members(const ModelFamily& family, const ModelConfig& config, const TrainingOptions& training,
                        std::string_view source) {
    ConfigMembers members;
    ModelConfig values = comparable(config);
    try {
        family.map(members, values, training);
    } catch (const Error& error) {
        throw Error(concat(source, error.what()));
    }
    JsonValue value = members.take();
    check_same_model(config, read_config(family, value, source), family.type, source);
    value.set("architectures", JsonValue::Array{family.architecture});
    value.set("model_type", family.type);
    return value;
}

bool can_hold(const ModelFamily& family, const ModelConfig& config) {
    try {
        model_members(family, config, {}, "");
    } catch (const Error&) {
        return false;
    }
    return true;
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
    check(value.is_object(), source, ": ", json_excerpt(value), "; expected an object");
    const std::string type = text_of(value, "model_type", source);
    const ModelFamily* const family = find_family(type);
    // The errors of these members say more than that of an unknown model_type.
    UnknownMembers all_known{.allowed = true};
    if (!family) check_members(value, foreign_members(), source, all_known);
    check(family != nullptr, source, ": model_type: '", printable(type), "' is not supported; expected ",
          known_types());
    check_members(value, config_members(*family), source, unknown);
    check_rope_members(value, source, unknown);
    return {.family = family,
            .config = read_config(*family, value, source),
            .ends = read_text_ends(value, source),
            .tokenizer_class = text_of(value, "tokenizer_class", source)};
}

TextEnds read_generation_config(const JsonValue& value, std::string_view source, UnknownMembers& unknown) {
    check_members(value, generation_members(), source, unknown);
    return read_text_ends(value, source);
}

const ModelFamily& family_of(const ModelConfig& config, const std::optional<std::string>& kept_config,
                             std::string_view source) {
    const auto families = model_families();
    if (kept_config) {
        const JsonValue kept = parse_json(*kept_config, source);
        const ModelFamily* const family = find_family(text_of(kept, "model_type", source));
        if (family && can_hold(*family, config)) return *family;
    }
    for (const ModelFamily& family : families)
        if (can_hold(family, config)) return family;
    // The error names a setting that the most similar family lacks.
    const ModelFamily& similar = *find_family(rotates_heads(config.positions) ? "llama" : "gpt2");
    model_members(similar, config, {}, source);
    throw Error(concat(source, ": no family can hold the model"));
}

JsonValue huggingface_config_of(const ModelFamily& family, const ModelConfig& config,
                                const TrainingOptions& training, DType dtype, const TextTokens& tokens,
                                std::string_view source) {
    JsonValue value = model_members(family, config, training, source);
    value.set("torch_dtype", name_of(dtype));
    value.set("bos_token_id", tokens.begin ? JsonValue(*tokens.begin) : JsonValue());
    // Converters to other formats read one id here. generation_config.json has all ids.
    value.set("eos_token_id", tokens.end.empty() ? JsonValue() : JsonValue(tokens.end.front()));
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
