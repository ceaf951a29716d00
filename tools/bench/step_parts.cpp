#include <gradtile/tools/bench/step_parts.h>

#include <map>
#include <memory>

#include <gradtile/layers/activation.h>
#include <gradtile/layers/linear_activation.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/tools/bench/measure.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/optimizers/optimizer.h>

namespace gradtile::cli {
namespace {

void add_linear(std::vector<Part>& parts, const Context& ctx, const RandomNumbers& numbers,
                const Linear& linear, std::int64_t rows, std::int64_t count) {
    const Tensor x = numbers(ctx, {rows, linear.in_features()}, linear.weight.value().dtype());
    const Tensor dy = numbers(ctx, {rows, linear.out_features()}, x.dtype());
    const double flops = 2.0 * static_cast<double>(rows * linear.in_features() * linear.out_features());
    parts.push_back({linear.weight.name() + " forward", count, flops, [=, &ctx] {
                         Linear::Saved saved;
                         linear.forward(ctx, x, saved);
                     }});
    parts.push_back({linear.weight.name() + " backward", count, 2.0 * flops,
                     [=, &ctx] { linear.backward(ctx, dy, Linear::Saved{x}); }});
}

/// An MLP's two layers; the activation is timed together with the products before and after it.
void add_mlp(std::vector<Part>& parts, const Context& ctx, const RandomNumbers& numbers, const Mlp& mlp,
             std::int64_t rows, std::int64_t count) {
    const Linear &up = mlp.up, &down = mlp.down;
    const DType dtype = up.weight.value().dtype();
    const Activation activation = mlp.activation;
    const Tensor x = numbers(ctx, {rows, up.in_features()}, dtype);
    const Tensor dy = numbers(ctx, x.shape(), dtype);
    const Tensor hidden = numbers(ctx, {rows, up.out_features()}, dtype);
    const Tensor y = numbers(ctx, {rows, down.in_features()}, dtype), d_hidden = empty_like(ctx, hidden);
    const auto flops_of = [&](const Linear& linear) {
        return 2.0 * static_cast<double>(rows * linear.in_features() * linear.out_features());
    };
    const Tensor bias = up.bias.defined() ? up.bias.value() : Tensor();
    const bool gated = traits_of(activation).gated;
    const std::string up_name = gated ? "gate_up" : "fc", down_name = gated ? "down" : "proj";
    parts.push_back(
        {concat(up_name, " and ", name_of(activation), " forward"), count, flops_of(up),
         [=, &ctx] { linear_activation_forward(ctx, y, hidden, x, up.weight.value(), bias, activation); }});
    parts.push_back({down_name + " forward", count, flops_of(down), [=, &ctx] {
                         Linear::Saved saved;
                         down.forward(ctx, y, saved);
                     }});
    parts.push_back({down_name + " weight gradient", count, flops_of(down),
                     [=, &ctx] { down.accumulate_gradients(ctx, dy, Linear::Saved{y}); }});
    parts.push_back(
        {concat(down_name, " and ", name_of(activation), " backward"), count, flops_of(down), [=, &ctx] {
             linear_activation_backward(ctx, d_hidden, dy, down.weight.value(), hidden, activation);
         }});
    parts.push_back({up_name + " backward", count, 2.0 * flops_of(up),
                     [=, &ctx] { up.backward(ctx, d_hidden, Linear::Saved{x}); }});
}

/// Adds the norm and the rotation of queries and keys.
void add_head_transform(std::vector<Part>& parts, const Context& ctx, const RandomNumbers& numbers,
                        const MultiHeadAttention& attn, const Tensor& x, std::int64_t count) {
    const std::int64_t transformed = attn.heads + attn.kv_heads;
    const Tensor packed = numbers(ctx, {x.size(0), x.size(1), attn.qkv.out_features()}, x.dtype());
    const Tensor gradients = numbers(ctx, packed.shape(), x.dtype());
    const Rope::Angles angles =
        attn.rope ? attn.rope->angles_from(ctx, 0, x.size(1), x.dtype()) : Rope::Angles();
    auto saved = std::make_shared<MultiHeadAttention::Saved>();
    attn.queries_and_keys(ctx, packed, angles, *saved);
    const std::string name = attn.rope && attn.qk_norm ? "qk-norm and rope" : attn.rope ? "rope" : "qk-norm";
    parts.push_back({name + " forward", count, 0,
                     [=, &ctx, &attn] { attn.queries_and_keys(ctx, packed, angles, *saved); }});
    parts.push_back({name + " backward", count, 0, [=, &ctx, &attn] {
                         const Tensor gradient =
                             gradients.slice(2, 0, transformed * attn.head_dim)
                                 .reshape({x.size(0), x.size(1), transformed, attn.head_dim});
                         attn.differentiate_queries_and_keys(ctx, gradient, angles, *saved);
                     }});
}

/// Adds attention, with one part for each distinct layer window.
void add_attention(std::vector<Part>& parts, const Context& ctx, const ModelConfig& config,
                   const MultiHeadAttention::Saved& saved) {
    const attention::Saved operands = saved.attention;
    const std::int64_t length = operands.q.size(1), rows = operands.q.size(0) * length;
    std::map<std::int64_t, std::int64_t> layers_with;
    for (std::int64_t layer = 0; layer < config.layers; ++layer) ++layers_with[config.window_of(layer)];
    for (const auto& [window, layers] : layers_with) {
        attention::Options options = saved.options;
        options.window.left = window - 1;
        ModelConfig alike = config;  // all layers have this window
        alike.window = window;
        alike.window_pattern = 0;
        const double flops = 4.0 * static_cast<double>(rows * config.heads * config.head_dim()) *
                             mean_visible_keys(alike, length);
        const std::string name = window == 0 ? "attention" : concat("attention, window ", window);
        parts.push_back({name + " forward", layers, flops, [=, &ctx] {
                             attention::Saved again;
                             attention::forward(ctx, operands.q, operands.k, operands.v, options, again);
                         }});
        parts.push_back({name + " backward", layers, 2.5 * flops,
                         [=, &ctx] { attention::backward(ctx, operands.o, options, operands); }});
    }
}

}  // namespace

std::vector<Part> parts_of_step(const Context& ctx, const Transformer& model,
                                const ParameterStore& parameters, Optimizer& optimizer,
                                const Tensor& tokens) {
    const ModelConfig& config = model.config;
    const std::int64_t rows = tokens.elements(), layers = config.layers;
    const DType dtype = parameters.dtype();
    const TransformerBlock& block = model.blocks.front();
    const RandomNumbers numbers(ctx);
    const Tensor x = numbers(ctx, {tokens.size(0), tokens.size(1), config.width}, dtype);
    const Tensor dx = numbers(ctx, x.shape(), dtype);
    std::vector<Part> parts;

    for (const Linear* linear : {&block.attn.qkv, &block.attn.proj})
        add_linear(parts, ctx, numbers, *linear, rows, layers);

    auto attention_saved = std::make_shared<MultiHeadAttention::Saved>();
    block.attn.forward(ctx, x, TrainingPass{}, *attention_saved);
    add_attention(parts, ctx, config, *attention_saved);
    if (block.attn.rope || block.attn.qk_norm) add_head_transform(parts, ctx, numbers, block.attn, x, layers);

    const NormLayer& norm = model.norm_f;
    const std::int64_t norms = layers * ((block.norm_1 ? 2 : 0) + (block.norm_post_1 ? 2 : 0));
    auto norm_saved = std::make_shared<NormLayer::Saved>();
    norm.forward(ctx, x, *norm_saved);
    const Tensor branch = numbers(ctx, x.shape(), dtype);
    parts.push_back({"residual and norm forward", norms, 0, [=, &ctx, &norm] {
                         NormLayer::Saved saved;
                         norm.forward(ctx, Residual{x, branch}, saved);
                     }});
    parts.push_back(
        {"norm backward", norms + 1, 0, [=, &ctx, &norm] { norm.backward_add(ctx, x, *norm_saved, dx); }});

    add_mlp(parts, ctx, numbers, block.mlp, rows, layers);
    parts.push_back({"embedding forward", 1, 0, [=, &ctx, &model] {
                         Embedding::Saved saved;
                         PositionEmbedding::Saved positions;
                         const Tensor y = model.wte.forward(ctx, tokens, saved);
                         if (model.wpe) model.wpe->forward(ctx, y, positions);
                     }});
    Embedding::Saved embedded{tokens};
    model.wte.start_token_sort(ctx, embedded);
    parts.push_back({"embedding backward", 1, 0, [=, &ctx, &model] {
                         if (model.wpe) model.wpe->backward(ctx, dx, {.start = 0});
                         model.wte.backward(ctx, dx, embedded);
                     }});
    parts.push_back({"head and loss", 1, 6.0 * static_cast<double>(rows * config.width * config.vocabulary),
                     [=, &ctx, &model] {
                         CrossEntropyHead::Saved saved;
                         model.head.forward(ctx, x, tokens, saved);
                     }});
    parts.push_back(
        {"gradient norm", 1, 0, [&] { clip_global_norm(ctx, parameters.gradients(), {.max_norm = 1.0}); }});
    parts.push_back({"optimizer", 1, 0, [&] { optimizer.step(ctx, 1e-9); }});
    return parts;
}

}  // namespace gradtile::cli
