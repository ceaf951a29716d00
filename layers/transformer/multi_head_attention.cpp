#include <gradtile/layers/transformer/multi_head_attention.h>

#include <cmath>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/alibi.h>
#include <gradtile/layers/transformer/initialization.h>
#include <gradtile/layers/transformer/internal/key_offset.h>

namespace gradtile {

MultiHeadAttention::MultiHeadAttention(ParameterStore& parameters, const std::string& name,
                                       const ModelConfig& config, std::int64_t layer_number,
                                       const TrainingOptions& training)
    : layer(layer_number),
      heads(config.heads),
      kv_heads(config.key_value_heads()),
      head_dim(config.head_dim()),
      options{.scale = config.query_scalar == 0 ? std::optional<double>()
                                                : std::optional(1 / std::sqrt(config.query_scalar)),
              .causal = true,
              .window = {.left = config.window_of(layer) - 1},  // -1 is unbounded
              .deterministic = training.deterministic,
              .softcap = config.softcap,
              .dropout_p = training.attention_dropout},
      qkv(parameters, name + ".qkv", block_matrices(config).qkv.in, block_matrices(config).qkv.out,
          {.bias = config.bias || config.qkv_bias, .init = weight_init()}),
      proj(parameters, name + ".proj", block_matrices(config).proj.in, block_matrices(config).proj.out,
           {.bias = config.bias, .init = residual_init(config, training)}),
      norm_epsilon(config.norm_epsilon),
      has_prefix(config.prefix),
      has_window_angles(config.window_rope_base != 0 && config.window_of(layer) != 0) {
    if (config.qk_norm) qk_norm = config.qk_norm_kind;
    if (qk_norm && *qk_norm != QkNorm::head_without_gain) {
        const bool over_heads = *qk_norm == QkNorm::projection;
        const auto add_norm = [&](std::optional<RMSNorm>& norm, const char* suffix, std::int64_t count) {
            norm.emplace(parameters, name + suffix, over_heads ? count * head_dim : head_dim,
                         config.norm_epsilon, config.norm_weight_offset());
        };
        add_norm(q_norm, ".q_norm", heads);
        add_norm(k_norm, ".k_norm", kv_heads);
    }
    if (config.rotates(layer)) rope.emplace(config.rope_of(has_window_angles), config.context);
    if (config.positions == Positions::alibi) alibi = alibi_slopes(heads);
    if (config.offsets_keys(layer)) offset_columns = config.unrotated_columns(config.window_of(layer) != 0);
    if (config.sinks) sinks = parameters.add(name + ".sinks", {heads}, Init::zeros());
    if (config.has_value_embedding(layer))
        value_embedding.emplace(parameters, name + ".value", config.vocabulary, config.width, kv_heads,
                                head_dim, initial_std);
    if (config.attention_gate) gate.emplace(parameters, name + ".gate", config.width, heads, 1.0);
}

attention::Options MultiHeadAttention::options_of_pass(const Context& ctx, const DropoutKey& key) const {
    attention::Options pass = options;
    pass.dropout_key = key;
    if (alibi) pass.alibi_slopes = alibi->on_device(ctx, DType::f32);
    if (sinks.defined()) pass.sink = sink_values(ctx);
    return pass;
}

/// A view [B,T,count,D] of heads [first, first + count) in packed [B,T,(Hq+2Hkv)*D].
Tensor MultiHeadAttention::heads_of(const Tensor& packed, std::int64_t first, std::int64_t count) const {
    return packed.slice(-1, first * head_dim, count * head_dim)
        .reshape({packed.size(0), packed.size(1), count, head_dim});
}

namespace {

/// Returns x [B,T,H,D] in the shape that the operator expects. With packed sequences this is [B T,H,D].
Tensor operand(const Documents& documents, const Tensor& x) {
    return documents.are_sequences() ? x.reshape({x.size(0) * x.size(1), x.size(2), x.size(3)}) : x;
}
/// x [B,T,H,D], or [1,B T,H,D] if the angles cover all B T tokens.
Tensor in_rows_of(const Rope::Angles& angles, const Tensor& x) {
    const bool covers_batch = angles.cosines.defined() && angles.cosines.size(0) != x.size(1);
    return covers_batch ? x.reshape({1, x.size(0) * x.size(1), x.size(2), x.size(3)}) : x;
}

}  // namespace

Rope::Angles MultiHeadAttention::angles_at(const Context& ctx, const TokenPositions& positions,
                                           std::int64_t length, DType dtype) const {
    if (!rope) return {};
    return positions.each.defined() ? rope->angles_at(ctx, positions.each, dtype, positions.end)
                                    : rope->angles_from(ctx, positions.start, length, dtype);
}

/// Normalises each head, and rotates heads that RoPE rotates whole: transform_heads() cannot rotate a part.
HeadTransform MultiHeadAttention::transform_of(const Rope::Angles& angles) const {
    HeadTransform transform{.queries = heads, .epsilon = norm_epsilon};
    if (qk_norm == QkNorm::projection) return transform;
    if (rope && rope->head_dim() == head_dim) transform.angles = angles;
    if (!qk_norm) return transform;
    transform.without_gain = *qk_norm == QkNorm::head_without_gain;
    if (transform.without_gain) return transform;
    transform.q_weight = q_norm->weight.value();
    transform.k_weight = k_norm->weight.value();
    transform.weight_offset = q_norm->weight_offset;
    return transform;
}

/// Rotates the first columns of x [B,T,H,D] in place.
void MultiHeadAttention::rotate(const Context& ctx, const Tensor& x, const Rope::Angles& angles) const {
    if (rope) rope->forward(ctx, in_rows_of(angles, x).slice(3, 0, rope->head_dim()), angles);
}

/// `projected` [B,T,Hq+Hkv,D] are the query and key heads. With a norm, writes what its backward pass needs.
MultiHeadAttention::QueriesAndKeys MultiHeadAttention::transformed(const Context& ctx,
                                                                   const Tensor& projected,
                                                                   const Rope::Angles& angles,
                                                                   Saved& saved) const {
    if (qk_norm == QkNorm::projection) {
        const auto normalised = [&](const RMSNorm& norm, const Tensor& x, RMSNorm::Saved& saved_norm) {
            const Shape together{x.size(0), x.size(1), x.size(2) * head_dim};  // all heads of a token
            return norm.forward(ctx, x.reshape(together), saved_norm).reshape(x.shape());
        };
        const Tensor q = normalised(*q_norm, projected.slice(2, 0, heads), saved.q_norm);
        const Tensor k = normalised(*k_norm, projected.slice(2, heads, kv_heads), saved.k_norm);
        rotate(ctx, q, angles);
        rotate(ctx, k, angles);
        return {q, k};
    }
    Tensor all = projected;
    const HeadTransform transform = transform_of(angles);
    if (transform.has_norm()) {
        all = empty(ctx, projected.shape(), projected.dtype());
        saved.rstd = empty(ctx, {projected.size(0), projected.size(1), projected.size(2)},
                           accumulator_of(projected.dtype()));
    }
    if (transform.has_norm() || transform.rotates()) {
        const Tensor x = in_rows_of(angles, projected);
        const Tensor rstd =
            transform.has_norm() ? saved.rstd.reshape({x.size(0), x.size(1), x.size(2)}) : Tensor();
        transform_heads(ctx, in_rows_of(angles, all), rstd, x, transform);
    }
    if (!transform.rotates()) rotate(ctx, all, angles);
    return {all.slice(2, 0, heads), all.slice(2, heads, kv_heads)};
}

MultiHeadAttention::QueriesAndKeys MultiHeadAttention::queries_and_keys(const Context& ctx,
                                                                        const Tensor& packed,
                                                                        const Rope::Angles& angles,
                                                                        Saved& saved) const {
    check(packed.rank() == 3 && packed.size(2) == qkv.out_features(),
          "multi_head_attention: packed heads are ", packed, "; expected [B, T, ", qkv.out_features(), ']');
    const Tensor projected = heads_of(packed, 0, heads + kv_heads);
    if (qk_norm) saved.projected = projected;
    return transformed(ctx, projected, angles, saved);
}

void MultiHeadAttention::differentiate_queries_and_keys(const Context& ctx, const Tensor& gradient,
                                                        const Rope::Angles& angles,
                                                        const Saved& saved) const {
    const HeadTransform transform = transform_of(angles);
    const Tensor rows = in_rows_of(angles, gradient);
    if (rope && !transform.rotates()) rope->backward(ctx, rows.slice(3, 0, rope->head_dim()), angles);
    if (qk_norm == QkNorm::projection) {
        const auto differentiate = [&](const RMSNorm& norm, const Tensor& d_heads,
                                       const RMSNorm::Saved& saved_norm) {
            const Tensor dy = d_heads.reshape({d_heads.size(0), d_heads.size(1), d_heads.size(2) * head_dim});
            copy(ctx, dy, norm.backward(ctx, dy, saved_norm));
        };
        differentiate(*q_norm, gradient.slice(2, 0, heads), saved.q_norm);
        differentiate(*k_norm, gradient.slice(2, heads, kv_heads), saved.k_norm);
    } else if (transform.has_norm()) {
        HeadWeightGradients weights;
        if (q_norm) weights = {q_norm->weight.begin_gradient_write(), k_norm->weight.begin_gradient_write()};
        differentiate_heads(ctx, rows, saved.rstd.reshape({rows.size(0), rows.size(1), rows.size(2)}),
                            in_rows_of(angles, saved.projected), transform, weights);
    } else if (transform.rotates()) {
        differentiate_heads(ctx, rows, {}, rows, transform);
    }
}

attention::Saved MultiHeadAttention::operands_of(const Context& ctx, const Saved& saved) const {
    attention::Saved operands = saved.attention;
    if (operands.q.defined() && operands.k.defined()) return operands;
    const Documents& documents = saved.pass.documents;
    const Tensor& projected = saved.projected;
    Saved same;
    const Rope::Angles angles =
        angles_at(ctx, saved.pass.token_positions(), projected.size(1), projected.dtype());
    const auto [q, k] = transformed(ctx, projected, angles, same);
    offset_keys(ctx, k, {offset_columns, layer}, saved.pass);
    operands.q = operand(documents, q);
    operands.k = operand(documents, k);
    return operands;
}

Tensor MultiHeadAttention::forward(const Context& ctx, const Normed& x, const Pass& pass,
                                   Saved& saved) const {
    return proj.forward(ctx, {attended(ctx, x, pass, saved), {}, x.inference}, saved.proj);
}

Residual MultiHeadAttention::forward_onto(const Context& ctx, const Residual& stream, const Normed& x,
                                          const Pass& pass, Saved& saved) const {
    return proj.forward_onto(ctx, stream, attended(ctx, x, pass, saved), saved.proj);
}

/// Attention's output o as [B,T,Hq*D], gated if there is a gate.
Tensor MultiHeadAttention::attended(const Context& ctx, const Normed& normed, const Pass& pass,
                                    Saved& saved) const {
    // Gates read the norm's result, so the product cannot compute the norm in its own kernel.
    const bool has_gates = gate || value_embedding;
    const Normed in = has_gates ? Normed(normed.value(ctx), {}, normed.inference) : normed;
    const Tensor& x = in.x;
    check(x.rank() == 3, "multi_head_attention: x is ", x, "; expected [B, T, ", qkv.in_features(), "]");
    const Tensor packed = qkv.forward(ctx, in, saved.qkv);
    const Tensor v = heads_of(packed, heads + kv_heads, kv_heads);
    const auto attend_in = [&]<class Kind>(const Kind& kind) {
        Rope::Angles angles;
        if constexpr (std::is_same_v<Kind, TrainingPass>) {
            angles = angles_at(ctx, kind.token_positions(), x.size(1), x.dtype());
        } else {
            angles = has_window_angles ? kind.angles.windowed : kind.angles.common;
        }
        const QueriesAndKeys rotated = queries_and_keys(ctx, packed, angles, saved);
        offset_keys(ctx, rotated.k, {offset_columns, layer}, pass);
        if (value_embedding) value_embedding->forward_add(ctx, v, x, kind.tokens, saved.value);
        return attend(ctx, kind, {rotated.q, rotated.k, v}, saved);
    };
    Tensor o = std::visit(attend_in, pass).reshape({x.size(0), x.size(1), heads, head_dim});
    if (gate) o = gate->forward(ctx, x, o, saved.gate);
    return o.reshape({x.size(0), x.size(1), heads * head_dim});
}

/// Each token sees tokens of this pass only.
Tensor MultiHeadAttention::attend(const Context& ctx, const TrainingPass& pass, const Heads& in,
                                  Saved& saved) const {
    const Documents& documents = pass.documents;
    saved.pass = pass;
    saved.options = options_of_pass(ctx, pass.key_at(layer + 1).at(2));
    std::int64_t& left = saved.options.window.left;
    if (pass.max_window > 0 && (left < 0 || left >= pass.max_window)) left = pass.max_window - 1;
    if (documents.row_ranges.defined()) {
        check(left < 0 && !alibi, "multi_head_attention: row ranges with a window or ALiBi, ",
              "which count rows and not positions; expected neither");
        saved.options.causal = false;  // the ranges are the whole mask
    }
    saved.options.row_ranges = documents.row_ranges;
    // In a packed call, attention's dropout numbers the documents and not the windows.
    if (documents.are_sequences()) saved.options.dropout_key.first_sample *= documents.per_window();
    saved.options.cumulative_q = saved.options.cumulative_k = documents.offsets;
    const Tensor o =
        documents.ring != nullptr  // refuses offsets
            ? attention::ring_forward(ctx, in.q, in.k, in.v, saved.options, *documents.ring, saved.attention)
            : attention::forward(ctx, operand(documents, in.q), operand(documents, in.k),
                                 operand(documents, in.v), saved.options, saved.attention);
    saved.options.sink = {};  // backward reads it anew, since values may have moved
    return o;
}

/// One call for each group of equal texts.
Tensor MultiHeadAttention::attend(const Context& ctx, const CachedPass& pass, const Heads& in, Saved&) const {
    const attention::DecodeCache& cache = pass.cache.layer(layer);
    const Tensor o = empty(ctx, in.q.shape(), in.q.dtype());
    attention::Options pass_options = options_of_pass(ctx, {});
    for (const EqualTexts& texts : pass.texts) {
        const std::int64_t start = texts.first.start, length = texts.first.length;
        pass_options.causal = !has_prefix || start > 0;
        // Without cached tokens, the pass has all keys, and nothing is read from the cache.
        const auto keep = [&](const Tensor& kv, const Tensor& added) {
            pass.cache.write(ctx, kv, texts, start, added);
            return start == 0 ? added : pass.cache.read(ctx, kv, texts, 0, start + length);
        };
        const Tensor k = keep(cache.k, texts.rows_of(in.k)), v = keep(cache.v, texts.rows_of(in.v));
        attention::Saved unused;
        // The last query is aligned with the last key, so the rows see the same keys as without a cache.
        attention::forward(ctx, texts.rows_of(in.q), k, v, pass_options, unused, texts.rows_of(o));
    }
    return o;
}

/// One call for all texts, which reads their lengths from device memory.
Tensor MultiHeadAttention::attend(const Context& ctx, const StepPass& pass, const Heads& in, Saved&) const {
    // The pass's tokens are in one row; decode() takes one token for each of R texts, [R,1,H,D].
    const attention::DecodeInputs tokens{.q = in.q.transpose(0, 1),
                                         .k = in.k.transpose(0, 1),
                                         .v = in.v.transpose(0, 1),
                                         .slots = pass.slots,
                                         .positions = pass.positions};
    const Tensor o = empty(ctx, tokens.q.shape(), tokens.q.dtype());
    attention::decode(ctx, o, tokens, pass.cache.layer(layer), options_of_pass(ctx, {}), pass.scratch);
    return o;
}

Tensor MultiHeadAttention::backward(const Context& ctx, const SummedGradient& gradient, const Saved& saved,
                                    const BackwardHooks& hooks) const {
    const Tensor& dy = gradient.dy;
    Tensor d_gates, d_value_gates;
    Tensor d_o =
        gate ? gate->backward_through(ctx, proj, gradient, saved.proj, saved.attention.o, saved.gate, d_gates)
             : proj.backward(ctx, gradient, saved.proj);
    proj.notify_complete(hooks);

    const Tensor d_packed = empty(ctx, {dy.size(0), dy.size(1), qkv.out_features()}, dy.dtype());
    const Tensor dq = heads_of(d_packed, 0, heads);
    const Tensor dk = heads_of(d_packed, heads, kv_heads);
    const Tensor dv = heads_of(d_packed, heads + kv_heads, kv_heads);
    const bool trains_sinks = sinks.defined() && !sinks.is_frozen();
    const Tensor d_sink = trains_sinks ? empty(ctx, {heads}, DType::f32) : Tensor();
    notify_before_attention(hooks);
    const Documents& documents = saved.pass.documents;
    d_o = d_o.reshape(saved.attention.o.shape());
    const attention::Gradients into{.q = operand(documents, dq),
                                    .k = operand(documents, dk),
                                    .v = operand(documents, dv),
                                    .sink = d_sink};
    attention::Options pass_options = saved.options;
    if (sinks.defined()) pass_options.sink = sink_values(ctx);
    if (documents.ring != nullptr) {
        attention::ring_backward(ctx, d_o, pass_options, *documents.ring, operands_of(ctx, saved), into);
    } else {
        attention::backward(ctx, d_o, pass_options, operands_of(ctx, saved), into);
    }
    d_o = {};
    if (trains_sinks) {
        const GradientTarget target = sinks.begin_gradient_write();
        if (target.accumulates()) {
            axpy(ctx, target.grad, 1.0, d_sink);
        } else {
            copy(ctx, target.grad, d_sink);
        }
        notify_gradients_complete(hooks, sinks);
    }
    offset_keys_backward(ctx, dk, {offset_columns, layer}, saved.pass);
    if (qk_norm || rope)
        differentiate_queries_and_keys(ctx, heads_of(d_packed, 0, heads + kv_heads),
                                       angles_at(ctx, saved.pass.token_positions(), dy.size(1), dy.dtype()),
                                       saved);
    if (q_norm) notify_gradients_complete(hooks, q_norm->weight, k_norm->weight);
    if (value_embedding)
        d_value_gates = value_embedding->backward_values(ctx, dv, saved.pass.tokens, saved.value, hooks);
    Tensor dx = qkv.backward(ctx, d_packed, saved.qkv);
    qkv.notify_complete(hooks);
    if (value_embedding)
        value_embedding->gate.backward_add_x(ctx, dx, d_value_gates, saved.value.gate, hooks);
    if (gate) gate->backward_add_x(ctx, dx, d_gates, saved.gate, hooks);
    return dx;
}

}  // namespace gradtile
