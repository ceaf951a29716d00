// Embeddings that contain a part of the embedding of the token before.
#include <array>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/learned_factors.h>

namespace gradtile {
namespace {

constexpr std::array<WeightedSum::Term, 2> smear_terms{{{nullptr}, {"lambda", 0.0}}};

}  // namespace

Smear::Smear(ParameterStore& parameters, const std::string& name, std::int64_t width)
    : gate(parameters, name + ".gate", width, 1, 1.0), sum(parameters, name, smear_terms) {}

Tensor Smear::forward(const Context& ctx, const Tensor& x, const Tensor& before, Saved& saved) const {
    check(x.rank() == 3 && before.defined() && before.shape() == Shape{x.size(0), x.size(1), 1, x.size(2)},
          "smear: embeddings ", x, " after ", before, "; expected [B, T, C] after [B, T, 1, C]");
    saved.before = before;
    const Tensor gated = gate.forward(ctx, x, before, saved.gate);
    WeightedSum::Saved terms;
    return sum.forward(ctx, {x, gated.reshape(x.shape())}, terms);
}

Tensor Smear::backward(const Context& ctx, const Tensor& dy, const Saved& saved,
                       const BackwardHooks& hooks) const {
    check(saved.before.defined(), "smear: backward requires the saved values of a forward pass");
    check(dy.defined() && dy.elements() == saved.before.elements(), "smear: dy ", dy, " for embeddings ",
          saved.before, "; expected as many elements");
    const Tensor gated = gate.recompute(ctx, saved.before, saved.gate).reshape(dy.shape());
    std::array<Tensor, 1> d_gated{};
    // The first term's factor has no gradient, so any values serve as that term.
    const Tensor dx = sum.backward(ctx, dy, {.terms = {gated, gated}}, d_gated);
    notify_gradients_complete(hooks, sum.factors[1]);
    const Tensor d_before = d_gated[0].reshape(saved.before.shape());
    const Tensor d_logits = gate.backward_heads(ctx, d_before, d_before, saved.before, saved.gate);
    axpy(ctx, dx, 1.0,
         previous_rows_backward(ctx, d_before, saved.previous, FirstToken::zero).reshape(dx.shape()));
    gate.backward_add_x(ctx, dx, d_logits, saved.gate, hooks);
    return dx;
}

}  // namespace gradtile
