#pragma once
/// The configuration of a transformer: its architecture, how it trains, and its adapters.
#include <cstdint>
#include <string>
#include <vector>

#include <gradtile/core/enum_names.h>
#include <gradtile/core/quantized_weights.h>
#include <gradtile/core/range.h>
#include <gradtile/layers/activation.h>
#include <gradtile/layers/cross_entropy_head.h>
#include <gradtile/layers/rope.h>

namespace gradtile {

enum class Norm { layer, rms };
/// How a block adds its branches, attention a and MLP m, to the residual stream x, with norms n_i:
///   pre_norm       x += a(n_1(x));       x += m(n_2(x))        GPT-2, Llama
///   output_norm    x += n_1(a(x));       x += n_2(m(x))        OLMo 2 (OLMo Team 2024, section 3)
///   sandwich_norm  x += n_3(a(n_1(x)));  x += n_4(m(n_2(x)))   Gemma 2 (Gemma Team 2024)
///   parallel       x += a(n_1(x)) + m(n_2(x))                  GPT-NeoX (Black et al. 2022)
enum class BlockKind { pre_norm, output_norm, sandwich_norm, parallel };
/// What QK-norm normalises (Henry et al. 2020): each head's q and k, with or without a gain [D], or all heads
/// of a token together, with gains [Hq*D] and [Hkv*D] (OLMo 2).
enum class QkNorm { head, head_without_gain, projection };
/// How a model receives token positions: by a learned vector per position, by rotated queries and keys, or by
/// ALiBi's score biases.
enum class Positions { learned, rope, alibi };
/// Whether a learned vector per position is added to the token embeddings.
constexpr bool adds_embeddings(Positions positions) {
    switch (positions) {
        case Positions::learned:
            return true;
        case Positions::rope:
        case Positions::alibi:
            return false;
    }
    throw Error("positions: unknown kind");
}
/// Whether queries and keys are rotated.
constexpr bool rotates_heads(Positions positions) {
    switch (positions) {
        case Positions::learned:
        case Positions::alibi:
            return false;
        case Positions::rope:
            return true;
    }
    throw Error("positions: unknown kind");
}
/// The values that backward recomputes instead of saving them:
///   none         no values
///   activations  norm and activation outputs, each in one pass over memory
///   block        all values in a block, from the block's input
/// Results are bit-identical for all levels; on CUDA only in a deterministic context, which does not time
/// algorithms.
enum class Recompute { none, activations, block };

/// Columns [begin, begin + count) of a head.
struct HeadColumns {
    std::int64_t begin, count;
};

/// A model's architecture, which a checkpoint's weights depend on. GPT-2, Llama, Qwen, Gemma and other models
/// differ only in these values.
struct ModelConfig {
    std::int64_t layers = 4;
    std::int64_t heads = 4;
    std::int64_t kv_heads = 0;    ///< 0: equal to heads; else heads must be divisible by it (GQA, MQA)
    std::int64_t width = 128;     ///< divisible by heads, unless head_width is set
    std::int64_t head_width = 0;  ///< elements of a head; 0: width / heads
    std::int64_t hidden = 0;    ///< width inside the MLP; 0: 4*width, or if gated 8/3*width rounded up to 64
    std::int64_t context = 64;  ///< maximum sequence length in tokens
    std::int64_t vocabulary = 0;  ///< 0: taken from the tokenizer
    BlockKind block = BlockKind::pre_norm;
    Norm norm = Norm::layer;
    bool norm_offset =
        false;  ///< norms, QK-norm included, multiply by 1 + weight (Gemma); weights start at 0
    Activation activation = Activation::gelu_tanh;
    Positions positions = Positions::learned;
    double rope_base = 10000.0;
    std::int64_t rotary_width = 0;  ///< columns of a head that are rotated, its first ones; 0: all
    RopeScaling rope_scaling = {};
    /// The base in layers with a window, whose frequencies are not scaled (Gemma 3); 0: as in other layers.
    double window_rope_base = 0.0;
    /// Every layer whose number, counted from 1, is divisible by rope_pattern rotates nothing (SmolLM3: 4);
    /// 0: all layers rotate.
    std::int64_t rope_pattern = 0;
    double norm_epsilon = 1e-5;
    bool bias = true;               ///< biases in linear layers and layer norms
    bool qkv_bias = false;          ///< biases in the q, k and v projection, also without `bias` (Qwen2)
    bool tied_head = true;          ///< the output head is the token embedding
    bool scaled_embedding = false;  ///< token embeddings are multiplied by sqrt(width) (Gemma)
    bool embedding_norm = false;    ///< a norm between the embeddings and the first block
    /// Block I's input is stream * x + x0 * (the first block's input), with two learned numbers (StreamMix).
    bool x0_lambdas = false;
    bool attention_gate = false;  ///< attention's heads have a sigmoid gate (HeadGate), from its input
    /// Every other layer, the last one included, adds a gated embedding of the token to its values.
    bool value_embeddings = false;
    /// Keys have the unrotated_columns() of the token before, in layers that see the whole context; in all
    /// layers if none does. Requires such columns.
    bool key_offset = false;
    bool qk_norm = false;  ///< RMSNorm of queries and keys; without it, qk_norm_kind has no effect
    QkNorm qk_norm_kind = QkNorm::head;
    double query_scalar = 0.0;  ///< attention's scores are q.k / sqrt(query_scalar); 0: the head's width
    /// Keys that a token sees in a layer with a window: itself and the window - 1 tokens before it. 0: all.
    std::int64_t window = 0;
    /// Every layer whose number, counted from 1, is divisible by window_pattern sees the whole context; 0: no
    /// layer does. With 2 the layers alternate as in Gemma 2 and GPT-OSS; 6 is Gemma 3's pattern. Without a
    /// window, window_pattern has no effect.
    std::int64_t window_pattern = 0;
    /// A text's prompt is attended in both directions: its tokens see each other, and the tokens after it see
    /// the prompt and no later token than themselves (prefix-LM, Raffel et al. 2020, section 3.2.1).
    bool prefix = false;
    double softcap = 0.0;  ///< attention's scores s become softcap * tanh(s / softcap) (Gemma 2); 0: none
    bool sinks = false;    ///< each head has a learned logit without a key (Agarwal et al. 2025, GPT-OSS)
    LogitSoftcap logit_softcap = {};  ///< of the output logits, in the loss and in generation

    std::int64_t head_dim() const { return head_width != 0 ? head_width : width / heads; }
    std::int64_t rotated_width() const { return rotary_width != 0 ? rotary_width : head_dim(); }
    /// Whether layer `layer`, counted from 0, rotates its queries and keys.
    bool rotates(std::int64_t layer) const {
        return rotates_heads(positions) && (rope_pattern == 0 || (layer + 1) % rope_pattern != 0);
    }
    /// The columns of a head that rotary positions leave as they are, in layers with or without a window; so
    /// none without `rotary_width` and RopeKind::half_truncated.
    std::vector<HeadColumns> unrotated_columns(bool has_window) const;
    /// The rotary frequencies in layers with or without a window.
    RopeFrequencies rope_of(bool has_window) const;
    double norm_weight_offset() const { return norm_offset ? 1.0 : 0.0; }
    std::int64_t key_value_heads() const { return kv_heads == 0 ? heads : kv_heads; }
    /// The window for layer `layer`, counted from 0. Returns 0 if the layer sees the whole context.
    std::int64_t window_of(std::int64_t layer) const {
        return window_pattern != 0 && (layer + 1) % window_pattern == 0 ? 0 : window;
    }
    /// Whether layer `layer`, counted from 0, has a value embedding.
    bool has_value_embedding(std::int64_t layer) const {
        return value_embeddings && (layers - 1 - layer) % 2 == 0;
    }
    /// Whether key_offset concerns layer `layer`, counted from 0.
    bool offsets_keys(std::int64_t layer) const {
        const bool some_see_all = window == 0 || (window_pattern != 0 && window_pattern <= layers);
        return key_offset && (window_of(layer) == 0 || !some_see_all);
    }
    std::int64_t hidden_width() const {
        if (hidden != 0) return hidden;
        return traits_of(activation).gated ? (8 * width / 3 + 63) / 64 * 64 : 4 * width;
    }
    bool operator==(const ModelConfig&) const = default;
};

/// How a model trains. Its weights, and what they compute outside training, do not depend on these values.
struct TrainingOptions {
    double dropout = 0.0;            ///< probability, for embeddings and residual branches
    double attention_dropout = 0.0;  ///< probability, for attention's probabilities
    Recompute recompute = Recompute::none;
    bool deterministic = false;  ///< bit-identical gradients on a GPU; on the CPU they always are
    /// The matrices whose output is added to the residual stream start at zero, so that every block is the
    /// identity at first. So does an output head that is not tied.
    bool zero_init = false;
    double embedding_std = 0.02;  ///< standard deviation of the initial token embedding
    bool operator==(const TrainingOptions&) const = default;
};

/// The LoRA adapters of a model (LowRankAdapter). Training changes only the adapters.
struct AdapterOptions {
    std::int64_t rank = 0;   ///< 0: no adapters
    double alpha = 0.0;      ///< the adapters' term has the factor alpha / rank; 0: alpha is the rank
    std::string on = "all";  ///< the matrices that have adapters; see adapted_matrices()
    /// How the blocks' matrices, with and without adapters, are kept in a store of frozen parameters
    /// (Transformer).
    WeightFormat frozen_format = WeightFormat::same;

    /// The factor alpha / rank on the adapters' term.
    double scale() const { return alpha == 0.0 ? 1.0 : alpha / static_cast<double>(rank); }
    bool operator==(const AdapterOptions&) const = default;
};

/// A weight matrix [out, in].
struct MatrixShape {
    std::int64_t out, in;
    std::int64_t elements() const { return out * in; }
};
/// A block's four weight matrices: attention's packed q, k and v projection, attention's output projection,
/// and the two MLP matrices. `up` packs gate and up if the activation is gated.
struct BlockMatrices {
    MatrixShape qkv, proj, up, down;
    std::int64_t elements() const {
        return qkv.elements() + proj.elements() + up.elements() + down.elements();
    }
};
BlockMatrices block_matrices(const ModelConfig& config);

/// Which block matrices have adapters.
struct AdaptedMatrices {
    bool qkv = false, proj = false, up = false, down = false;
};
/// Reads adapters.on: block matrix names, separated by commas, as in the parameter names ("attn.qkv",
/// "attn.proj"; "mlp.fc" and "mlp.proj", or "mlp.gate_up" and "mlp.down" if the activation is gated), "attn"
/// or "mlp" for both matrices in the layer, or "all". Throws Error for other names.
AdaptedMatrices adapted_matrices(const ModelConfig& config, const AdapterOptions& adapters);
/// Adapter elements per block; 0 without adapters.
std::int64_t adapter_elements(const ModelConfig& config, const AdapterOptions& adapters);

/// The number of keys that a token sees, averaged over layers and over a sequence with `sequence` tokens.
/// Attention is causal here also with ModelConfig::prefix, because the length of prompts is not known.
double mean_visible_keys(const ModelConfig& config, std::int64_t sequence);

/// Floating-point operations per token in a training step (forward 1/3, backward 2/3). Each weight matrix
/// element costs 6 operations; the head is included, embedding look-ups are not. Each visible key costs 12 *
/// heads * head_dim operations per layer (mean_visible_keys()). Recomputation is not counted, because the
/// result is the numerator of model FLOP utilisation. With adapters, a frozen matrix element costs 4, because
/// its gradient is not computed.
double flops_per_token(const ModelConfig& config, std::int64_t sequence, const AdapterOptions& adapters = {});

/// The factor on token embeddings; sqrt(width) is rounded to the weights' dtype, as in Gemma.
double embedding_factor(const ModelConfig& config, DType dtype);

/// Replaces GPT-2's choices by Llama's (Touvron et al. 2023): RMSNorm, SwiGLU, rotary positions, no biases,
/// an output head with its own weight. Other settings stay as they are.
ModelConfig as_llama(ModelConfig config);

/// The settings' allowed ranges. They are far larger than any current model, but finite, so that a malicious
/// file is refused at once and no size product overflows.
namespace model_limits {
inline constexpr Range layers{1, 10'000}, heads{1, 1 << 16}, kv_heads{0, 1 << 16}, width{1, 1 << 20},
    head_width{0, 256}, hidden{0, 1 << 22}, context{1, 1 << 24}, vocabulary{0, 1 << 27},
    rope_base{.min = 1, .max = 1e12, .min_is_open = true}, window_rope_base{0, 1e12}, rotary_width{0, 256},
    rope_pattern{0, 10'000}, rope_original_context{0, 1 << 24}, rope_factor{1, 1e6},
    rope_parameter{.min = 0, .max = 1e6, .min_is_open = true}, rope_magnitude{0, 1e6}, query_scalar{0, 1e12},
    logit_softcap{0, 1e6}, norm_epsilon{.min = 0, .max = 1, .min_is_open = true},
    dropout{.min = 0, .max = 1, .max_is_open = true}, window{0, 1 << 24}, window_pattern{0, 10'000},
    softcap{0, 1e20}, lora_rank{0, 1 << 16}, lora_alpha{0, 1e6};
/// Smaller numbers than this, except 0, are refused, so that float32 scores and logits are finite.
/// attention::min_softcap is the same for softcap.
inline constexpr double min_query_scalar = 1e-6, min_logit_softcap = 1e-3;
/// The maximum parameter count, and the maximum number of activation elements per micro-batch. Their sizes in
/// bytes, including gradients and moments, can be added without overflow.
inline constexpr std::int64_t parameters = std::int64_t{1} << 50, activations = std::int64_t{1} << 57;
}  // namespace model_limits

// Each function throws Error with the setting, its value and the expected values, unless all values are
// valid.
void validate(const ModelConfig& config);
void validate(const TrainingOptions& training);
/// `config` must be valid.
void validate(const AdapterOptions& adapters, const ModelConfig& config);

/// Whether `micro_batch` sequences have at most model_limits::activations activation elements. The config
/// must be valid.
bool activations_are_countable(const ModelConfig& config, std::int64_t micro_batch);

template <>
struct EnumNames<Norm> {
    static constexpr std::array names = {std::pair{Norm::layer, std::string_view("layer")},
                                         std::pair{Norm::rms, std::string_view("rms")}};
};
template <>
struct EnumNames<BlockKind> {
    static constexpr std::array names = {
        std::pair{BlockKind::pre_norm, std::string_view("pre-norm")},
        std::pair{BlockKind::output_norm, std::string_view("output-norm")},
        std::pair{BlockKind::sandwich_norm, std::string_view("sandwich-norm")},
        std::pair{BlockKind::parallel, std::string_view("parallel")}};
};
template <>
struct EnumNames<QkNorm> {
    static constexpr std::array names = {
        std::pair{QkNorm::head, std::string_view("head")},
        std::pair{QkNorm::head_without_gain, std::string_view("head-without-gain")},
        std::pair{QkNorm::projection, std::string_view("projection")}};
};
template <>
struct EnumNames<Positions> {
    static constexpr std::array names = {std::pair{Positions::learned, std::string_view("learned")},
                                         std::pair{Positions::rope, std::string_view("rope")},
                                         std::pair{Positions::alibi, std::string_view("alibi")}};
};
template <>
struct EnumNames<Recompute> {
    static constexpr std::array names = {std::pair{Recompute::none, std::string_view("none")},
                                         std::pair{Recompute::activations, std::string_view("activations")},
                                         std::pair{Recompute::block, std::string_view("block")}};
};

}  // namespace gradtile
