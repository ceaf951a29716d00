#include <gradtile/layers/transformer/next_tokens.h>

#include <algorithm>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/layers/fused_linear.h>

namespace gradtile {
namespace {

FusedLinear::Norm parts_of(const ConfiguredNorm& norm) {
    if (const auto* layer = std::get_if<LayerNorm>(&norm.norm))
        return {.weight = layer->weight.value(),
                .bias = layer->bias.defined() ? layer->bias.value() : Tensor(),
                .eps = layer->eps};
    const RMSNorm& rms = std::get<RMSNorm>(norm.norm);
    return {.weight = rms.weight.value(), .eps = rms.eps, .centred = false};
}

Tensor bias_of(const Linear& linear) {
    return linear.bias.defined() ? linear.bias.value() : Tensor();
}

/// fused_linear() into a new tensor [R, out] with x's dtype.
Tensor applied(const Context& ctx, const Tensor& x, std::int64_t out, const FusedLinear& op) {
    const Tensor y = empty(ctx, {x.size(0), out}, x.dtype());
    fused_linear(ctx, y, x, op);
    return y;
}

/// The step's token positions, for the layers that depend on positions.
struct StepPositions {
    const NextTokens& next;
    Rope::Angles angles;  // with rotary positions
};

/// x + attention(norm(x)).
Tensor attention_branch(const Context& ctx, const TransformerBlock& block, const Tensor& x,
                        const StepPositions& positions, const KeyValueCache::Layer& cache,
                        const attention::DecodeScratch& scratch) {
    const MultiHeadAttention& attn = block.attn;
    const Tensor packed = applied(
        ctx, x, attn.qkv.out_features(),
        {.norm = parts_of(block.norm_1), .weight = attn.qkv.weight.value(), .bias = bias_of(attn.qkv)});
    const std::int64_t rows = packed.size(0), dim = attn.head_dim, values = attn.heads + attn.kv_heads;
    MultiHeadAttention::Saved unused;
    const auto [q, k] =
        attn.queries_and_keys(ctx, packed.reshape({1, rows, packed.size(1)}), positions.angles, unused);
    const attention::DecodeInputs in{
        .q = q.reshape({rows, 1, attn.heads, dim}),
        .k = k.reshape({rows, 1, attn.kv_heads, dim}),
        .v = packed.slice(1, values * dim, attn.kv_heads * dim).reshape({rows, 1, attn.kv_heads, dim}),
        .slots = positions.next.slots,
        .positions = positions.next.positions};
    const Tensor o = empty(ctx, in.q.shape(), x.dtype());
    attention::decode(ctx, o, in, {cache.k, cache.v}, attn.options_of_pass(ctx, {}), scratch);
    return applied(ctx, o.reshape({x.size(0), attn.heads * attn.head_dim}), x.size(1),
                   {.weight = attn.proj.weight.value(), .bias = bias_of(attn.proj), .residual = x});
}

/// x + mlp(norm(x)).
Tensor mlp_branch(const Context& ctx, const TransformerBlock& block, const Tensor& x) {
    const Mlp& mlp = block.mlp;
    const Tensor hidden = applied(ctx, x, mlp.down.in_features(),
                                  {.norm = parts_of(block.norm_2),
                                   .weight = mlp.up.weight.value(),
                                   .bias = bias_of(mlp.up),
                                   .activation = mlp.activation});
    return applied(ctx, hidden, x.size(1),
                   {.weight = mlp.down.weight.value(), .bias = bias_of(mlp.down), .residual = x});
}

}  // namespace

std::vector<StepField> step_fields(const ModelConfig& config) {
    // With a field more or less, this line does not compile. Each field then needs its line below: `true` if
    // next_logits() computes every value as Transformer::logits() does, else a list of the values that it
    // computes.
    const auto& [layers, heads, kv_heads, width, hidden, context, vocabulary, norm, activation, positions,
                 rope_base, norm_epsilon, bias, tied_head, qk_norm, window, window_pattern, softcap, sinks] =
        config;
    const auto one_of = [](auto value, auto... computed) { return ((value == computed) || ...); };
    return {{"layers", true},
            {"heads", true},
            {"kv_heads", true},
            {"width", true},
            {"hidden", true},
            {"context", true},
            {"vocabulary", true},
            {"norm", one_of(norm, Norm::layer, Norm::rms)},
            {"activation", static_cast<std::size_t>(activation) < activation_table.size()},
            {"positions", one_of(positions, Positions::learned, Positions::rope, Positions::alibi)},
            {"rope_base", true},
            {"norm_epsilon", true},
            {"bias", true},
            {"tied_head", true},
            {"qk_norm", true},
            {"window", true},
            {"window_pattern", true},
            {"softcap", true},
            {"sinks", true}};
}

bool can_step(Device device, const ModelConfig& config, const AdapterOptions& adapters, DType dtype) {
    return adapters.rank == 0 && std::ranges::all_of(step_fields(config), &StepField::is_computed) &&
           attention::can_decode(device, dtype, config.head_dim());
}

attention::DecodeScratch step_scratch(const Context& ctx, const Transformer& model,
                                      const KeyValueCache& cache, std::int64_t rows) {
    return {ctx, rows, model.config.heads, {cache.layers.front().k, cache.layers.front().v}};
}

void next_logits(const Context& ctx, const Tensor& logits, const Transformer& model, const NextTokens& next,
                 const KeyValueCache& cache, const attention::DecodeScratch& scratch) {
    const std::int64_t rows = next.tokens.elements(), width = model.config.width;
    for (const Tensor* x : {&next.tokens, &next.positions, &next.slots})
        check(x->dtype() == DType::i32 && x->is_contiguous() && x->shape() == Shape{rows},
              "next_logits: tokens ", next.tokens, ", positions ", next.positions, ", slots ", next.slots,
              "; expected contiguous int32 of one shape [R]");
    check_sharing(ctx, "next_logits", {"logits", logits},
                  {{"tokens", next.tokens}, {"positions", next.positions}, {"slots", next.slots}});
    check(model.adapters.rank == 0, "next_logits: no step computes the model's adapters");
    for (const StepField& field : step_fields(model.config))
        check(field.is_computed, "next_logits: no step computes the model's ", field.name);
    Embedding::Saved unused;
    Tensor x = model.wte.forward(ctx, next.tokens.reshape({1, rows}), unused);
    PositionEmbedding::Saved unused_positions;
    if (model.wpe) x = model.wpe->forward_at(ctx, x, next.positions.reshape({1, rows}), unused_positions);
    x = x.reshape({rows, width});
    StepPositions positions{next, {}};
    if (const auto& rope = model.blocks.front().attn.rope; rope)
        positions.angles = rope->angles_at(ctx, next.positions, x.dtype());
    for (std::size_t i = 0; i < model.blocks.size(); ++i) {
        x = attention_branch(ctx, model.blocks[i], x, positions, cache.layers[i], scratch);
        x = mlp_branch(ctx, model.blocks[i], x);
    }
    fused_linear(ctx, logits, x, {.norm = parts_of(model.norm_f), .weight = model.head.weight.value()});
}

}  // namespace gradtile
