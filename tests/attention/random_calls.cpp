#include "random_calls.h"

#include <algorithm>
#include <cmath>
#include <ostream>
#include <random>
#include <span>

namespace gradtile::attention::test {
namespace {

/// The standard library's distributions differ between libraries, so that a seed would mean another call.
class Draw {
  public:
    explicit Draw(std::uint64_t seed) : engine_(seed) {}
    /// Returns a number from `first` to `last`.
    std::int64_t between(std::int64_t first, std::int64_t last) {
        return first + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(last - first + 1));
    }
    bool one_in(std::int64_t n) { return between(1, n) == 1; }
    template <class T>
    T of(std::initializer_list<T> list) {
        return of(std::span<const T>(list.begin(), list.size()));
    }
    template <class T>
    T of(std::span<const T> list) {
        return list[static_cast<std::size_t>(between(0, std::ssize(list) - 1))];
    }
    /// Returns a number from 1 to `last` that is as likely below as above sqrt(last).
    std::int64_t scale_free(std::int64_t last) {
        const double u = static_cast<double>(between(0, 1 << 20)) / (1 << 20);
        return std::clamp<std::int64_t>(std::llround(std::pow(static_cast<double>(last), u)), 1, last);
    }

  private:
    std::mt19937_64 engine_;
};

/// Lengths around multiples of the kernels' block sizes, short lengths and others.
std::int64_t draw_length(Draw& draw, std::int64_t last) {
    switch (draw.between(0, 9)) {
        case 0:
            return draw.of({0, 1, 2, 3, 5, 8});
        case 1:
        case 2:
        case 3:
            return std::min(last,
                            draw.of({16, 32, 64, 80, 112, 128, 192, 256, 384, 512}) + draw.between(-1, 1));
        default:
            return draw.scale_free(last);
    }
}

std::int64_t draw_head_dim(Draw& draw) {
    switch (draw.between(0, 2)) {
        case 0:
            return draw.of({32, 64, 96, 128, 192, 256});
        case 1:
            return 8 * draw.between(1, 32);
        default:
            return draw.between(1, 256);
    }
}

void draw_shapes(Draw& draw, Problem& p, std::int64_t longest) {
    p.queries = draw_length(draw, longest);
    p.keys = draw.one_in(2) ? p.queries : draw_length(draw, longest);
    p.d_qk = draw_head_dim(draw);
    p.d_v = draw.one_in(3) ? draw_head_dim(draw) : p.d_qk;
    p.key_heads = draw.scale_free(8);
    p.heads = p.key_heads * (draw.one_in(2) ? 1 : draw.between(1, 8));
    p.batch = draw.scale_free(draw.one_in(8) ? 300 : 6);
}

void draw_mask(Draw& draw, Problem& p) {
    const std::int64_t longest = std::max(p.queries, p.keys);
    p.causal = draw.one_in(2);
    p.top_left = draw.one_in(3);
    if (draw.one_in(3)) p.window.left = draw.between(0, longest);
    if (draw.one_in(4)) p.window.right = draw.between(0, longest);
    if (draw.one_in(4))
        p.scale = draw.of({-0.5, 0.0, 0.01, 0.1, 0.25, 0.5}) * 2 / std::sqrt(static_cast<double>(p.d_qk)) * 4;
}

void draw_score_options(Draw& draw, Problem& p) {
    if (draw.one_in(4)) p.softcap = draw.of({0.5, 2.0, 30.0});
    p.alibi = draw.one_in(4);
    p.sink = draw.one_in(4);
    if (draw.one_in(4)) p.dropout_p = draw.of({0.1, 0.25, 0.9});
    p.d_lse = draw.one_in(4);
    p.first_sample = draw.between(0, 3);
}
/// Only flash and naive take row ranges.
void draw_row_ranges(Draw& draw, RandomCall& call) {
    if (!draw.one_in(3)) return;
    Problem& p = call.is_packed ? call.packed.each : call.problem;
    p.row_ranges = {draw.one_in(2) ? 1 : p.batch, draw.one_in(2) ? 1 : p.heads};
}
void draw_biases(Draw& draw, Problem& p) {
    for (Shape& bias : p.biases) {
        if (!draw.one_in(3)) continue;
        bias = {p.batch, p.heads, p.queries, p.keys};
        for (int axis = 0; axis < 4; ++axis)
            if (draw.one_in(3)) bias[axis] = 1;
    }
    if (!draw.one_in(3) || p.batch % 2 != 0) return;
    p.batch_divisor = 2;
    for (Shape& bias : p.biases)
        if (bias.rank() > 0 && bias[0] == p.batch && draw.one_in(2)) bias[0] /= 2;
}

/// Both forms that packed calls take. The last two axes may be longer than the longest sequence.
void draw_packed_biases(Draw& draw, PackedProblem& packed) {
    Problem& p = packed.each;
    const std::int64_t count = std::ssize(packed.queries);
    const bool is_divided = count % 2 == 0 && draw.one_in(3);
    if (is_divided) p.batch_divisor = 2;
    for (Shape& bias : p.biases) {
        if (!draw.one_in(2)) continue;
        if (draw.one_in(2)) {
            bias = {draw.one_in(2) ? 1 : p.heads, draw.one_in(5) ? 1 : packed.key_count()};
            continue;
        }
        bias = {count, p.heads, std::ranges::max(packed.queries) + draw.between(0, 3),
                std::ranges::max(packed.keys) + draw.between(0, 3)};
        for (int axis = 0; axis < 4; ++axis)
            if (draw.one_in(3)) bias[axis] = 1;
        if (is_divided && bias[0] == count && draw.one_in(2)) bias[0] /= 2;
    }
}

/// A call's work. Length 0 counts as 1, because the other side's tensors are still copied.
double work_of(const Problem& p) {
    const auto length = [](std::int64_t n) { return static_cast<double>(std::max<std::int64_t>(1, n)); };
    return static_cast<double>(p.batch * p.heads) * length(p.queries) * length(p.keys) *
           static_cast<double>(p.d_qk + p.d_v);
}
/// Reduces the sizes until the work is at most `max_work`.
void limit_work(Problem& p, double max_work) {
    while (work_of(p) > max_work) {
        if (p.batch > 8) {
            p.batch = p.batch * 3 / 4;
        } else if (p.queries > 300 || (p.queries >= p.keys && p.queries > 40)) {
            p.queries = p.queries * 3 / 4;
        } else if (p.keys > 40) {
            p.keys = p.keys * 3 / 4;
        } else if (p.batch > 1) {
            --p.batch;
        } else if (p.key_heads > 1) {
            p.heads = p.heads / p.key_heads;
            p.key_heads = 1;
        } else if (p.heads > 1) {
            p.heads = 1;
        } else {
            p.queries = (p.queries + 1) / 2;
            p.keys = (p.keys + 1) / 2;
        }
    }
}

void draw_layouts(Draw& draw, RandomCall& call) {
    // Half the calls have layouts that kernels read without a copy.
    const bool is_usual = draw.one_in(2);
    for (Layout& layout : call.layouts)
        layout = is_usual ? draw.of({Layout::contiguous, Layout::heads_first, Layout::aligned_wider_rows})
                          : draw.of(std::span<const Layout>(layouts));
    call.bias_layout = draw.one_in(2) ? Layout::contiguous : draw.of(std::span<const Layout>(layouts));
}

void draw_sequences(Draw& draw, RandomCall& call, double max_work) {
    PackedProblem& p = call.packed;
    p.each = call.problem;
    p.each.batch = 1;
    p.each.first_sample = 0;  // sequences are samples 0, 1, ..
    const bool is_square = draw.one_in(2);
    const std::int64_t count = draw.scale_free(40), longest = draw.scale_free(600);
    for (std::int64_t s = 0; s < count; ++s) {
        Problem one = p.each;
        one.queries = draw_length(draw, longest);
        one.keys = is_square ? one.queries : draw_length(draw, longest);
        limit_work(one, max_work / static_cast<double>(count));
        p.each.heads = one.heads;  // which a small limit may reduce
        p.each.key_heads = one.key_heads;
        p.queries.push_back(static_cast<std::int32_t>(one.queries));
        p.keys.push_back(static_cast<std::int32_t>(one.keys));
    }
    if (draw.one_in(3)) {
        p.unused_rows = draw_length(draw, 200);
        p.unused_keys = is_square ? p.unused_rows : draw_length(draw, 200);
    }
}

/// Copies x to a view in a layout. x's axes are aligned with [B, S, H, D] from the right.
Tensor placed(const Context& ctx, const Tensor& x, Layout layout) {
    Shape shape{1, 1, 1, 1};
    for (int axis = 0; axis < x.rank(); ++axis) shape[4 - x.rank() + axis] = x.size(axis);
    Tensor view = Placed(ctx, shape, x.dtype(), layout).view;
    while (view.rank() > x.rank()) view = view.select(0, 0);
    copy(ctx, view, to_device(ctx, x));
    return view;
}

/// Copies row ranges to memory with other numbers between the keys, or with the heads inside the keys.
Tensor placed_ranges(const Context& ctx, const Tensor& x, std::uint64_t seed) {
    const std::int64_t heads = x.size(-3), keys = x.size(-2);
    const Shape shape = x.rank() == 4 ? x.shape() : Shape{1, heads, keys, 4};
    Tensor view = seed % 3 == 0   ? zeros(ctx, shape, DType::i32)
                  : seed % 3 == 1 ? zeros(ctx, {shape[0], heads, keys, 3, 4}, DType::i32).select(3, 1)
                                  : zeros(ctx, {shape[0], keys, heads, 4}, DType::i32).transpose(1, 2);
    if (x.rank() == 3) view = view.select(0, 0);
    copy(ctx, view, to_device(ctx, x));
    return view;
}

/// An output in which the call must write every number, and nothing around it.
class PlacedOutput {
  public:
    PlacedOutput(const Context& ctx, const Tensor& like, Layout layout, bool is_packed)
        : placed_(ctx, is_packed ? Shape{1, like.size(0), like.size(1), like.size(2)} : like.shape(),
                  like.dtype(), layout),
          view_(is_packed ? placed_.view.select(0, 0) : placed_.view) {}
    const Tensor& view() const { return view_; }
    std::vector<double> numbers(const Context& ctx, const char* name) const {
        const std::vector<double> all = to_host(ctx, placed_.memory);
        const std::int64_t unwritten = std::ranges::count_if(all, [](double e) { return std::isnan(e); });
        EXPECT_EQ(unwritten, placed_.memory.elements() - view_.elements())
            << name << ": numbers around the tensor were written, or numbers of it are NaN";
        return to_host(ctx, view_);
    }

  private:
    Placed placed_;
    Tensor view_;
};

/// The shape of a bias that is not broadcast.
Shape expanded_bias(const Problem& p, const Shape& bias) {
    return {bias[0] > 1 ? bias[0] : p.batch, p.heads, p.queries, p.keys};
}
Shape expanded_bias(const PackedProblem& p, const Shape& bias) {
    const auto longest = [](std::int64_t own, const std::vector<std::int32_t>& lengths) {
        return own == 1 ? std::max<std::int64_t>(1, std::ranges::max(lengths)) : own;
    };
    if (bias.rank() == 2)
        return {p.each.heads, bias[1] == 1 ? std::max<std::int64_t>(1, p.key_count()) : bias[1]};
    return {bias[0] > 1 ? bias[0] : std::ssize(p.queries), p.each.heads, longest(bias[2], p.queries),
            longest(bias[3], p.keys)};
}

/// Memory for a bias gradient: one number for each bias number.
Tensor bias_like(const Context& ctx, const Tensor& bias, const Shape& expanded) {
    const Tensor x = empty(ctx, bias.shape(), bias.dtype());
    return expanded.rank() > 0 ? x.expand(expanded) : x;
}

}  // namespace

double RandomCall::work() const {
    if (!is_packed) return work_of(problem);
    double sum = 0;
    for (std::size_t s = 0; s < packed.queries.size(); ++s) sum += work_of(packed.sequence(s));
    return sum;
}

std::ostream& operator<<(std::ostream& out, const RandomCall& call) {
    out << call.dtype << ' ';
    if (call.is_packed) {
        out << call.packed;
    } else {
        out << call.problem;
    }
    out << (call.deterministic ? ", deterministic" : "") << (call.shares_keys ? ", shared keys" : "")
        << (call.typed_biases ? ", typed biases" : "") << (call.expands_biases ? ", expanded biases" : "")
        << (call.has_option_gradients ? "" : ", no gradients of options") << ", layouts";
    for (const Layout layout : call.layouts) out << ' ' << static_cast<int>(layout);
    out << ", of biases " << static_cast<int>(call.bias_layout);
    if (call.ring_heads > 0) out << ", ring of " << call.ring_heads;
    return out;
}

RandomCall random_call(std::uint64_t seed, double max_work) {
    Draw draw(seed);
    RandomCall call{.seed = seed};
    call.dtype = draw.of({DType::bf16, DType::bf16, DType::f16, DType::f32, DType::f64});
    draw_shapes(draw, call.problem, 1200);
    limit_work(call.problem, max_work);
    draw_mask(draw, call.problem);
    if (draw.one_in(2)) draw_score_options(draw, call.problem);
    call.deterministic = draw.one_in(3);
    draw_layouts(draw, call);
    call.is_packed = draw.one_in(4);
    if (call.is_packed) {
        draw_sequences(draw, call, max_work);
        if (draw.one_in(2)) draw_packed_biases(draw, call.packed);
    } else {
        if (draw.one_in(3)) draw_biases(draw, call.problem);
        call.shares_keys = draw.one_in(8);
    }
    call.typed_biases = draw.one_in(2);
    call.expands_biases = draw.one_in(2) && call.problem.queries > 0 && call.problem.keys > 0;
    call.has_option_gradients = !draw.one_in(4);
    if (draw.one_in(3)) call.ring_heads = static_cast<int>(draw.between(1, 3));
    draw_row_ranges(draw, call);
    return call;
}

RandomCall large_random_call(std::uint64_t seed, std::int64_t max_scores) {
    Draw draw(seed);
    RandomCall call{.seed = seed};
    call.dtype = draw.of({DType::bf16, DType::f16});
    Problem& p = call.problem;
    const auto longest =
        std::min<std::int64_t>(3000, std::llround(std::sqrt(static_cast<double>(max_scores))));
    p.queries = draw.between(64, longest);
    p.keys = draw.one_in(2) ? p.queries : draw.between(64, longest);
    p.d_qk = draw_head_dim(draw);
    p.d_v = draw.one_in(3) ? draw_head_dim(draw) : p.d_qk;
    // Short heads have fewer scores than numbers in q and k.
    const std::int64_t numbers = (p.queries + p.keys) * (p.d_qk + p.d_v) / 2,
                       heads = std::max<std::int64_t>(1, max_scores / std::max(p.queries * p.keys, numbers));
    const std::int64_t group = std::min(heads, draw.one_in(2) ? std::int64_t{1} : draw.between(1, 8));
    p.key_heads = draw.between(1, std::min<std::int64_t>(32, heads / group));
    p.heads = p.key_heads * group;
    p.batch = std::min<std::int64_t>(heads / p.heads, 4096);
    p.causal = draw.one_in(2);
    if (draw.one_in(4)) p.window.left = draw.between(64, 2000);
    p.alibi = draw.one_in(4);
    p.sink = draw.one_in(4);
    p.d_lse = draw.one_in(4);
    call.deterministic = draw.one_in(3);
    for (Layout& layout : call.layouts) layout = draw.of({Layout::contiguous, Layout::heads_first});
    if (draw.one_in(3)) call.ring_heads = static_cast<int>(draw.between(1, 3));
    return call;
}

RandomInputs inputs_of(const Context& cpu, const RandomCall& call, DType dtype) {
    if (call.is_packed) {
        RandomInputs packed{{}, random_inputs(cpu, call.packed, dtype)};
        for (Tensor& bias : packed.packed.in.biases)
            if (call.typed_biases && bias.defined()) bias = cast(cpu, bias, dtype);
        return packed;
    }
    Inputs in = accuracy::random_inputs(cpu, call.problem, dtype);
    if (call.shares_keys && call.problem.batch > 1)
        for (Tensor* x : {&in.k, &in.v}) *x = x->slice(0, 0, 1).expand(x->shape());
    for (Tensor& bias : in.biases)
        if (call.typed_biases && bias.defined()) bias = cast(cpu, bias, dtype);
    return {in, {}};
}

Result run(const Context& ctx, const RandomCall& call, const RandomInputs& inputs, Algorithm algorithm,
           const Result& others) {
    const Inputs& in = call.is_packed ? inputs.packed.in : inputs.dense;
    const Problem& p = call.is_packed ? call.packed.each : call.problem;
    const auto [q_layout, k_layout, v_layout, o_layout, d_o_layout, d_q_layout, d_k_layout, d_v_layout] =
        call.layouts;
    const auto place_keys = [&](const Tensor& x, Layout layout) {
        const bool is_shared = call.shares_keys && x.rank() == 4 && x.size(0) > 1;
        return is_shared ? placed(ctx, x.slice(0, 0, 1), layout).expand(x.shape()) : placed(ctx, x, layout);
    };
    const auto place_option = [&](const Tensor& x) {
        return x.defined() ? placed(ctx, x, call.bias_layout) : x;
    };
    const Tensor q = placed(ctx, in.q, q_layout), k = place_keys(in.k, k_layout),
                 v = place_keys(in.v, v_layout), d_o = placed(ctx, in.d_o, d_o_layout),
                 d_lse = place_option(in.d_lse);
    Options options = p.options(algorithm);
    options.deterministic = call.deterministic;
    if (ctx.device().is_cuda() && algorithm == Algorithm::flash && call.ring_heads > 0)
        options.kernels = {.set_heads = call.ring_heads, .more_slots = call.ring_heads};
    options.alibi_slopes = place_option(in.alibi_slopes);
    options.sink = place_option(in.sink);
    options.row_ranges = in.row_ranges.defined() ? placed_ranges(ctx, in.row_ranges, call.seed) : Tensor();
    if (call.is_packed) {
        options.cumulative_q = to_device(ctx, inputs.packed.cumulative_q);
        options.cumulative_k = to_device(ctx, inputs.packed.cumulative_k);
    }
    const PlacedOutput o(ctx, in.d_o, o_layout, call.is_packed), d_q(ctx, in.q, d_q_layout, call.is_packed),
        d_k(ctx, in.k, d_k_layout, call.is_packed), d_v(ctx, in.v, d_v_layout, call.is_packed);
    Gradients into{.q = d_q.view(), .k = d_k.view(), .v = d_v.view()};
    for (std::size_t n = 0; n < max_biases; ++n) {
        if (!in.biases[n].defined()) continue;
        Shape full_shape;
        if (call.expands_biases)
            full_shape = call.is_packed ? expanded_bias(call.packed, in.biases[n].shape())
                                        : expanded_bias(p, in.biases[n].shape());
        options.biases[n] = place_option(in.biases[n]);
        if (full_shape.rank() > 0) options.biases[n] = options.biases[n].expand(full_shape);
        if (call.has_option_gradients) into.biases[n] = bias_like(ctx, in.biases[n], full_shape);
    }
    if (in.sink.defined() && call.has_option_gradients) into.sink = empty(ctx, in.sink.shape(), DType::f32);
    Saved saved;
    forward(ctx, q, k, v, options, saved, o.view());
    backward(ctx, d_o, options, saved, into, d_lse);
    const auto option_gradient = [&](const Tensor& x, const Tensor& like, const std::vector<double>& other) {
        if (!x.defined()) return other;
        Tensor once = x;
        for (int axis = 0; axis < x.rank(); ++axis)
            if (like.size(axis) < x.size(axis)) once = once.slice(axis, 0, like.size(axis));
        return to_host(ctx, once);
    };
    return {.o = o.numbers(ctx, "O"),
            .lse = to_host(ctx, saved.lse),
            .d_q = d_q.numbers(ctx, "dQ"),
            .d_k = d_k.numbers(ctx, "dK"),
            .d_v = d_v.numbers(ctx, "dV"),
            .d_bias_0 = option_gradient(into.biases[0], in.biases[0], others.d_bias_0),
            .d_bias_1 = option_gradient(into.biases[1], in.biases[1], others.d_bias_1),
            .d_sink = option_gradient(into.sink, in.sink, others.d_sink)};
}

}  // namespace gradtile::attention::test
