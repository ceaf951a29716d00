#include <gradtile/tools/gradcheck/gradcheck_operators.h>

#include <algorithm>
#include <cmath>

#include <gradtile/attention/accuracy.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/activation.h>
#include <gradtile/layers/cross_entropy_head.h>
#include <gradtile/layers/dropout.h>
#include <gradtile/layers/embedding.h>
#include <gradtile/layers/linear.h>
#include <gradtile/layers/norm.h>
#include <gradtile/layers/rope.h>
#include <gradtile/layers/transformer/transformer.h>

namespace gradtile::cli {
namespace {

using Tensors = Differentiable::Tensors;

Tensor input(const Context& ctx, const Shape& shape, std::uint64_t seed) {
    return randn(ctx, shape, DType::f64, Seed{seed});
}

/// Draws random float64 parameters that differ from the usual initial values, so that no gradient vanishes by
/// symmetry.
void draw_parameters(const Context& ctx, ParameterStore& store) {
    store.allocate(ctx, DType::f64);
    fill_normal(ctx, store.values(), 0.5, 0.5, Seed{99});
}

template <class Layer, class... Args>
GradientReport check_layer(const Context& ctx, const Shape& shape, const Args&... args) {
    ParameterStore store;
    const Layer layer(store, "layer", args...);
    draw_parameters(ctx, store);
    return gradient_check_layer(ctx, layer, input(ctx, shape, 1), store.parameters());
}

/// Attention in a training pass, with a layer's signature.
struct TrainedAttention : MultiHeadAttention {
    using MultiHeadAttention::MultiHeadAttention;
    Tensor forward(const Context& ctx, const Tensor& x, Saved& saved) const {
        return MultiHeadAttention::forward(ctx, x, TrainingPass{}, saved);
    }
};

/// Moves inputs away from 0, where the second derivative of relu2 jumps: finite differences across the jump
/// miss their error bound.
GradientReport check_activation(const Context& ctx, const ActivationTraits& traits) {
    const Shape shape{3, 5, traits.gated ? 14 : 7};
    std::vector<double> x = to_host(ctx, input(ctx, shape, 1));
    for (double& value : x) value = std::copysign(std::max(std::abs(value), 0.01), value);
    const ActivationLayer layer{traits.activation};
    return gradient_check_layer(ctx, layer, from_host(ctx, x, shape, DType::f64));
}

using attention::Algorithm;
using attention::accuracy::NamedProblem;
using attention::accuracy::Problem;

/// Returns a problem with unequal lengths and head dims, whose heads share keys.
Problem attention_problem(Problem options = {}) {
    options.queries = 7;
    options.keys = 13;
    options.d_qk = 6;
    options.d_v = 10;
    options.batch = 2;
    options.heads = 4;
    options.key_heads = 2;
    return options;
}

/// Checks the gradients of q, k, v and the biases. If the problem has a gradient with respect to the LSE, the
/// checked function also outputs the LSE.
GradientReport check_attention(const Context& ctx, const Problem& problem,
                               Algorithm algorithm = Algorithm::flash) {
    const attention::accuracy::Inputs in = random_inputs(ctx, problem, DType::f64);
    Tensors inputs{in.q, in.k, in.v};
    std::vector<std::string> names{"q", "k", "v"};
    std::vector<std::size_t> biases;
    for (std::size_t n = 0; n < attention::max_biases; ++n) {
        if (!in.biases[n].defined()) continue;
        biases.push_back(n);
        inputs.push_back(cast(ctx, in.biases[n], DType::f64));
        names.push_back(concat("bias ", n));
    }
    const auto options_of = [&](const Tensors& x) {
        attention::Options options = in.with_tensors(problem.options(algorithm));
        for (std::size_t i = 0; i < biases.size(); ++i) options.biases[biases[i]] = x[3 + i];
        return options;
    };
    attention::Saved saved;
    const Differentiable function{
        [&](const Context& c, const Tensors& x) {
            saved = {};
            Tensors outputs{attention::forward(c, x[0], x[1], x[2], options_of(x), saved)};
            if (problem.d_lse) outputs.push_back(saved.lse);
            return outputs;
        },
        [&](const Context& c, const Tensors& x, const Tensors& d) {
            const attention::Gradients gradients =
                attention::backward(c, d[0], options_of(x), saved, problem.d_lse ? d[1] : Tensor());
            Tensors all{gradients.q, gradients.k, gradients.v};
            for (const std::size_t n : biases) all.push_back(gradients.biases[n]);
            return all;
        }};
    return gradient_check(ctx, function, inputs, {}, {.names = std::move(names)});
}

/// Checks packed sequences, one without rows and one without keys, and with tokens after the last sequence.
GradientReport check_packed_attention(const Context& ctx) {
    const auto offsets = [&](const std::vector<std::int32_t>& list) {
        return from_host(ctx, list, {std::ssize(list)});
    };
    const attention::Options options{.causal = true,
                                     .dropout_p = 0.3,
                                     .dropout_key = DropoutKey::from_step(/*run_seed=*/7, /*step=*/1),
                                     .cumulative_q = offsets({0, 7, 7, 12, 15}),
                                     .cumulative_k = offsets({0, 9, 13, 13, 21})};
    attention::Saved saved;
    const Differentiable function{
        [&](const Context& c, const Tensors& x) {
            saved = {};
            const Tensor o = attention::forward(c, x[0], x[1], x[2], options, saved);
            return Tensors{o};
        },
        [&](const Context& c, const Tensors&, const Tensors& d) {
            const attention::Gradients gradients = attention::backward(c, d[0], options, saved);
            return Tensors{gradients.q, gradients.k, gradients.v};
        }};
    return gradient_check(ctx, function,
                          {input(ctx, {16, 4, 6}, 1), input(ctx, {23, 2, 6}, 2), input(ctx, {23, 2, 10}, 3)},
                          {}, {.names = {"q", "k", "v"}});
}

GradientReport check_rope(const Context& ctx) {
    const Rope rope(6, 16);
    const Differentiable function{[&](const Context& c, const Tensors& x) {
                                      const Tensor y = cast(c, x[0], DType::f64);
                                      rope.forward(c, y);
                                      return Tensors{y};
                                  },
                                  [&](const Context& c, const Tensors&, const Tensors& dy) {
                                      const Tensor dx = cast(c, dy[0], DType::f64);
                                      rope.backward(c, dx);
                                      return Tensors{dx};
                                  }};
    return gradient_check(ctx, function, {input(ctx, {2, 7, 3, 6}, 1)}, {}, {.names = {"x"}});
}

GradientReport check_dropout(const Context& ctx) {
    const Dropout dropout{0.3};
    Dropout::Saved saved;
    const DropoutKey key = DropoutKey::from_step(/*run_seed=*/7, /*step=*/1);
    const Differentiable function{
        [&](const Context& c, const Tensors& x) { return Tensors{dropout.forward(c, x[0], key, saved)}; },
        [&](const Context& c, const Tensors&, const Tensors& dy) {
            return Tensors{dropout.backward(c, dy[0], saved)};
        }};
    return gradient_check(ctx, function, {input(ctx, {2, 5, 24}, 1)}, {}, {.names = {"x"}});
}

GradientReport check_embedding(const Context& ctx) {
    ParameterStore store;
    const Embedding embedding(store, "embedding", 11, 6);
    draw_parameters(ctx, store);
    const Tensor tokens = from_host(ctx, token_pattern(14, 11, 5), {2, 7});
    Embedding::Saved saved;
    const Differentiable function{
        [&](const Context& c, const Tensors&) { return Tensors{embedding.forward(c, tokens, saved)}; },
        [&](const Context& c, const Tensors&, const Tensors& dy) {
            embedding.backward(c, dy[0], saved);
            return Tensors{};
        }};
    return gradient_check(ctx, function, {}, store.parameters());
}

/// A linear layer with an adapter. Its own weight and bias are frozen, as in training.
GradientReport check_lora(const Context& ctx, WeightFormat format) {
    ParameterStore frozen, adapters;
    Linear layer(frozen, "layer", 6, 9, {.init = Init::normal(0.5)});
    layer.add_adapter(adapters, {.rank = 3, .alpha = 5.0});
    if (format != WeightFormat::same) frozen.quantize({&layer.weight, 1}, format);
    frozen.allocate(ctx, DType::f64, {.gradients = false});
    frozen.initialize(ctx, Seed{98});
    draw_parameters(ctx, adapters);
    return gradient_check_layer(ctx, layer, input(ctx, {3, 5, 6}, 1), adapters.parameters());
}

GradientReport check_cross_entropy(const Context& ctx, const LogitSoftcap& softcap) {
    ParameterStore store;
    CrossEntropyHead head(store, "head", 13, 6);
    head.softcap = softcap;
    draw_parameters(ctx, store);
    std::vector<std::int32_t> target_ids = token_pattern(10, 13, 3);
    target_ids[4] = -1;
    const Tensor targets = from_host(ctx, target_ids, {10});
    CrossEntropyHead::Saved saved;
    // The head computes its gradients in forward, before d_loss is known. So this function passes d_loss to
    // forward as the gradient scale.
    const Differentiable function{[&](const Context& c, const Tensors& x) {
                                      return Tensors{head.loss(c, x[0], targets).slice(0, 0, 1)};
                                  },
                                  [&](const Context& c, const Tensors& x, const Tensors& d_loss) {
                                      // head.loss is a sum, forward's loss is a mean.
                                      constexpr double target_count = 9;
                                      head.forward(c, x[0], targets, saved,
                                                   target_count * item(c, d_loss[0]));
                                      return Tensors{head.backward(c, saved)};
                                  }};
    return gradient_check(ctx, function, {input(ctx, {10, 6}, 1)}, store.parameters(), {.names = {"x"}});
}

GradientReport check_transformer(const Context& ctx, const ModelConfig& config) {
    ParameterStore store;
    const Transformer model(config, store);
    store.allocate(ctx, DType::f64);
    fill_normal(ctx, store.values(), 0.1, 0.3, Seed{5});
    const auto vocabulary = static_cast<std::int32_t>(config.vocabulary);
    const Tensor tokens =
        from_host(ctx, token_pattern(2 * config.context, vocabulary, 3), {2, config.context});
    const Tensor targets =
        from_host(ctx, token_pattern(2 * config.context, vocabulary, 5), {2, config.context});
    const double target_count = static_cast<double>(2 * config.context);
    const Differentiable function{[&](const Context& c, const Tensors&) {
                                      return Tensors{model.evaluate(c, tokens, targets).slice(0, 0, 1)};
                                  },
                                  [&](const Context& c, const Tensors&, const Tensors& d_loss) {
                                      Transformer::Saved saved;
                                      model.forward(c, tokens, targets, saved,
                                                    {.gradient_scale = target_count * item(c, d_loss[0])});
                                      model.backward(c, saved);
                                      return Tensors{};
                                  }};
    return gradient_check(ctx, function, {}, store.parameters(), {.elements = 16});
}

/// Attention with each algorithm, mask and option.
std::vector<CheckedOperator> make_attention_operators() {
    std::vector<CheckedOperator> operators;
    const auto add = [&](const std::string& name, const Problem& problem,
                         Algorithm algorithm = Algorithm::flash) {
        operators.push_back({concat("attention-", name), [problem, algorithm](const Context& c) {
                                 return check_attention(c, problem, algorithm);
                             }});
    };
    add("flash2", {.queries = 9, .keys = 9, .batch = 2, .heads = 2, .key_heads = 2});
    add("flash2-causal", attention_problem({.causal = true}));
    add("naive-causal", attention_problem({.causal = true}), Algorithm::naive);
    const Problem all_options = score_option_problems(attention_problem({.causal = true})).back().problem;
    add("memory-efficient", all_options, Algorithm::memory_efficient);
    add("flash1", all_options, Algorithm::flash1);
    add("window", attention_problem({.window = {.left = 5, .right = 2}}));
    for (const NamedProblem& p : score_option_problems(attention_problem())) add(p.name, p.problem);
    for (const NamedProblem& p : row_range_problems(attention_problem())) {
        add(p.name, p.problem);
        add(concat("naive-", p.name), p.problem, Algorithm::naive);
    }
    operators.push_back({"attention-packed", check_packed_attention});
    return operators;
}

ModelConfig small_llama() {
    return as_llama({.layers = 2,
                     .heads = 4,
                     .kv_heads = 2,
                     .width = 16,
                     .hidden = 24,
                     .context = 5,
                     .vocabulary = 11,
                     .qk_norm = true});
}
ModelConfig gemma3_style() {
    ModelConfig config = small_llama();
    config.head_width = 6;
    config.block = BlockKind::sandwich_norm;
    config.norm_offset = config.scaled_embedding = config.tied_head = true;
    config.activation = Activation::geglu_tanh;
    config.window = 2;
    config.window_pattern = 2;
    config.window_rope_base = 100;
    config.rope_scaling = {.kind = RopeKind::linear, .factor = 8};
    config.logit_softcap.limit = 3;
    return config;
}
ModelConfig olmo2_style() {
    ModelConfig config = small_llama();
    config.block = BlockKind::output_norm;
    config.qk_norm_kind = QkNorm::projection;
    return config;
}
/// A model with learned sums of streams.
ModelConfig streams_style() {
    ModelConfig config = small_llama();
    config.layers = 4;
    config.x0_lambdas = true;
    return config;
}
ModelConfig gates_style() {
    ModelConfig config = small_llama();
    config.attention_gate = config.value_embeddings = true;
    return config;
}
/// A model whose keys have columns of the token before.
ModelConfig previous_token_style() {
    ModelConfig config = small_llama();
    config.key_offset = true;
    config.rope_scaling.kind = RopeKind::half_truncated;
    return config;
}
ModelConfig neox_style() {
    return {.layers = 2,
            .heads = 2,
            .width = 16,
            .context = 5,
            .vocabulary = 11,
            .block = BlockKind::parallel,
            .positions = Positions::rope,
            .rotary_width = 4,
            .embedding_norm = true};
}

std::vector<CheckedOperator> make_operators() {
    const ModelConfig gpt2{.layers = 2, .heads = 2, .width = 8, .context = 5, .vocabulary = 11};
    std::vector<CheckedOperator> operators = make_attention_operators();
    const std::vector<CheckedOperator> layer_operators{
        {"linear",
         [](const Context& c) {
             return check_layer<Linear>(c, {3, 5, 6}, 6, 9);
         }},
        {"lora", [](const Context& ctx) { return check_lora(ctx, WeightFormat::same); }},
        {"lora-nf4", [](const Context& ctx) { return check_lora(ctx, WeightFormat::nf4); }},
        {"lora-int8", [](const Context& ctx) { return check_lora(ctx, WeightFormat::int8); }},
        {"layer-norm",
         [](const Context& c) {
             return check_layer<LayerNorm>(c, {3, 5, 17}, 17, true);
         }},
        {"rms-norm",
         [](const Context& c) {
             return check_layer<RMSNorm>(c, {3, 5, 17}, 17);
         }},
        {"embedding", check_embedding},
        {"positions",
         [](const Context& c) {
             return check_layer<PositionEmbedding>(c, {2, 5, 6}, 9, 6);
         }},
        {"rope", check_rope},
        {"dropout", check_dropout},
        {"cross-entropy", [](const Context& c) { return check_cross_entropy(c, {}); }},
        {"cross-entropy-tanh-softcap",
         [](const Context& c) {
             return check_cross_entropy(c, {3, SoftcapForm::tanh});
         }},
        {"cross-entropy-root-softcap",
         [](const Context& c) {
             return check_cross_entropy(c, {3, SoftcapForm::root});
         }},
        {"multi-head-attention",
         [gpt2](const Context& c) {
             return check_layer<TrainedAttention>(c, {2, 5, 8}, gpt2);
         }},
        {"mlp",
         [gpt2](const Context& c) {
             return check_layer<Mlp>(c, {2, 5, 8}, gpt2);
         }},
        {"gpt2", [gpt2](const Context& c) { return check_transformer(c, gpt2); }},
        {"llama", [](const Context& c) { return check_transformer(c, small_llama()); }},
        {"gemma3", [](const Context& c) { return check_transformer(c, gemma3_style()); }},
        {"olmo2", [](const Context& c) { return check_transformer(c, olmo2_style()); }},
        {"neox", [](const Context& c) { return check_transformer(c, neox_style()); }},
        {"gates", [](const Context& c) { return check_transformer(c, gates_style()); }},
        {"previous-token", [](const Context& c) { return check_transformer(c, previous_token_style()); }},
        {"streams", [](const Context& c) { return check_transformer(c, streams_style()); }},
    };
    operators.insert(operators.end(), layer_operators.begin(), layer_operators.end());
    for (const ActivationTraits& traits : activation_table)
        operators.push_back(
            {std::string(traits.name), [&traits](const Context& c) { return check_activation(c, traits); }});
    return operators;
}

}  // namespace

std::vector<std::int32_t> token_pattern(std::int64_t count, std::int32_t vocabulary, std::int32_t step) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = static_cast<std::int32_t>(i) * step % vocabulary;
    return tokens;
}

const std::vector<CheckedOperator>& checked_operators() {
    static const std::vector<CheckedOperator> operators = make_operators();
    return operators;
}

}  // namespace gradtile::cli
