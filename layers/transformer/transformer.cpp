#include <gradtile/layers/transformer/transformer.h>

#include <algorithm>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/tensor_math.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/initialization.h>
#include <gradtile/layers/transformer/internal/key_offset.h>
#include <gradtile/layers/transformer/internal/residual_offload.h>
#include <gradtile/layers/transformer/internal/stream_norm.h>

namespace gradtile {
namespace {

const ModelConfig& checked(const ModelConfig& config, const TrainingOptions& training) {
    validate(config);
    validate(training);
    check(config.vocabulary >= 1, "vocabulary: ", config.vocabulary, "; expected at least 1");
    return config;
}

/// The positions of packed texts' tokens.
TokenPositions positions_of(const PackedTexts& pass) {
    if (pass.texts.size() == 1) return {.start = pass.texts.front().start};
    std::int64_t end = 0;
    for (const PackedTexts::Text& text : pass.texts) end = std::max(end, text.start + text.length);
    return {.each = pass.positions, .end = end};
}

/// Each text's last row in x [1, N, C]: [texts, C].
Tensor last_rows(const Context& ctx, const Tensor& x, const std::vector<PackedTexts::Text>& texts) {
    const Tensor all = x.reshape({x.size(1), x.size(2)});
    if (std::ssize(texts) == all.size(0)) return all;
    if (texts.size() == 1) return all.slice(0, all.size(0) - 1, 1);
    const Tensor last = empty(ctx, {std::ssize(texts), all.size(1)}, x.dtype());
    std::int64_t end = 0, row = 0;
    for (const PackedTexts::Text& text : texts) {
        end += text.length;
        copy(ctx, last.slice(0, row++, 1), all.slice(0, end - 1, 1));
    }
    return last;
}

}  // namespace

Transformer::Transformer(const ModelConfig& model_config, ParameterStore& parameters, ParameterStore& frozen,
                         const TrainingOptions& training, const AdapterOptions& adapter_options)
    : Transformer(model_config, adapter_options.rank > 0 ? frozen : parameters, training) {
    add_adapters(parameters, adapter_options);
    if (adapters.rank > 0 && adapters.frozen_format != WeightFormat::same) quantize_blocks(frozen);
}

Transformer::Transformer(const ModelConfig& model_config, ParameterStore& parameters,
                         const TrainingOptions& training, const AdapterOptions& adapter_options)
    : config(checked(model_config, training)),
      wte(parameters, "wte", config.vocabulary, config.width, training.embedding_std),
      wpe(adds_embeddings(config.positions)
              ? std::optional<PositionEmbedding>(std::in_place, parameters, "wpe", config.context,
                                                 config.width, initial_std)
              : std::nullopt),
      norm_e(config.embedding_norm ? std::optional(configured_norm(parameters, "", "e", config))
                                   : std::nullopt),
      dropout{training.dropout},
      blocks([&] {
          std::vector<TransformerBlock> list;
          for (std::int64_t i = 0; i < config.layers; ++i) {
              parameters.begin_stage();
              list.emplace_back(parameters, "h." + std::to_string(i), config, i, training);
          }
          parameters.begin_stage();
          return list;
      }()),
      norm_f(configured_norm(parameters, "", "f", config)),
      head(config.tied_head ? CrossEntropyHead(wte.weight)
                            : CrossEntropyHead(parameters, "head", config.vocabulary, config.width,
                                               training.zero_init ? 0.0 : initial_std)) {
    head.softcap = config.logit_softcap;
    if (config.tied_head) parameters.read_again(wte.weight);
    share_tables();
    add_adapters(parameters, adapter_options);
}

/// Blocks with the same frequencies share one angle table, and all blocks share one slope table.
void Transformer::share_tables() {
    std::optional<Rope> common, windowed;
    for (TransformerBlock& block : blocks) {
        block.attn.alibi = blocks.front().attn.alibi;
        if (!block.attn.rope) continue;
        std::optional<Rope>& shared = block.attn.has_window_angles ? windowed : common;
        if (!shared) shared = block.attn.rope;
        block.attn.rope = shared;
    }
}

void Transformer::add_adapters(ParameterStore& parameters, const AdapterOptions& chosen) {
    validate(chosen, config);
    adapters = chosen;
    if (adapters.rank == 0) return;
    const AdaptedMatrices adapted = adapted_matrices(config, adapters);
    const LowRankOptions options{.rank = adapters.rank,
                                 .alpha = adapters.scale() * static_cast<double>(adapters.rank)};
    const auto add = [&](bool is_adapted, Linear& linear) {
        if (is_adapted) linear.add_adapter(parameters, options);
    };
    for (TransformerBlock& block : blocks) {
        add(adapted.qkv, block.attn.qkv);
        add(adapted.proj, block.attn.proj);
        add(adapted.up, block.mlp.up);
        add(adapted.down, block.mlp.down);
    }
}

void Transformer::quantize_blocks(ParameterStore& frozen) const {
    std::vector<Parameter> matrices;
    for (const TransformerBlock& block : blocks)
        for (const Linear* linear : {&block.attn.qkv, &block.attn.proj, &block.mlp.up, &block.mlp.down})
            matrices.push_back(linear->weight);
    frozen.quantize(matrices, adapters.frozen_format);
}

void Transformer::check_tokens(const Tensor& tokens) const {
    check(tokens.rank() == 2 && tokens.dtype() == DType::i32, "transformer: tokens are ", tokens,
          "; expected [B, T] int32");
    check(tokens.size(1) <= config.context, "transformer: sequences of ", tokens.size(1),
          " tokens; the context is ", config.context);
}

Tensor Transformer::embed(const Context& ctx, const Tensor& tokens, const Pass& pass, Saved& saved) const {
    Tensor x = wte.forward(ctx, tokens, saved.wte);
    if (config.scaled_embedding) x = scale(ctx, x, embedding_factor(config, x.dtype()));
    if (wpe) {
        const TokenPositions positions = token_positions(pass);
        x = positions.each.defined() ? wpe->forward_at(ctx, x, positions.each, saved.wpe)
                                     : wpe->forward(ctx, x, saved.wpe, positions.start);
    }
    if (norm_e) x = norm_e->forward(ctx, x, saved.norm_e);
    return dropout.forward(ctx, x, dropout_key(pass, 0), saved.dropout);
}

/// The last block's output [B,T,C], before the last norm. Without `saved`, each block's activations are freed
/// after the block.
Residual Transformer::forward_blocks(const Context& ctx, const Tensor& tokens, const Pass& pass, Saved* saved,
                                     const ForwardHooks& hooks) const {
    notify_before_stage(hooks, 0, 1);
    Saved discarded, &kept = saved != nullptr ? *saved : discarded;
    Residual stream{embed(ctx, tokens, pass, kept)};
    stream.inference = !std::holds_alternative<TrainingPass>(pass);
    kept.blocks.assign(blocks.size(), {});
    ResidualOffload offload(kept.offload, kept.blocks);
    const Tensor x0 = config.x0_lambdas ? stream.x : Tensor();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        notify_before_stage(hooks, i + 1, i + 2);
        stream = blocks[i].forward(ctx, stream, pass, kept.blocks[i], x0);
        offload.after_forward(ctx, i, x0);
        if (saved == nullptr) kept.blocks[i] = {};
    }
    notify_before_stage(hooks, last_stage(), {});
    return stream;
}

Tensor Transformer::forward(const Context& ctx, const Tensor& tokens, const Tensor& targets, Saved& saved,
                            const ForwardOptions& options) const {
    check_tokens(tokens);
    check(options.max_window >= 0, "transformer: max_window ", options.max_window,
          "; expected at least 1, or 0 for no limit");
    saved.offload = options.offload;
    saved.wte = {.tokens = tokens};
    wte.start_token_sort(ctx, saved.wte);
    const PreviousTokens previous = previous_tokens(ctx, config, options.documents);
    const TrainingPass pass{.dropout = options.dropout,
                            .documents = options.documents,
                            .max_window = options.max_window,
                            .tokens = saved.wte,
                            .previous = previous};
    Residual stream = forward_blocks(ctx, tokens, pass, &saved, options.hooks);
    const Normed x = normalize_stream(ctx, norm_f, stream, saved.norm_f);
    return head.forward(ctx, x.value(ctx), targets, saved.head, options.gradient_scale, options.target_count);
}

void Transformer::backward(const Context& ctx, Saved saved, const BackwardHooks& hooks) const {
    check(saved.blocks.size() == blocks.size(),
          "transformer: backward requires the saved values of a forward pass");
    Tensor dx = head.backward(ctx, saved.head);
    if (!config.tied_head) notify_gradients_complete(hooks, head.weight);
    notify_before_stage(hooks, last_stage(), last_stage() - 1);
    SummedGradient stream = norm_f.backward(ctx, dx, saved.norm_f, hooks);
    Tensor d_x0;
    const ResidualOffload offload(saved.offload, saved.blocks);
    for (std::size_t i = blocks.size(); i-- > 0;) {
        offload.before_backward(ctx, i);
        notify_before_stage(hooks, i + 1, i > 0 || norm_e ? std::optional(i) : std::nullopt);
        stream = blocks[i].backward(ctx, stream, saved.blocks[i], hooks, d_x0);
        saved.blocks[i] = {};
    }
    if (d_x0.defined()) axpy(ctx, stream.dy, 1.0, d_x0);
    dx = dropout.backward(ctx, stream.dy, saved.dropout);
    if (norm_e) notify_before_stage(hooks, 0, {});
    if (norm_e) dx = norm_e->backward(ctx, dx, saved.norm_e, hooks);
    if (wpe) {
        dx = wpe->backward(ctx, dx, saved.wpe);
        notify_gradients_complete(hooks, wpe->weight);
    }
    if (config.scaled_embedding) dx = scale(ctx, dx, embedding_factor(config, dx.dtype()));
    wte.backward(ctx, dx, saved.wte);
    notify_gradients_complete(hooks, wte.weight);
}

/// The last norm's output [B,T,C].
Tensor Transformer::features(const Context& ctx, const Tensor& tokens, const Documents& documents,
                             const ForwardHooks& hooks) const {
    check_tokens(tokens);
    const PreviousTokens previous = previous_tokens(ctx, config, documents);
    const TrainingPass pass{.documents = documents, .tokens = {.tokens = tokens}, .previous = previous};
    NormLayer::Saved discarded;
    return norm_f.forward(ctx, forward_blocks(ctx, tokens, pass, nullptr, hooks), discarded);
}

Tensor Transformer::evaluate(const Context& ctx, const Tensor& tokens, const Tensor& targets,
                             const Documents& documents, const ForwardHooks& hooks) const {
    return head.loss(ctx, features(ctx, tokens, documents, hooks), targets);
}

Tensor Transformer::target_losses(const Context& ctx, const Tensor& tokens, const Tensor& targets,
                                  const Documents& documents) const {
    return head.losses(ctx, features(ctx, tokens, documents), targets);
}

Tensor Transformer::logits(const Context& ctx, const Tensor& tokens, const Documents& documents) const {
    check(tokens.rank() == 2 && tokens.size(1) >= 1, "transformer: logits after ", tokens,
          "; expected [B, T] with at least one token");
    return head.logits(ctx, features(ctx, tokens, documents).select(1, tokens.size(1) - 1));
}

LayerAngles Transformer::rotation_angles(const Context& ctx, const TokenPositions& positions,
                                         std::int64_t length) const {
    LayerAngles angles;
    for (const TransformerBlock& block : blocks) {
        Rope::Angles& shared = block.attn.has_window_angles ? angles.windowed : angles.common;
        if (!shared.cosines.defined())
            shared = block.attn.angles_at(ctx, positions, length, wte.weight.value().dtype());
    }
    return angles;
}

Tensor Transformer::logits(const Context& ctx, const PackedTexts& texts, const KeyValueCache& cache) const {
    cache.check_fits(texts);
    CachedPass pass{
        .texts = equal_texts(texts.texts, cache), .positions = positions_of(texts), .cache = cache};
    pass.angles = rotation_angles(ctx, pass.positions, texts.tokens.size(1));
    pass.tokens.tokens = texts.tokens;
    Residual stream = forward_blocks(ctx, texts.tokens, pass, nullptr);
    Residual last{.x = last_rows(ctx, stream.sum(ctx), texts.texts), .inference = true};
    NormLayer::Saved discarded;
    return head.logits(ctx, normalize_stream(ctx, norm_f, last, discarded));
}

void Transformer::next_logits(const Context& ctx, const Tensor& logits, const Tensor& tokens,
                              const StepPass& step) const {
    const std::int64_t rows = tokens.elements();
    for (const Tensor* x : {&tokens, &step.positions, &step.slots})
        check(x->dtype() == DType::i32 && x->is_contiguous() && x->shape() == Shape{rows},
              "next_logits: tokens ", tokens, ", positions ", step.positions, ", slots ", step.slots,
              "; expected contiguous int32 of one shape [R]");
    check(logits.shape() == Shape{rows, config.vocabulary}, "next_logits: logits ", logits, "; expected [",
          rows, ", ", config.vocabulary, ']');
    check_sharing(ctx, "next_logits", {"logits", logits},
                  {{"tokens", tokens}, {"positions", step.positions}, {"slots", step.slots}});
    StepPass pass = step;
    pass.angles = rotation_angles(ctx, pass.token_positions(), rows);
    pass.tokens.tokens = tokens.reshape({1, rows});
    Residual stream = forward_blocks(ctx, pass.tokens.tokens, pass, nullptr);
    NormLayer::Saved discarded;
    head.logits(ctx, normalize_stream(ctx, norm_f, stream, discarded),
                logits.reshape({1, rows, config.vocabulary}));
}

bool Transformer::can_step(const Context& ctx) const {
    return std::ranges::all_of(blocks, [&](const TransformerBlock& block) {
        return attention::can_decode(ctx.device(), wte.weight.value().dtype(), block.attn.head_dim,
                                     block.attn.options_of_pass(ctx, {}));
    });
}

attention::DecodeScratch Transformer::step_scratch(const Context& ctx, const KeyValueCache& cache,
                                                   std::int64_t rows) const {
    return {ctx, rows, config.heads, cache.layer(0)};
}

Tensor Transformer::logits_of_all(const Context& ctx, const Tensor& tokens) const {
    return head.logits(ctx, features(ctx, tokens));
}

std::int64_t parameter_count(const ModelConfig& config, const AdapterOptions& adapters) {
    ParameterStore parameters;
    const Transformer model(config, parameters, {}, adapters);
    return parameters.count();
}

}  // namespace gradtile
