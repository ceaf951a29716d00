#include <gradtile/layers/model_config.h>

namespace gradtile {

ModelConfig as_llama(ModelConfig config) {
    config.norm = Norm::rms;
    config.activation = Activation::swiglu;
    config.positions = Positions::rope;
    config.bias = false;
    config.tied_head = false;
    return config;
}

void validate(const ModelConfig& c) {
    check(c.layers >= 1, "layers: ", c.layers, "; expected at least 1");
    check(c.heads >= 1, "heads: ", c.heads, "; expected at least 1");
    check(c.width >= 1, "width: ", c.width, "; expected at least 1");
    check(c.width % c.heads == 0, "heads: ", c.heads, " does not divide width ", c.width);
    check(c.head_dim() <= 256, "heads: ", c.heads, " heads of width ", c.width, " are ", c.head_dim(),
          " wide each; expected at most 256");
    check(c.kv_heads >= 0, "kv-heads: ", c.kv_heads, "; expected 0 or more");
    check(c.heads % c.key_value_heads() == 0, "kv-heads: ", c.kv_heads, " does not divide heads ", c.heads);
    check(c.hidden >= 0, "hidden: ", c.hidden, "; expected 0 or more");
    check(c.context >= 1, "context: ", c.context, "; expected at least 1");
    check(c.vocabulary >= 0, "vocabulary: ", c.vocabulary, "; expected 0 or more");
    check(c.dropout >= 0.0 && c.dropout < 1.0, "dropout: ", c.dropout, "; expected 0 <= dropout < 1");
    check(c.norm_epsilon > 0.0, "norm-epsilon: ", c.norm_epsilon, "; expected more than 0");
    check(c.rope_base > 1.0, "rope-base: ", c.rope_base, "; expected more than 1");
    check(c.positions != Positions::rope || c.head_dim() % 2 == 0,
          "positions: rope needs an even head width, not ", c.head_dim());
}

}  // namespace gradtile
