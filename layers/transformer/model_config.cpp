#include <gradtile/layers/transformer/model_config.h>

namespace gradtile {

BlockMatrices block_matrices(const ModelConfig& c) {
    const std::int64_t hidden = c.hidden_width();
    return {.qkv = {.out = (c.heads + 2 * c.key_value_heads()) * c.head_dim(), .in = c.width},
            .proj = {.out = c.width, .in = c.heads * c.head_dim()},
            .up = {.out = traits_of(c.activation).gated ? 2 * hidden : hidden, .in = c.width},
            .down = {.out = c.width, .in = hidden}};
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
    check_range("dropout", c.dropout, model_limits::dropout);
    check_range("attention-dropout", c.attention_dropout, model_limits::dropout);
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

bool activations_are_countable(const ModelConfig& c, std::int64_t micro_batch) {
    // An upper bound for a block's saved values: q, k, v, o, norms, residuals and the MLP. The head stores
    // logits only in chunks.
    const std::int64_t of_a_token = 16 * c.width + 6 * c.hidden_width() + 2 * c.heads;
    return product_up_to(model_limits::activations, {micro_batch, c.context, c.layers + 1, of_a_token})
        .has_value();
}

}  // namespace gradtile
