#include <gradtile/tools/formats/gguf_metadata.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include <gradtile/core/check.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {
namespace {

/// llama.cpp's numbers for file types (enum llama_ftype).
constexpr std::uint32_t ftype_f32 = 0, ftype_f16 = 1, ftype_bf16 = 32;

std::uint32_t u32(std::int64_t value) {
    return static_cast<std::uint32_t>(value);  // the settings' limits are below 2^32
}

std::uint32_t file_type(DType dtype) {
    return dtype == DType::f16 ? ftype_f16 : dtype == DType::bf16 ? ftype_bf16 : ftype_f32;
}

/// Collects one architecture's keys.
class ModelKeys {
  public:
    ModelKeys(std::string_view architecture, const ModelConfig& config, std::string_view source)
        : prefix_(concat(architecture, ".")), config_(config), source_(source) {}

    GgufMetadata take() { return std::move(metadata_); }

    void add_sizes() {
        const ModelConfig& c = config_;
        add("vocab_size", u32(c.vocabulary));
        add("context_length", u32(c.context));
        add("embedding_length", u32(c.width));
        add("block_count", u32(c.layers));
        add("feed_forward_length", u32(c.hidden_width()));
        add("attention.head_count", u32(c.heads));
        add(c.norm == Norm::rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon",
            static_cast<float>(c.norm_epsilon));
        if (c.block == BlockKind::parallel || (rotates_heads(c.positions) && c.norm == Norm::layer))
            add("use_parallel_residual", c.block == BlockKind::parallel);
    }

    void add_attention() {
        const ModelConfig& c = config_;
        add("attention.head_count_kv", u32(c.key_value_heads()));
        if (c.width % c.heads != 0 || c.head_dim() != c.width / c.heads) {
            add("attention.key_length", u32(c.head_dim()));
            add("attention.value_length", u32(c.head_dim()));
        }
        if (c.window != 0) {
            add("attention.sliding_window", u32(c.window));
            add("attention.sliding_window_pattern", u32(c.window_pattern));
        }
        if (c.softcap != 0) add("attn_logit_softcapping", static_cast<float>(c.softcap));
        if (c.logit_softcap.limit != 0)
            add("final_logit_softcapping", static_cast<float>(c.logit_softcap.limit));
    }

    void add_rope() {
        const ModelConfig& c = config_;
        add("rope.dimension_count", u32(c.rotated_width()));
        add("rope.freq_base", static_cast<float>(c.rope_base));
        if (c.window != 0 && c.window_rope_base != 0)
            add("rope.freq_base_swa", static_cast<float>(c.window_rope_base));
        add_scaling();
    }

  private:
    void add(const char* key, GgufValue value) { metadata_.emplace_back(prefix_ + key, std::move(value)); }

    /// llama3's and longrope's frequencies are in tensors; see gguf_rope_tensors().
    void add_scaling() {
        const RopeScaling& s = config_.rope_scaling;
        const RopeFrequencies rope = config_.rope_of(false);
        const std::int64_t original = s.original_context != 0 ? s.original_context : config_.context;
        switch (s.kind) {
            case RopeKind::none:
            case RopeKind::llama3:
                return;
            case RopeKind::linear:
                add("rope.scaling.type", std::string("linear"));
                add("rope.scaling.factor", static_cast<float>(s.factor));
                return;
            case RopeKind::yarn: {
                check(s.truncate, source_, ": rope-truncate false cannot be stored in GGUF; it has true");
                add("rope.scaling.type", std::string("yarn"));
                add("rope.scaling.factor", static_cast<float>(s.factor));
                add("rope.scaling.original_context_length", u32(original));
                add("rope.scaling.yarn_beta_fast", static_cast<float>(s.beta_fast));
                add("rope.scaling.yarn_beta_slow", static_cast<float>(s.beta_slow));
                // llama.cpp multiplies by yarn's usual factor.
                const double usual = 0.1 * std::log(s.factor) + 1.0;
                add("rope.scaling.attn_factor", static_cast<float>(rope.magnitude / usual));
                return;
            }
            case RopeKind::longrope:
                add("rope.scaling.original_context_length", u32(original));
                add("rope.scaling.attn_factor", static_cast<float>(rope.magnitude));
                return;
            case RopeKind::dynamic:
                check(config_.context <= original, source_,
                      ": rope-scaling dynamic cannot be stored in GGUF");
                return;
            case RopeKind::half_truncated:
                break;
        }
        throw Error(concat(source_, ": rope-scaling ", name_of(s.kind), " cannot be stored in GGUF"));
    }

    std::string prefix_;
    const ModelConfig& config_;
    std::string source_;
    GgufMetadata metadata_;
};

NamedTensor vector_named(const char* name, std::vector<double> values) {
    const Tensor x = empty_on_host({std::ssize(values)}, DType::f32);
    std::ranges::transform(values, x.data<float>(), [](double value) { return static_cast<float>(value); });
    return {name, x};
}

}  // namespace

GgufMetadata gguf_model_metadata(const ModelFamily& family, const ModelConfig& config, DType dtype,
                                 const std::string& source) {
    const std::string_view architecture = family.gguf.architecture;
    family.gguf.check(config, {architecture, source});
    const bool holds_llama3 = architecture == "llama";
    check(holds_llama3 || config.rope_scaling.kind != RopeKind::llama3, source,
          ": rope-scaling llama3 cannot be stored in GGUF's ", architecture, "; llama has it");
    GgufMetadata metadata{{"general.architecture", std::string(architecture)},
                          {"general.file_type", file_type(dtype)}};
    ModelKeys keys(architecture, config, source);
    keys.add_sizes();
    if (rotates_heads(config.positions)) {
        keys.add_attention();
        keys.add_rope();
    }
    std::ranges::move(keys.take(), std::back_inserter(metadata));
    return metadata;
}

std::vector<NamedTensor> gguf_rope_tensors(const ModelConfig& config) {
    const RopeScaling& s = config.rope_scaling;
    if (s.kind == RopeKind::longrope)
        return {vector_named("rope_factors_long.weight", s.long_factors),
                vector_named("rope_factors_short.weight", s.short_factors)};
    if (s.kind != RopeKind::llama3) return {};
    std::vector<double> divisors =
        rope_frequencies(config.rotated_width(), config.rope_base, config.context).values;
    const RopeFrequencies scaled = config.rope_of(false);
    for (std::size_t i = 0; i < divisors.size(); ++i) divisors[i] /= scaled.values[i];
    return {vector_named("rope_freqs.weight", divisors)};
}

}  // namespace gradtile
