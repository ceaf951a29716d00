// Gates of heads: checks, allocation, and backend choice.
#include <gradtile/layers/learned_factors.h>

#include <algorithm>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/internal/head_gate_backend.h>
#include <gradtile/layers/rows.h>

namespace gradtile {
namespace {

void check_heads(const Tensor& heads, const Tensor& logits, const char* what, const Tensor& other) {
    const Shape& expected = logits.shape();
    check(heads.rank() == 4 && heads.dtype() == logits.dtype() &&
              Shape{heads.size(0), heads.size(1), heads.size(2)} == expected,
          "head_gate: heads ", heads, " for gates ", logits, "; expected [B, T, H, D] for [B, T, H]");
    check(other.defined() && other.shape() == heads.shape() && other.dtype() == heads.dtype(),
          "head_gate: ", what, ' ', other, " for heads ", heads, "; shapes and dtypes must be equal");
    row_layout(heads, "head_gate");
    row_layout(other, "head_gate");
}

void apply_gate(const Context& ctx, const GatedHeads& op) {
    check_heads(op.x, op.logits, op.adds ? "the sum" : "the result", op.y);
    check_sharing(ctx, "head_gate", {"the result", op.y}, {{"heads", op.x}, {"gates", op.logits}});
    if (op.x.elements() > 0) on_device(ctx, cpu::gate_heads, cuda::gate_heads, op);
}

}  // namespace

HeadGate::HeadGate(ParameterStore& parameters, const std::string& name, std::int64_t width,
                   std::int64_t heads, double gate_scale)
    : linear(parameters, name, std::min(width, gate_columns), heads, {.bias = false, .init = Init::zeros()}),
      scale(gate_scale) {}

void HeadGate::compute_logits(const Context& ctx, const Tensor& x, Saved& saved) const {
    check(x.rank() == 3 && x.size(2) >= linear.in_features(), "head_gate: x is ", x,
          "; expected [B, T, C] with C at least ", linear.in_features());
    saved.logits =
        linear.forward(ctx, cast(ctx, x.slice(2, 0, linear.in_features()), x.dtype()), saved.linear);
}

Tensor HeadGate::forward(const Context& ctx, const Tensor& x, const Tensor& heads, Saved& saved) const {
    compute_logits(ctx, x, saved);
    return recompute(ctx, heads, saved);
}

void HeadGate::forward_add(const Context& ctx, const Tensor& sum, const Tensor& x, const Tensor& heads,
                           Saved& saved) const {
    compute_logits(ctx, x, saved);
    apply_gate(ctx, {.y = sum, .x = heads, .logits = saved.logits, .scale = scale, .adds = true});
}

Tensor HeadGate::recompute(const Context& ctx, const Tensor& heads, const Saved& saved) const {
    check(saved.logits.defined(), "head_gate: backward requires the saved values of a forward pass");
    check(heads.rank() == 4, "head_gate: heads ", heads, "; expected [B, T, H, D]");
    const Tensor y = empty(ctx, heads.shape(), heads.dtype());
    apply_gate(ctx, {.y = y, .x = heads, .logits = saved.logits, .scale = scale});
    return y;
}

Tensor HeadGate::backward_heads(const Context& ctx, const Tensor& d_heads, const Tensor& dy,
                                const Tensor& heads, const Saved& saved) const {
    check(saved.logits.defined(), "head_gate: backward requires the saved values of a forward pass");
    check_heads(heads, saved.logits, "dy", dy);
    check_heads(heads, saved.logits, "gradient", d_heads);
    check_sharing(ctx, "head_gate", {"the gradient", d_heads}, {{"dy", dy}}, Sharing::same_view);
    check_sharing(ctx, "head_gate", {"the gradient", d_heads}, {{"heads", heads}, {"gates", saved.logits}});
    const Tensor d_logits = empty(ctx, saved.logits.shape(), saved.logits.dtype());
    const GatedHeadsGradient op{d_heads, d_logits, dy, heads, saved.logits, scale};
    if (heads.elements() > 0)
        on_device(ctx, cpu::differentiate_gated_heads, cuda::differentiate_gated_heads, op);
    return d_logits;
}

Tensor HeadGate::backward_through(const Context& ctx, const Linear& product, const SummedGradient& dy,
                                  const Linear::Saved& of_product, const Tensor& heads, const Saved& saved,
                                  Tensor& d_logits) const {
    check(saved.logits.defined(), "head_gate: backward requires the saved values of a forward pass");
    check(heads.rank() >= 1, "head_gate: heads ", heads, "; expected [.., H, D]");
    const Shape& gates = saved.logits.shape();
    const Tensor o = heads.reshape({gates[0], gates[1], gates[2], heads.size(-1)});
    Linear::Saved gated = of_product;
    if (!gated.x.defined() && product.backward_needs_x())
        gated.x = recompute(ctx, o, saved).reshape({gates[0], gates[1], gates[2] * heads.size(-1)});
    Tensor d_gated = product.backward(ctx, dy, gated);
    const Tensor d_heads = d_gated.reshape(o.shape());
    d_logits = backward_heads(ctx, d_heads, d_heads, o, saved);
    return d_gated;
}

void HeadGate::backward_add_x(const Context& ctx, const Tensor& dx, const Tensor& d_logits,
                              const Saved& saved, const BackwardHooks& hooks) const {
    check(dx.rank() == 3 && dx.size(2) >= linear.in_features(), "head_gate: dx is ", dx,
          "; expected [B, T, C] with C at least ", linear.in_features());
    axpy(ctx, dx.slice(2, 0, linear.in_features()), 1.0, linear.backward(ctx, d_logits, saved.linear));
    linear.notify_complete(hooks);
}

ValueEmbedding::ValueEmbedding(ParameterStore& parameters, const std::string& name, std::int64_t vocabulary,
                               std::int64_t width, std::int64_t heads, std::int64_t head_dim, double init_std)
    : embedding(parameters, name + "_embedding", vocabulary, heads * head_dim, init_std),
      gate(parameters, name + "_gate", width, heads, 2.0) {}

/// The tokens' embeddings as heads.
Tensor ValueEmbedding::rows_of(const Context& ctx, const Shape& heads, const Embedding::Saved& tokens) const {
    check(tokens.tokens.defined() && tokens.tokens.elements() == heads[0] * heads[1],
          "value_embedding: values ", heads, " without their tokens");
    Embedding::Saved same;
    return embedding.forward(ctx, tokens.tokens, same).reshape(heads);
}

void ValueEmbedding::forward_add(const Context& ctx, const Tensor& v, const Tensor& x,
                                 const Embedding::Saved& tokens, Saved& saved) const {
    check(v.rank() == 4, "value_embedding: values ", v, "; expected [B, T, H, D]");
    gate.forward_add(ctx, v, x, rows_of(ctx, v.shape(), tokens), saved.gate);
}

Tensor ValueEmbedding::backward_values(const Context& ctx, const Tensor& dv, const Embedding::Saved& tokens,
                                       const Saved& saved, const BackwardHooks& hooks) const {
    check(dv.rank() == 4, "value_embedding: dv ", dv, "; expected [B, T, H, D]");
    const Tensor d_rows = empty(ctx, dv.shape(), dv.dtype());
    Tensor d_logits = gate.backward_heads(ctx, d_rows, dv, rows_of(ctx, dv.shape(), tokens), saved.gate);
    embedding.backward(ctx, d_rows.reshape({dv.size(0), dv.size(1), dv.size(2) * dv.size(3)}), tokens);
    notify_gradients_complete(hooks, embedding.weight);
    return d_logits;
}

}  // namespace gradtile
