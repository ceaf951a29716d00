#include <gradtile/tools/bench/attention_passes.h>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/bench/named_masks.h>
#include <gradtile/tools/command_line/usage_error.h>

namespace gradtile::cli {

void ScoreFlags::check() const {
    check_flag("--softcap", softcap, {0, 1e20});
    check_flag("--dropout", dropout, {0, 1, /*min_is_open=*/false, /*max_is_open=*/true});
    const std::string axes = "bhqk";
    std::size_t next = 0;
    for (const char axis : bias) {
        next = axes.find(axis, next);
        check_usage(next != std::string::npos, "--bias: ", bias,
                    "; expected letters of bhqk in this order, for example bhqk, hqk or bk");
        ++next;
    }
}

/// Returns a function that runs a pass with Options::kernels.
template <class Pass>
std::function<void(const attention::KernelChoice&)> AttentionPasses::with_kernels(Pass pass) {
    return [this, pass](const attention::KernelChoice& kernels) {
        options_.kernels = kernels;
        pass();
        options_.kernels = {};
    };
}

AttentionPasses::AttentionPasses(const Context& ctx, const Shapes& shapes, DType dtype,
                                 const PassFlags& flags)
    : ctx_(ctx),
      options_{.algorithm = flags.algorithm,
               .causal = shapes.causal,
               .deterministic = flags.deterministic,
               .softcap = flags.score.softcap,
               .dropout_p = flags.score.dropout},
      numbers_(ctx) {
    const auto tensor = [&](std::int64_t tokens, std::int64_t heads) {
        if (shapes.anchors.empty())
            return numbers_(ctx, {shapes.batch, tokens, heads, shapes.head_dim}, dtype);
        return numbers_(ctx, {shapes.batch, heads, tokens, shapes.head_dim}, dtype).transpose(1, 2);
    };
    const auto query_tensor = [&] { return tensor(shapes.queries, shapes.heads); };
    const auto key_tensor = [&] { return tensor(shapes.length, shapes.kv_heads); };
    q_ = query_tensor(), k_ = key_tensor(), v_ = key_tensor();
    o_ = query_tensor(), d_o_ = query_tensor();
    gradients_ = {.q = query_tensor(), .k = key_tensor(), .v = key_tensor()};
    if (!shapes.packed.empty()) pack(shapes);
    if (!flags.score.mask.empty())
        options_.row_ranges = ctx.is_planning() ? empty(ctx, {1, 1, shapes.length, 4}, DType::i32)
                                                : mask_named(flags.score.mask).ranges(ctx, shapes.length);
    if (flags.score.dropout > 0) options_.dropout_key = DropoutKey::from_step(1, 1);
    add_score_tensors(shapes, flags.score);
}

void AttentionPasses::forward() {
    saved_ = {};  // frees memory first, so that the arena's state equals the dry run's
    attention::forward(ctx_, q_, k_, v_, options_, saved_, o_);
}

TunedPass AttentionPasses::tuned_forward(const Shapes& shapes, double flops) {
    const auto bound = [&](auto&& bound_of) {
        return bound_of(q_.dtype(), ctx_.device(), shapes.head_dim, shapes.length);
    };
    return {.name = "forward",
            .flops = flops,
            .run = with_kernels([this] { forward(); }),
            .results = {{"O", [this] { return o_; }, bound(attention::result_bound)},
                        {"LSE", [this] { return saved_.lse; }, bound(attention::lse_bound)}},
            .plans = attention::forward_plans(ctx_, q_, k_, v_, options_)};
}

TunedPass AttentionPasses::tuned_backward(const Shapes& shapes, double flops) {
    forward();
    const std::int64_t queries = shapes.queries * (shapes.heads / shapes.kv_heads);
    const auto result = [&](const char* name, const Tensor& x, std::int64_t terms) {
        return TunedResult{name, [x] { return x; },
                           attention::result_bound(q_.dtype(), ctx_.device(), shapes.head_dim, terms)};
    };
    return {.name = "backward",
            .flops = 2.5 * flops,
            .run = with_kernels([this] { backward(); }),
            .results = {result("dQ", gradients_.q, shapes.length), result("dK", gradients_.k, queries),
                        result("dV", gradients_.v, queries)},
            .plans = attention::backward_plans(ctx_, options_, saved_)};
}

std::size_t AttentionPasses::saved_bytes() const {
    std::size_t bytes = 0;
    for (const Tensor* x : {&saved_.lse, &saved_.row_max, &saved_.row_sum})
        if (x->defined()) bytes += x->bytes();
    return bytes;
}

/// Makes the call packed: removes every tensor's batch axis and sets the sequence offsets.
void AttentionPasses::pack(const Shapes& shapes) {
    for (Tensor* x : {&q_, &k_, &v_, &o_, &d_o_, &gradients_.q, &gradients_.k, &gradients_.v})
        *x = x->select(0, 0);
    std::vector<std::int32_t> offsets{0};
    for (const std::int64_t tokens : shapes.packed)
        offsets.push_back(offsets.back() + static_cast<std::int32_t>(tokens));
    const Shape shape{static_cast<std::int64_t>(offsets.size())};
    options_.cumulative_q =
        ctx_.is_planning() ? empty(ctx_, shape, DType::i32) : from_host(ctx_, offsets, shape);
    options_.cumulative_k = options_.cumulative_q;
}

void AttentionPasses::add_score_tensors(const Shapes& shapes, const ScoreFlags& flags) {
    if (flags.alibi) {
        options_.alibi_slopes = empty(ctx_, {shapes.heads}, DType::f32);
        if (!ctx_.is_planning()) fill(ctx_, options_.alibi_slopes, 1.0 / 64);
    }
    if (flags.sink) {
        options_.sink = numbers_(ctx_, {shapes.heads}, DType::f32);
        gradients_.sink = empty_like(ctx_, options_.sink);
    }
    const DType dtype = q_.dtype();
    if (flags.mask_bias) options_.biases[1] = numbers_(ctx_, {shapes.batch, 1, 1, shapes.length}, dtype);
    if (flags.bias.empty()) return;
    const auto length_of = [&](char axis, std::int64_t length) {
        return flags.bias.find(axis) == std::string::npos ? 1 : length;
    };
    options_.biases[0] = numbers_(ctx_,
                                  {length_of('b', shapes.batch), length_of('h', shapes.heads),
                                   length_of('q', shapes.queries), length_of('k', shapes.length)},
                                  dtype);
    gradients_.biases[0] = empty_like(ctx_, options_.biases[0]);
}

}  // namespace gradtile::cli
