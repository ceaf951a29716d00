// The sum of streams that a block reads.
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer_block.h>

namespace gradtile {
namespace {

/// Adds `more` to the gradient, if there is one. The gradient's column sums are then no longer known.
void add_stream_gradient(const Context& ctx, SummedGradient& gradient, const Tensor& more) {
    if (!more.defined()) return;
    axpy(ctx, gradient.dy, 1.0, more);
    gradient.column_sums = {};
}

}  // namespace

StreamHistory::StreamHistory(const ModelConfig& config, const Tensor& first_input) {
    if (config.x0_lambdas) x0 = first_input;
    while (kept < config.layers && config.skip_source(config.layers - 1 - kept) == kept) ++kept;
}

void StreamHistory::add_output(const Context& ctx, Residual& stream) {
    if (std::ssize(outputs) == kept) return;
    check(stream.x.defined(), "stream_history: a block's output is undefined; expected a tensor");
    stream.x = stream.sum(ctx);
    stream.branch = {};
    outputs.push_back(stream.x);
}

void StreamGradients::add_to_output(const Context& ctx, std::size_t i, SummedGradient& gradient) {
    if (i >= outputs.size()) return;
    add_stream_gradient(ctx, gradient, outputs[i]);
    outputs[i] = {};
}

void StreamGradients::add_to_x0(const Context& ctx, SummedGradient& gradient) const {
    add_stream_gradient(ctx, gradient, x0);
}

StreamMix::StreamMix(ParameterStore& parameters, const std::string& name, const ModelConfig& config,
                     std::int64_t layer)
    : reads_x0(config.x0_lambdas), skip_source(config.skip_source(layer)) {
    if (!reads_x0 && skip_source < 0) return;
    std::vector<WeightedSum::Term> terms{{"stream", 1.0}};
    if (reads_x0) terms.push_back({"x0", 0.0});
    if (skip_source >= 0) terms.push_back({"skip", 1.0});
    sum.emplace(parameters, name, terms);
}

Residual StreamMix::forward(const Context& ctx, const Residual& stream, const StreamHistory& history,
                            Saved& saved) const {
    if (!sum) return stream;
    std::vector<Tensor> terms{stream.sum(ctx)};
    if (reads_x0) terms.push_back(history.x0);
    if (skip_source >= 0) terms.push_back(history.outputs.at(static_cast<std::size_t>(skip_source)));
    Residual mixed{sum->forward(ctx, terms, saved)};
    mixed.inference = stream.inference;
    return mixed;
}

Tensor StreamMix::recompute(const Context& ctx, const Saved& saved) const {
    Saved same;
    return sum->forward(ctx, saved.terms, same);
}

SummedGradient StreamMix::backward(const Context& ctx, const SummedGradient& dy, const Saved& saved,
                                   StreamGradients& gradients, const BackwardHooks& hooks) const {
    if (!sum) return dy;
    std::vector<Tensor*> targets;
    if (reads_x0) targets.push_back(&gradients.x0);
    if (skip_source >= 0) {
        const auto source = static_cast<std::size_t>(skip_source);
        if (gradients.outputs.size() <= source) gradients.outputs.resize(source + 1);
        targets.push_back(&gradients.outputs[source]);
    }
    std::vector<Tensor> others;
    for (const Tensor* target : targets) others.push_back(*target);
    Tensor dx = sum->backward(ctx, dy.dy, saved, others);
    for (std::size_t k = 0; k < targets.size(); ++k) *targets[k] = others[k];
    for (const Parameter& factor : sum->factors) notify_gradients_complete(hooks, factor);
    return dx;
}

}  // namespace gradtile
