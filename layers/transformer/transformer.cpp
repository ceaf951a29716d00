#include <gradtile/layers/transformer/transformer.h>

#include <gradtile/layers/transformer/initialization.h>

namespace gradtile {
namespace {

const ModelConfig& checked(const ModelConfig& config, const TrainingOptions& training) {
    validate(config);
    validate(training);
    check(config.vocabulary >= 1, "vocabulary: ", config.vocabulary, "; expected at least 1");
    return config;
}

/// The embeddings and each block have their own dropout masks: the embeddings use key number 0, block i uses
/// number i + 1.
DropoutKey block_key(const DropoutKey& key, std::size_t block) {
    return key.at(block + 1);
}

}  // namespace

Transformer::Transformer(const ModelConfig& model_config, ParameterStore& parameters, ParameterStore& frozen,
                         const TrainingOptions& training, const AdapterOptions& adapter_options)
    : Transformer(model_config, adapter_options.rank > 0 ? frozen : parameters, training) {
    add_adapters(parameters, adapter_options);
}

Transformer::Transformer(const ModelConfig& model_config, ParameterStore& parameters,
                         const TrainingOptions& training, const AdapterOptions& adapter_options)
    : config(checked(model_config, training)),
      wte(parameters, "wte", config.vocabulary, config.width, initial_std),
      wpe(adds_embeddings(config.positions)
              ? std::optional<PositionEmbedding>(std::in_place, parameters, "wpe", config.context,
                                                 config.width, initial_std)
              : std::nullopt),
      dropout{training.dropout},
      blocks([&] {
          std::vector<TransformerBlock> list;
          for (std::int64_t i = 0; i < config.layers; ++i)
              list.emplace_back(parameters, "h." + std::to_string(i), config, i, training);
          return list;
      }()),
      norm_f(parameters, norm_name(config.norm, "f"), config),
      head(config.tied_head
               ? CrossEntropyHead(wte.weight)
               : CrossEntropyHead(parameters, "head", config.vocabulary, config.width, initial_std)) {
    // All blocks share one angle table, or one slope table.
    for (TransformerBlock& block : blocks) {
        block.attn.rope = blocks.front().attn.rope;
        block.attn.alibi = blocks.front().attn.alibi;
    }
    last_parameter_ = parameters.parameters().back();
    add_adapters(parameters, adapter_options);
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

void Transformer::check_tokens(const Tensor& tokens) const {
    check(tokens.rank() == 2 && tokens.dtype() == DType::i32, "transformer: tokens are ", tokens,
          "; expected [B, T] int32");
    check(tokens.size(1) <= config.context, "transformer: sequences of ", tokens.size(1),
          " tokens; the context is ", config.context);
}

Tensor Transformer::embed(const Context& ctx, const Tensor& tokens, const DropoutKey& key, Saved& saved,
                          const Documents& documents) const {
    Tensor x = wte.forward(ctx, tokens, saved.wte);
    if (wpe)
        x = documents ? wpe->forward_at(ctx, x, documents.positions, saved.wpe)
                      : wpe->forward(ctx, x, saved.wpe);
    return dropout.forward(ctx, x, key.at(0), saved.dropout);
}

Tensor Transformer::forward(const Context& ctx, const Tensor& tokens, const Tensor& targets, Saved& saved,
                            const ForwardOptions& options) const {
    check_tokens(tokens);
    const auto before_use = [&](const Parameter& last) {
        if (options.hooks.before_use) options.hooks.before_use(last);
    };
    before_use(wpe ? wpe->weight : wte.weight);
    Residual stream{embed(ctx, tokens, options.dropout, saved, options.documents)};
    wte.start_token_sort(ctx, saved.wte);
    saved.blocks.assign(blocks.size(), {});
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        before_use(blocks[i].last_parameter);
        stream =
            blocks[i].forward(ctx, stream, block_key(options.dropout, i), saved.blocks[i], options.documents);
    }
    before_use(last_parameter_);
    const Tensor x = norm_f.forward(ctx, stream, saved.norm_f);
    return head.forward(ctx, x, targets, saved.head, options.gradient_scale, options.target_count);
}

void Transformer::backward(const Context& ctx, const Saved& saved, const BackwardHooks& hooks) const {
    check(saved.blocks.size() == blocks.size(),
          "transformer: backward requires the saved values of a forward pass");
    Tensor dx = head.backward(ctx, saved.head);
    if (!config.tied_head) notify_gradients_complete(hooks, head.weight);
    SummedGradient stream = norm_f.backward(ctx, dx, saved.norm_f, hooks);
    for (std::size_t i = blocks.size(); i-- > 0;)
        stream = blocks[i].backward(ctx, stream, saved.blocks[i], hooks);
    dx = dropout.backward(ctx, stream.dy, saved.dropout);
    if (wpe) {
        dx = wpe->backward(ctx, dx, saved.wpe);
        notify_gradients_complete(hooks, wpe->weight);
    }
    wte.backward(ctx, dx, saved.wte);
    notify_gradients_complete(hooks, wte.weight);
}

/// The last block's output [B,T,C], before the last norm. Each block's activations are freed after the block.
Tensor Transformer::features(const Context& ctx, const Tensor& tokens, const Documents& documents) const {
    check_tokens(tokens);
    Saved saved;
    Residual stream{embed(ctx, tokens, {}, saved, documents)};
    for (const TransformerBlock& block : blocks) {
        TransformerBlock::Saved discarded;
        stream = block.forward(ctx, stream, {}, discarded, documents);
    }
    return stream.sum(ctx);
}

Tensor Transformer::evaluate(const Context& ctx, const Tensor& tokens, const Tensor& targets,
                             const Documents& documents) const {
    ConfiguredNorm::Saved discarded;
    return head.loss(ctx, norm_f.forward(ctx, features(ctx, tokens, documents), discarded), targets);
}

Tensor Transformer::target_losses(const Context& ctx, const Tensor& tokens, const Tensor& targets,
                                  const Documents& documents) const {
    ConfiguredNorm::Saved discarded;
    return head.losses(ctx, norm_f.forward(ctx, features(ctx, tokens, documents), discarded), targets);
}

Tensor Transformer::logits(const Context& ctx, const Tensor& tokens) const {
    check(tokens.rank() == 2 && tokens.size(1) >= 1, "transformer: logits after ", tokens,
          "; expected [B, T] with at least one token");
    const Tensor last = features(ctx, tokens).select(1, tokens.size(1) - 1);
    ConfiguredNorm::Saved discarded;
    return head.logits(ctx, norm_f.forward(ctx, last, discarded));
}

Tensor Transformer::logits_of_all(const Context& ctx, const Tensor& tokens) const {
    ConfiguredNorm::Saved discarded;
    return head.logits(ctx, norm_f.forward(ctx, features(ctx, tokens), discarded));
}

std::int64_t parameter_count(const ModelConfig& config, const AdapterOptions& adapters) {
    ParameterStore parameters;
    const Transformer model(config, parameters, {}, adapters);
    return parameters.count();
}

double flops_per_token(const ModelConfig& config, std::int64_t sequence, const AdapterOptions& adapters) {
    const auto real = [](std::int64_t x) { return static_cast<double>(x); };
    const double width = real(config.width);
    const double matrices =
        real(config.layers) * real(block_matrices(config).elements()) + width * real(config.vocabulary);
    const double adapted = real(config.layers) * real(adapter_elements(config, adapters));
    return (adapted > 0 ? 4.0 : 6.0) * matrices + 6.0 * adapted +
           12.0 * real(config.layers) * width * mean_visible_keys(config, sequence);
}

}  // namespace gradtile
