#include <gradtile/layers/transformer/model_config.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include <gradtile/attention/score_rule.h>
#include <gradtile/layers/learned_factors.h>

namespace gradtile {

RopeFrequencies ModelConfig::rope_of(bool has_window) const {
    if (has_window && window_rope_base != 0)
        return rope_frequencies(rotated_width(), window_rope_base, context);
    return rope_frequencies(rotated_width(), rope_base, context, rope_scaling);
}

std::vector<HeadColumns> ModelConfig::unrotated_columns(bool has_window) const {
    const std::int64_t rotated = rotated_width(), all = head_dim();
    const bool is_scaled = !has_window || window_rope_base == 0;
    // Column i is rotated with column i + rotated / 2; half of these pairs have the frequency 0.
    if (is_scaled && rope_scaling.kind == RopeKind::half_truncated)
        return {{rotated / 4, rotated / 4}, {3 * rotated / 4, all - 3 * rotated / 4}};
    if (rotated < all) return {{rotated, all - rotated}};
    return {};
}

BlockMatrices block_matrices(const ModelConfig& c) {
    const std::int64_t hidden = c.hidden_width();
    return {.qkv = {.out = (c.heads + 2 * c.key_value_heads()) * c.head_dim(), .in = c.width},
            .proj = {.out = c.width, .in = c.heads * c.head_dim()},
            .up = {.out = traits_of(c.activation).gated ? 2 * hidden : hidden, .in = c.width},
            .down = {.out = c.width, .in = hidden}};
}

AdaptedMatrices adapted_matrices(const ModelConfig& c, const AdapterOptions& adapters) {
    AdaptedMatrices adapted;
    const bool gated = traits_of(c.activation).gated;
    const std::array matrices{
        std::pair{std::string_view("attn.qkv"), &AdaptedMatrices::qkv},
        std::pair{std::string_view("attn.proj"), &AdaptedMatrices::proj},
        std::pair{std::string_view(gated ? "mlp.gate_up" : "mlp.fc"), &AdaptedMatrices::up},
        std::pair{std::string_view(gated ? "mlp.down" : "mlp.proj"), &AdaptedMatrices::down}};
    const auto select = [&](std::string_view name) {
        bool known = false;
        for (const auto& [matrix, member] : matrices) {
            const bool is_layer = matrix.substr(0, matrix.find('.')) == name;
            if (name != "all" && name != matrix && !is_layer) continue;
            adapted.*member = known = true;
        }
        check(known, "lora-on: '", name, "' is no matrix of this model's blocks; expected all, attn, mlp, ",
              matrices[0].first, ", ", matrices[1].first, ", ", matrices[2].first, " or ", matrices[3].first,
              ", separated by commas");
    };
    std::string_view rest = adapters.on;
    for (;;) {
        const std::size_t comma = rest.find(',');
        select(rest.substr(0, comma));
        if (comma == std::string_view::npos) return adapted;
        rest.remove_prefix(comma + 1);
    }
}

std::int64_t adapter_elements(const ModelConfig& c, const AdapterOptions& adapters) {
    if (adapters.rank == 0) return 0;
    const BlockMatrices shapes = block_matrices(c);
    const AdaptedMatrices adapted = adapted_matrices(c, adapters);
    std::int64_t rows_and_columns = 0;
    const auto add = [&](bool is_adapted, const MatrixShape& shape) {
        if (is_adapted) rows_and_columns += shape.out + shape.in;
    };
    add(adapted.qkv, shapes.qkv);
    add(adapted.proj, shapes.proj);
    add(adapted.up, shapes.up);
    add(adapted.down, shapes.down);
    return adapters.rank * rows_and_columns;
}

double mean_visible_keys(const ModelConfig& c, std::int64_t sequence) {
    double sum = 0.0;
    for (std::int64_t layer = 0; layer < c.layers; ++layer) {
        const std::int64_t window = c.window_of(layer);
        const auto length = static_cast<double>(sequence);
        // The first tokens see 1, 2, ... `most` keys, the others `most`.
        const double most = window == 0 ? length : static_cast<double>(std::min(window, sequence));
        sum += most - most * (most - 1) / (2 * length);
    }
    return sum / static_cast<double>(c.layers);
}

double flops_per_token(const ModelConfig& config, std::int64_t sequence, const AdapterOptions& adapters) {
    const auto real = [](std::int64_t x) { return static_cast<double>(x); };
    const double width = real(config.width);
    const double matrices =
        real(config.layers) * real(block_matrices(config).elements()) + width * real(config.vocabulary);
    // A gate is a product with HeadGate's columns.
    double gates = 0.0;
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
        const std::int64_t gated = (config.attention_gate ? config.heads : 0) +
                                   (config.has_value_embedding(layer) ? config.key_value_heads() : 0);
        gates += real(gated * std::min(config.width, gate_columns));
    }
    const double adapted = real(config.layers) * real(adapter_elements(config, adapters));
    return (adapted > 0 ? 4.0 : 6.0) * (matrices + gates) + 6.0 * adapted +
           12.0 * real(config.layers) * real(config.heads * config.head_dim()) *
               mean_visible_keys(config, sequence);
}

double embedding_factor(const ModelConfig& c, DType dtype) {
    if (!c.scaled_embedding) return 1.0;
    return visit_floating(dtype, [&]<class T>(TypeTag<T>) {
        using S = Accumulator<T>;
        return static_cast<double>(convert<S>(convert<T>(std::sqrt(static_cast<S>(c.width)))));
    });
}

ModelConfig as_llama(ModelConfig config) {
    config.norm = Norm::rms;
    config.activation = Activation::swiglu;
    config.positions = Positions::rope;
    config.bias = false;
    config.tied_head = false;
    return config;
}

namespace {

/// The largest of a block's widths.
std::int64_t widest_of(const ModelConfig& c) {
    return std::max({c.width, c.hidden_width(), c.heads * c.head_dim()});
}

void check_heads(const ModelConfig& c) {
    check_range("heads", c.heads, model_limits::heads);
    check_range("kv-heads", c.kv_heads, model_limits::kv_heads);
    check_range("head-width", c.head_width, model_limits::head_width);
    check(c.head_width != 0 || c.width % c.heads == 0, "heads: ", c.heads, " does not divide width ",
          c.width);
    check(c.head_dim() <= 256, "heads: ", c.heads, " heads and width ", c.width, " give a head width of ",
          c.head_dim(), "; expected at most 256");
    check(c.heads % c.key_value_heads() == 0, "kv-heads: ", c.kv_heads, " does not divide heads ", c.heads);
    check_range("query-scalar", c.query_scalar, model_limits::query_scalar);
    check(c.query_scalar == 0 || c.query_scalar >= model_limits::min_query_scalar,
          "query-scalar: ", c.query_scalar, "; expected 0 (the head's width) or at least ",
          model_limits::min_query_scalar);
}

void check_factors(const char* name, const std::vector<double>& factors, std::int64_t frequencies) {
    check(std::ssize(factors) == frequencies, name, ": ", factors.size(), " numbers; expected ", frequencies,
          ", one for each pair of rotated columns");
    for (const double factor : factors) check_range(name, factor, model_limits::rope_parameter);
}

void check_rope_scaling(const ModelConfig& c) {
    const RopeScaling& s = c.rope_scaling;
    check_range("rope-factor", s.factor, model_limits::rope_factor);
    check_range("rope-original-context", s.original_context, model_limits::rope_original_context);
    for (const auto& [name, value] :
         {std::pair{"rope-low-factor", s.low_factor}, std::pair{"rope-high-factor", s.high_factor},
          std::pair{"rope-beta-fast", s.beta_fast}, std::pair{"rope-beta-slow", s.beta_slow}})
        check_range(name, value, model_limits::rope_parameter);
    for (const auto& [name, value] :
         {std::pair{"rope-attention-factor", s.attention_factor}, std::pair{"rope-mscale", s.mscale},
          std::pair{"rope-mscale-all-dim", s.mscale_all_dim}})
        check_range(name, value, model_limits::rope_magnitude);
    check(s.kind != RopeKind::llama3 || s.low_factor < s.high_factor, "rope-low-factor: ", s.low_factor,
          "; expected less than rope-high-factor (", s.high_factor, ")");
    check(s.kind != RopeKind::yarn || s.beta_slow < s.beta_fast, "rope-beta-slow: ", s.beta_slow,
          "; expected less than rope-beta-fast (", s.beta_fast, ")");
    check(s.kind != RopeKind::half_truncated || c.rotated_width() % 4 == 0,
          "rope-scaling: half-truncated requires a rotary width divisible by 4; it is ", c.rotated_width());
    if (s.kind != RopeKind::longrope) return;
    check(s.original_context > 1, "rope-original-context: ", s.original_context,
          "; longrope requires at least 2");
    check_factors("rope-short-factors", s.short_factors, c.rotated_width() / 2);
    check_factors("rope-long-factors", s.long_factors, c.rotated_width() / 2);
}

void check_rotation(const ModelConfig& c) {
    check_range("rope-base", c.rope_base, model_limits::rope_base);
    check_range("rotary-width", c.rotary_width, model_limits::rotary_width);
    check_range("rope-pattern", c.rope_pattern, model_limits::rope_pattern);
    check_range("window-rope-base", c.window_rope_base, model_limits::window_rope_base);
    check(c.window_rope_base == 0 || c.window_rope_base > 1, "window-rope-base: ", c.window_rope_base,
          "; expected 0 (as in other layers) or more than 1");
    if (rotates_heads(c.positions)) {
        check(c.rotated_width() <= c.head_dim(), "rotary-width: ", c.rotary_width,
              "; expected at most the head width ", c.head_dim());
        check(c.rotary_width % 2 == 0, "rotary-width: ", c.rotary_width, "; expected an even number");
        check(c.rotated_width() % 2 == 0, "positions: rope requires an even head width; it is ",
              c.head_dim());
    }
    check_rope_scaling(c);
    for (std::int64_t layer = 0; layer < c.layers; ++layer)
        check(!c.offsets_keys(layer) ||
                  (rotates_heads(c.positions) && !c.unrotated_columns(c.window_of(layer) != 0).empty()),
              "key-offset: requires positions rope, and columns that it does not rotate: rope-scaling "
              "half-truncated, or a rotary-width below the head width ",
              c.head_dim());
}

}  // namespace

void validate(const ModelConfig& c) {
    check_range("layers", c.layers, model_limits::layers);
    check_range("width", c.width, model_limits::width);
    check_range("hidden", c.hidden, model_limits::hidden);
    check_range("context", c.context, model_limits::context);
    check_range("vocabulary", c.vocabulary, model_limits::vocabulary);
    check_range("window", c.window, model_limits::window);
    check_range("window-pattern", c.window_pattern, model_limits::window_pattern);
    check_range("softcap", c.softcap, model_limits::softcap);
    check(c.softcap == 0 || c.softcap >= attention::min_softcap, "softcap: ", c.softcap,
          "; expected 0 (none) or at least ", attention::min_softcap);
    check_range("logit-softcap", c.logit_softcap.limit, model_limits::logit_softcap);
    check(c.logit_softcap.limit == 0 || c.logit_softcap.limit >= model_limits::min_logit_softcap,
          "logit-softcap: ", c.logit_softcap.limit, "; expected 0 (none) or at least ",
          model_limits::min_logit_softcap);
    check_range("norm-epsilon", c.norm_epsilon, model_limits::norm_epsilon);
    check_heads(c);
    check_rotation(c);
    // 7 * width * widest is an upper bound for a block's matrices. The ranges above limit the embeddings.
    check(product_up_to(model_limits::parameters, {c.layers, 7, c.width, widest_of(c)}).has_value(),
          "layers: ", c.layers, " layers of width ", c.width, " and MLP width ", c.hidden_width(),
          " have too many parameters; expected at most 2^50");
    check(!c.value_embeddings || product_up_to(model_limits::parameters,
                                               {c.layers, c.vocabulary, c.key_value_heads() * c.head_dim()})
                                     .has_value(),
          "value-embeddings: ", c.layers, " layers and a vocabulary of ", c.vocabulary,
          " have too many parameters; expected at most 2^50");
}

void validate(const TrainingOptions& training) {
    check_range("dropout", training.dropout, model_limits::dropout);
    check_range("attention-dropout", training.attention_dropout, model_limits::dropout);
}

void validate(const AdapterOptions& adapters, const ModelConfig& c) {
    check_range("lora-rank", adapters.rank, model_limits::lora_rank);
    check_range("lora-alpha", adapters.alpha, model_limits::lora_alpha);
    check(adapters.rank <= c.width, "lora-rank: ", adapters.rank, " is more than width ", c.width,
          ", the largest rank of attention's matrices");
    adapted_matrices(c, adapters);  // throws for unknown names
    check(product_up_to(model_limits::parameters, {c.layers, 16, adapters.rank, widest_of(c)}).has_value(),
          "lora-rank: ", adapters.rank, " in ", c.layers, " layers of width ", c.width, " and MLP width ",
          c.hidden_width(), " has too many parameters; expected at most 2^50");
}

bool activations_are_countable(const ModelConfig& c, std::int64_t micro_batch) {
    // An upper bound for a block's saved values: q, k, v, o, gated heads, norms, residuals and the MLP. The
    // head stores logits only in chunks.
    const std::int64_t token_activations =
        18 * std::max(c.width, c.heads * c.head_dim()) + 6 * c.hidden_width() + 2 * c.heads;
    return product_up_to(model_limits::activations, {micro_batch, c.context, c.layers + 1, token_activations})
        .has_value();
}

}  // namespace gradtile
