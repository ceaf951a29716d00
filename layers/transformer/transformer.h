#pragma once
/// The language model. The config selects the style of GPT-2 (Radford et al. 2019), Llama (Touvron et al.
/// 2023), Gemma 2 (Gemma Team 2024) or another model, or a mixture.
#include <optional>
#include <vector>

#include <gradtile/layers/cross_entropy_head.h>
#include <gradtile/layers/embedding.h>
#include <gradtile/layers/transformer/transformer_block.h>

namespace gradtile {

class OffloadStream;

/// Options for a forward pass in training.
struct ForwardOptions {
    double gradient_scale = 1.0;  ///< backward computes the gradient of gradient_scale * loss
    /// float64 [1] on the device: the loss sum is divided by this value. Undefined: the number of targets
    /// that are not ignored.
    Tensor target_count = {};
    DropoutKey dropout = {};  ///< the default key drops nothing
    ForwardHooks hooks = {};
    Documents documents = {};     ///< see TrainingPass
    std::int64_t max_window = 0;  ///< see TrainingPass
    /// Not null: what all blocks but two save for backward is in host memory until backward needs it.
    const OffloadStream* offload = nullptr;
};

/// Token embedding (+ learned positions), an optional norm, dropout, `layers` blocks, a last norm, the
/// vocabulary head.
///
/// Parameters (out x in), GPT-2 style:   wte.weight [V,C], wpe.weight [context,C],
///     h.I.{ln_1,ln_2}.{weight,bias}, h.I.attn.{qkv,proj}.{weight,bias}, h.I.mlp.{fc,proj}.{weight,bias},
///     ln_f.{weight,bias}, head.weight [V,C] unless tied to wte.weight.
/// Llama style: no wpe; norm_1, norm_2 and norm_f instead of ln_1, ln_2 and ln_f; h.I.mlp.{gate_up,down}.
/// With qk_norm also h.I.attn.{q_norm,k_norm}.weight, with sinks h.I.attn.sinks [heads], with embedding_norm
/// ln_e or norm_e, with x0_lambdas h.I.mix (StreamMix). Other kinds of block have other norms,
/// see TransformerBlock. With adapters, for every adapted matrix, such as h.I.attn.qkv.weight [out,in]:
/// h.I.attn.qkv.lora_a [rank,in] and h.I.attn.qkv.lora_b [out,rank], after all other parameters.
struct Transformer {
    struct Saved {
        Embedding::Saved wte;
        PositionEmbedding::Saved wpe;
        NormLayer::Saved norm_e;
        Dropout::Saved dropout;
        std::vector<TransformerBlock::Saved> blocks;
        NormLayer::Saved norm_f;
        CrossEntropyHead::Saved head;
        const OffloadStream* offload = nullptr;  ///< ForwardOptions::offload
    };
    ModelConfig config;
    AdapterOptions adapters;
    Embedding wte;
    std::optional<PositionEmbedding> wpe;
    std::optional<NormLayer> norm_e;  ///< of the embeddings, if there is one
    Dropout dropout;
    std::vector<TransformerBlock> blocks;
    NormLayer norm_f;
    CrossEntropyHead head;

    /// A pass's last stage, of the last norm and the head. Stage 0 has the embeddings, each block a stage.
    std::size_t last_stage() const { return blocks.size() + 1; }
    /// Declares the parameters; the caller then allocates and initialises the store. Throws Error if the
    /// config is invalid or has no vocabulary.
    Transformer(const ModelConfig& config, ParameterStore& parameters, const TrainingOptions& training = {},
                const AdapterOptions& adapters = {});
    /// Declares the adapters in `parameters` and everything else in `frozen`, whose parameters the caller can
    /// allocate without gradients, and quantizes the blocks' matrices if adapters.frozen_format says so.
    /// Without adapters, declares everything in `parameters`.
    Transformer(const ModelConfig& config, ParameterStore& parameters, ParameterStore& frozen,
                const TrainingOptions& training, const AdapterOptions& adapters);

    /// Returns the mean loss over the targets that are not -1, float64 [1] on the device. tokens and targets
    /// are int32 [B,T] with T at most the context. forward already adds to the head's weight gradient (see
    /// CrossEntropyHead); backward adds to all other gradients.
    Tensor forward(const Context& ctx, const Tensor& tokens, const Tensor& targets, Saved& saved,
                   const ForwardOptions& options = {}) const;
    /// Adds to every parameter's gradient. Calls hooks.gradient_complete once per parameter, as soon as its
    /// gradient is complete. Releases a block's saved values after the block; std::move(saved) frees them.
    void backward(const Context& ctx, Saved saved, const BackwardHooks& hooks = {}) const;

    /// Returns float64 [2]: the loss sum and the number of targets that are not ignored. Saves no values,
    /// changes no gradients, and uses no dropout.
    Tensor evaluate(const Context& ctx, const Tensor& tokens, const Tensor& targets,
                    const Documents& documents = {}, const ForwardHooks& hooks = {}) const;
    /// Like evaluate(), but returns the loss per target, float64 [B,T]; 0 where the target is ignored.
    Tensor target_losses(const Context& ctx, const Tensor& tokens, const Tensor& targets,
                         const Documents& documents = {}) const;
    /// Returns next-token logits [B,V] after tokens [B,T], in float32 (float64 for float64 weights).
    Tensor logits(const Context& ctx, const Tensor& tokens, const Documents& documents = {}) const;
    /// Returns the logits [texts,V] after packed texts, and writes their keys and values into the cache.
    /// Throws Error when a text's cached and new tokens together are more than the context, or when a text's
    /// slot is outside the cache.
    Tensor logits(const Context& ctx, const PackedTexts& texts, const KeyValueCache& cache) const;
    /// Returns the logits [B,T,V] after every token in [B,T], to compare them with other software's.
    Tensor logits_of_all(const Context& ctx, const Tensor& tokens) const;

    /// A generation step whose inputs are all in device memory: reads one token for each text into the cache,
    /// and writes logits [R,V] in accumulator_of(dtype), equal to those of logits() up to rounding. Its
    /// kernels and addresses do not depend on the texts' lengths. `scratch` is for at least R rows. A token
    /// or position out of range is an Error on the CPU; on a GPU the row's logits are NaN. Throws Error
    /// unless can_step().
    void next_logits(const Context& ctx, const Tensor& logits, const Tensor& tokens /*[R]*/,
                     const StepPass& step) const;
    /// Whether attention::decode() computes every layer's attention on ctx's device.
    bool can_step(const Context& ctx) const;
    /// The scratch memory for steps of `rows` texts.
    attention::DecodeScratch step_scratch(const Context& ctx, const KeyValueCache& cache,
                                          std::int64_t rows) const;

  private:
    void add_adapters(ParameterStore& parameters, const AdapterOptions& chosen);
    void quantize_blocks(ParameterStore& frozen) const;
    void check_tokens(const Tensor& tokens) const;
    Tensor embed(const Context& ctx, const Tensor& tokens, const Pass& pass, Saved& saved) const;
    Residual forward_blocks(const Context& ctx, const Tensor& tokens, const Pass& pass, Saved* saved,
                            const ForwardHooks& hooks = {}) const;
    Tensor features(const Context& ctx, const Tensor& tokens, const Documents& documents = {},
                    const ForwardHooks& hooks = {}) const;
    LayerAngles rotation_angles(const Context& ctx, const TokenPositions& positions,
                                std::int64_t length) const;
    void share_tables();
};

/// The total number of parameter elements. Allocates nothing.
std::int64_t parameter_count(const ModelConfig& config, const AdapterOptions& adapters = {});

}  // namespace gradtile
