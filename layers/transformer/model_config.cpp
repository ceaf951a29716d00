#include <gradtile/layers/transformer/model_config.h>

#include <array>
#include <string_view>
#include <utility>

namespace gradtile {

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

ModelConfig as_llama(ModelConfig config) {
    config.norm = Norm::rms;
    config.activation = Activation::swiglu;
    config.positions = Positions::rope;
    config.bias = false;
    config.tied_head = false;
    return config;
}

void validate(const ModelConfig& c) {
    check_range("layers", c.layers, model_limits::layers);
    check_range("heads", c.heads, model_limits::heads);
    check_range("kv-heads", c.kv_heads, model_limits::kv_heads);
    check_range("width", c.width, model_limits::width);
    check_range("hidden", c.hidden, model_limits::hidden);
    check_range("context", c.context, model_limits::context);
    check_range("vocabulary", c.vocabulary, model_limits::vocabulary);
    check_range("window", c.window, model_limits::window);
    check_range("window-pattern", c.window_pattern, model_limits::window_pattern);
    check_range("softcap", c.softcap, model_limits::softcap);
    check(c.softcap == 0 || c.softcap >= model_limits::min_softcap, "softcap: ", c.softcap,
          "; expected 0 (none) or at least ", model_limits::min_softcap);
    check_range("norm-epsilon", c.norm_epsilon, model_limits::norm_epsilon);
    check_range("rope-base", c.rope_base, model_limits::rope_base);
    check(c.width % c.heads == 0, "heads: ", c.heads, " does not divide width ", c.width);
    check(c.head_dim() <= 256, "heads: ", c.heads, " heads and width ", c.width, " give a head width of ",
          c.head_dim(), "; expected at most 256");
    check(c.heads % c.key_value_heads() == 0, "kv-heads: ", c.kv_heads, " does not divide heads ", c.heads);
    check(!rotates_heads(c.positions) || c.head_dim() % 2 == 0,
          "positions: rope requires an even head width; it is ", c.head_dim());
    // 7 * width * widest is an upper bound for a block's matrices. The ranges above limit the embeddings.
    const std::int64_t widest = std::max(c.width, c.hidden_width());
    check(product_up_to(model_limits::parameters, {c.layers, 7, c.width, widest}).has_value(),
          "layers: ", c.layers, " layers of width ", c.width, " and MLP width ", c.hidden_width(),
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
    const std::int64_t widest = std::max(c.width, c.hidden_width());
    check(product_up_to(model_limits::parameters, {c.layers, 16, adapters.rank, widest}).has_value(),
          "lora-rank: ", adapters.rank, " in ", c.layers, " layers of width ", c.width, " and MLP width ",
          c.hidden_width(), " has too many parameters; expected at most 2^50");
}

bool activations_are_countable(const ModelConfig& c, std::int64_t micro_batch) {
    // An upper bound for a block's saved values: q, k, v, o, norms, residuals and the MLP. The head stores
    // logits only in chunks.
    const std::int64_t token_activations = 16 * c.width + 6 * c.hidden_width() + 2 * c.heads;
    return product_up_to(model_limits::activations, {micro_batch, c.context, c.layers + 1, token_activations})
        .has_value();
}

}  // namespace gradtile
