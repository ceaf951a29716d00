// Operands that share memory, for every public operator. The operators are found in the installed headers, so
// that a new operator without a row in the table fails the first test.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/attention/attention.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/quantized_weights.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/activation.h>
#include <gradtile/layers/embedding.h>
#include <gradtile/layers/fused_linear.h>
#include <gradtile/layers/head_transform.h>
#include <gradtile/layers/learned_factors.h>
#include <gradtile/layers/linear_activation.h>
#include <gradtile/layers/most_likely.h>
#include <gradtile/layers/norm.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/optimizers/matrix_optimizer.h>
#include <gradtile/train/parallel/data_parallel.h>

#include <support/cuda_test.h>
#include <support/public_operators.h>
#include <support/silent_pair.h>
#include <train/sharing.h>

namespace gradtile {
namespace {

using namespace test::sharing;
using test::message_of;
using testing::HasSubstr;

// What an operator does with memory that is shared.
enum class Kind {
    returns_new,  // writes only new tensors, and its own parameters' gradients through other operators
    in_place,     // has one tensor, which it changes
    through,      // writes only through other operators in this table
    checked,      // refuses or promises: see the row's function
    checked_gpu   // the same; the operator exists on a GPU only
};

struct OperatorRow {
    const char* name;  // "header: function"
    Kind kind;
    void (*test)(const Context& ctx) = nullptr;
};

void test_gemm(const Context& ctx) {
    const Tensor a = numbers(ctx, {4, 4}), b = numbers(ctx, {4, 4}), c = numbers(ctx, {4, 4});
    expect_refused([&] { gemm(ctx, a, a, b); });
    expect_refused([&] { gemm(ctx, b, a, b); });
    expect_refused([&] { gemm(ctx, a.slice(0, 0, 2), a.slice(0, 1, 2), b); });
    expect_refused([&] { gemm(ctx, c, a, b, {.bias = c.select(0, 1)}); });
    const Tensor wide = numbers(ctx, {4, 8});
    gemm(ctx, wide.slice(1, 0, 4), wide.slice(1, 4, 4), b);
    gemm(ctx, c, a, a);  // operands that are only read may be the same
}

void test_symmetric_product(const Context& ctx) {
    const Tensor x = numbers(ctx, {1, 4, 4}, DType::bf16);
    expect_refused([&] { symmetric_product(ctx, x, x, {}); });
}

void test_copy(const Context& ctx) {
    const Tensor x = numbers(ctx, {4, 4});
    expect_same_in_place(ctx, x, [&](const Tensor& y, const Tensor& from) { copy(ctx, y, from); });
    expect_refused([&] { copy(ctx, x, x.transpose(0, 1)); });
    const auto views = shifted(ctx);
    const Tensor &first = views.first, &second = views.second;
    expect_refused([&] { copy(ctx, first, second); });
}

void test_axpy(const Context& ctx) {
    const Tensor x = numbers(ctx, {4, 4});
    expect_same_in_place(ctx, x, [&](const Tensor& y, const Tensor& from) { axpy(ctx, y, 2.0, from); });
    expect_refused([&] { axpy(ctx, x, 1.0, x.transpose(0, 1)); });
    const auto views = shifted(ctx);
    const Tensor &first = views.first, &second = views.second;
    expect_refused([&] { axpy(ctx, first, 1.0, second); });
}

void test_quantized_weights(const Context& ctx) {
    const Tensor memory = numbers(ctx, {40}), weights = memory.slice(0, 0, 32).reshape({32});
    const std::int64_t words = quantized_layout(WeightFormat::int8, 32).words;
    const Tensor shared = as_i32(memory.slice(0, 40 - words, words), {words});
    expect_refused([&] { dequantize_weights(ctx, weights, shared, WeightFormat::int8); });
    if (ctx.device().is_cpu())
        expect_refused([&] { quantize_weights(ctx, shared, weights, WeightFormat::int8); });
}

void test_activation_forward(const Context& ctx) {
    for (const ActivationTraits& traits : activation_table) {
        const ActivationLayer layer{traits.activation};
        const Tensor x = numbers(ctx, {4, 4});
        if (traits.gated) {
            expect_refused([&] { layer.forward_into(ctx, x.slice(1, 0, 2), x); });
        } else {
            expect_same_in_place(ctx, x,
                                 [&](const Tensor& y, const Tensor& in) { layer.forward_into(ctx, y, in); });
            expect_refused([&] { layer.forward_into(ctx, x.slice(0, 0, 2), x.slice(0, 1, 2)); });
        }
    }
}

void test_activation_backward(const Context& ctx) {
    for (const ActivationTraits& traits : activation_table) {
        const ActivationLayer layer{traits.activation};
        const Tensor x = numbers(ctx, {4, 4}), dy = numbers(ctx, {4, traits.gated ? 2 : 4});
        if (traits.gated) {
            expect_same_in_place(
                ctx, x, [&](const Tensor& dx, const Tensor& in) { layer.backward_into(ctx, dx, dy, in); });
            expect_refused([&] { layer.backward_into(ctx, x, x.slice(1, 0, 2), numbers(ctx, {4, 4})); });
        } else {
            expect_same_in_place(
                ctx, dy, [&](const Tensor& dx, const Tensor& in) { layer.backward_into(ctx, dx, in, x); });
            expect_refused([&] { layer.backward_into(ctx, x, dy, x); });
        }
    }
}

void test_column_sums(const Context& ctx) {
    const Tensor dy = numbers(ctx, {4, 4});
    expect_refused(
        [&] { add_column_sums(ctx, {.grad = dy.select(0, 1), .write = GradientWrite::overwrite}, dy); });
}

void test_add_residual(const Context& ctx) {
    const Dropout dropout;
    Dropout::Saved saved;
    expect_same_in_place(ctx, numbers(ctx, {4, 4}), [&](const Tensor& branch, const Tensor& x) {
        dropout.add_residual(ctx, x, branch, {}, saved);
    });
    const auto views = shifted(ctx);
    const Tensor &first = views.first, &second = views.second;
    expect_refused([&] { dropout.add_residual(ctx, first, second, {}, saved); });
}

void test_embedding(const Context& ctx) {
    ParameterStore store;
    const Embedding embedding(store, "e", 8, 4);
    const PositionEmbedding positions(store, "p", 8, 4);
    store.allocate(ctx, DType::f32);
    store.initialize(ctx, Seed{1});
    Embedding::Saved saved;
    embedding.forward(ctx, zeros(ctx, {1, 3}, DType::i32), saved);
    const auto rows_of = [](const Parameter& p) { return p.grad().slice(0, 0, 3).reshape({1, 3, 4}); };
    expect_refused([&] { embedding.backward(ctx, rows_of(embedding.weight), saved); });
    PositionEmbedding::Saved saved_positions;
    positions.forward(ctx, numbers(ctx, {1, 3, 4}), saved_positions);
    expect_refused([&] { positions.backward(ctx, rows_of(positions.weight), saved_positions); });
}

void test_fused_linear(const Context& ctx) {
    const Tensor x = numbers(ctx, {2, 4}), weight = numbers(ctx, {4, 4}), y = numbers(ctx, {2, 4});
    expect_refused([&] { fused_linear_in_one_kernel(ctx, x, x, {.weight = weight}); });
    expect_refused([&] { fused_linear_in_one_kernel(ctx, y, x, {.weight = weight, .residual = y}); });
    expect_refused([&] { fused_linear_in_one_kernel(ctx, weight.slice(0, 0, 2), x, {.weight = weight}); });
    expect_refused([&] {
        fused_linear_in_one_kernel(ctx, y, x,
                                   {.norm = NormParameters{.weight = y.select(0, 0)}, .weight = weight});
    });
}

void test_transform_heads(const Context& ctx) {
    const Tensor x = numbers(ctx, {1, 3, 2, 4}), rstd = empty(ctx, {1, 3, 2}, DType::f32);
    const HeadTransform norm{.queries = 1, .q_weight = numbers(ctx, {4}), .k_weight = numbers(ctx, {4})};
    expect_refused([&] { transform_heads(ctx, x, rstd, x, norm); });
    // Without a norm, y must be x.
    const HeadTransform separate{.queries = 1, .angles = {numbers(ctx, {3, 2}), numbers(ctx, {3, 2})}};
    EXPECT_THAT(message_of([&] {
                    transform_heads(ctx, numbers(ctx, {1, 3, 2, 4}), {}, x, separate);
                }),
                HasSubstr("without a norm, y must be x"));
}

void test_differentiate_heads(const Context& ctx) {
    const Tensor x = numbers(ctx, {1, 3, 2, 4}), rstd = numbers(ctx, {1, 3, 2});
    const HeadTransform norm{.queries = 1, .q_weight = numbers(ctx, {4}), .k_weight = numbers(ctx, {4})};
    expect_refused([&] { differentiate_heads(ctx, x, rstd, x, norm); });
}

/// dy becomes the first term's gradient; no other operand may be written.
void test_weighted_sum(const Context& ctx) {
    ParameterStore store;
    const WeightedSum sum(store, "s", std::vector<WeightedSum::Term>{{"a", 1.0}, {"b", 1.0}});
    store.allocate(ctx, DType::f32);
    store.initialize(ctx, Seed{1});
    const Tensor x = numbers(ctx, {4, 4}), dy = numbers(ctx, {4, 4});
    WeightedSum::Saved saved;
    sum.forward(ctx, {x, x}, saved);
    std::vector<Tensor> others{Tensor()};
    expect_refused([&] { sum.backward(ctx, x, saved, others); });
    for (const Tensor& other : {x, dy}) {
        others = {other};
        expect_refused([&] { sum.backward(ctx, dy, saved, others); });
    }
}

HeadGate gate_in(ParameterStore& store, const Context& ctx) {
    HeadGate gate(store, "g", 8, 2, 1.0);
    store.allocate(ctx, DType::f32);
    store.initialize(ctx, Seed{1});
    return gate;
}
void test_head_gate_forward(const Context& ctx) {
    ParameterStore store;
    const HeadGate gate = gate_in(store, ctx);
    const Tensor x = numbers(ctx, {1, 3, 8}), packed = numbers(ctx, {1, 3, 4, 4});
    HeadGate::Saved saved;
    gate.forward_add(ctx, packed.slice(2, 0, 2), x, packed.slice(2, 2, 2), saved);
    expect_refused([&] { gate.forward_add(ctx, packed.slice(2, 0, 2), x, packed.slice(2, 1, 2), saved); });
}
void test_head_gate_backward(const Context& ctx) {
    ParameterStore store;
    const HeadGate gate = gate_in(store, ctx);
    const Tensor x = numbers(ctx, {1, 3, 8}), rows = numbers(ctx, {1, 3, 2, 4});
    HeadGate::Saved saved;
    gate.forward(ctx, x, rows, saved);
    expect_same_in_place(ctx, numbers(ctx, {1, 3, 2, 4}), [&](const Tensor& d_heads, const Tensor& dy) {
        gate.backward_heads(ctx, d_heads, dy, rows, saved);
    });
    expect_refused([&] { gate.backward_heads(ctx, rows, numbers(ctx, {1, 3, 2, 4}), rows, saved); });
}

/// The cache is written, the rows of all texts are read.
void test_previous_rows_of_step(const Context& ctx) {
    const Tensor cache = numbers(ctx, {1, 3, 1, 4}), ids = zeros(ctx, {1}, DType::i32);
    expect_refused([&] { previous_rows_of_step(ctx, cache.slice(1, 0, 1), cache, ids, ids); });
    const Tensor row = numbers(ctx, {1, 1, 1, 4}), blocks = numbers(ctx, {1, 16, 1, 4});
    previous_rows_of_step(ctx, row, blocks, ids, ids, zeros(ctx, {1, 1}, DType::i32));
    expect_refused([&] {
        previous_rows_of_step(ctx, row, blocks, ids, ids,
                              as_i32(blocks.slice(1, 0, 1).slice(3, 0, 1), {1, 1}));
    });
}

/// The rows may lie in the cache, but not where they are written.
void test_cache_write(const Context& ctx) {
    const ModelConfig config{.layers = 1, .heads = 1, .width = 4, .context = 8, .vocabulary = 16};
    const KeyValueCache cache(ctx, config, DType::f32);
    const Tensor& k = cache.layer(0).k;
    const EqualTexts texts{.first = {.length = 2}, .count = 1};
    cache.write(ctx, k, texts, 0, numbers(ctx, {1, 2, 1, 4}));
    expect_refused([&] { cache.write(ctx, k, texts, 0, k.slice(1, 1, 2)); });
}

template <class Norm>
void test_norm(const Context& ctx, const Norm& norm) {
    const auto views = shifted(ctx);
    const Tensor &first = views.first, &second = views.second;
    typename Norm::Saved saved;
    expect_refused([&] { norm.forward(ctx, Residual{first, second}, saved); });
    norm.forward(ctx, numbers(ctx, {3, 4}), saved);
    const Tensor dy = numbers(ctx, {3, 4});
    norm.backward_add(ctx, dy, saved, numbers(ctx, {3, 4}));
    for (const Tensor& dx : {dy, saved.x}) expect_refused([&] { norm.backward_add(ctx, dy, saved, dx); });
}
void test_norms(const Context& ctx) {
    ParameterStore store;
    const LayerNorm layer_norm(store, "l", 4, /*bias=*/true);
    const RMSNorm rms_norm(store, "r", 4);
    store.allocate(ctx, DType::f32);
    store.initialize(ctx, Seed{1});
    test_norm(ctx, layer_norm);
    test_norm(ctx, rms_norm);
}

void test_linear_activation_forward(const Context& ctx) {
    const Tensor x = numbers(ctx, {4, 4}), weight = numbers(ctx, {4, 4}), hidden = numbers(ctx, {4, 4}),
                 y = numbers(ctx, {4, 4});
    const auto forward = [&](const Tensor& to, const Tensor& hidden_to) {
        linear_activation_forward(ctx, to, hidden_to, x, weight, {}, Activation::gelu_tanh);
    };
    forward(y, hidden);
    expect_refused([&] { forward(hidden, hidden); });
    expect_refused([&] { forward(y, x); });
    expect_refused([&] { forward(x, hidden); });
    expect_refused([&] { forward(y, weight); });
}

void test_linear_activation_backward(const Context& ctx) {
    const Tensor dy = numbers(ctx, {4, 4}), weight = numbers(ctx, {4, 4}), hidden = numbers(ctx, {4, 4});
    for (const Tensor& d_hidden : {dy, weight, hidden})
        expect_refused(
            [&] { linear_activation_backward(ctx, d_hidden, dy, weight, hidden, Activation::gelu_tanh); });
}

LowRankAdapter adapter_in(ParameterStore& store, const Context& ctx) {
    const LowRankAdapter adapter(store, "a", 4, 4, {.rank = 2, .alpha = 2});
    store.allocate(ctx, DType::f32);
    store.initialize(ctx, Seed{1});
    fill_normal(ctx, adapter.b.value(), 0, 1, Seed{2});
    return adapter;
}
void test_adapter_forward(const Context& ctx) {
    ParameterStore store;
    const LowRankAdapter adapter = adapter_in(store, ctx);
    expect_same_in_place(ctx, numbers(ctx, {4, 4}),
                         [&](const Tensor& y, const Tensor& x) { adapter.add_forward(ctx, y, x); });
}
void test_adapter_backward(const Context& ctx) {
    ParameterStore store;
    const LowRankAdapter adapter = adapter_in(store, ctx);
    const Tensor x = numbers(ctx, {4, 4});
    expect_same_in_place(ctx, numbers(ctx, {4, 4}),
                         [&](const Tensor& dx, const Tensor& dy) { adapter.add_backward(ctx, dx, dy, x); });
}

void test_most_likely(const Context& ctx) {
    const Tensor logits = numbers(ctx, {3, 4});
    expect_refused([&] { most_likely_tokens(ctx, as_i32(logits, {3}), logits); });
}

void test_rope(const Context& ctx) {
    const Rope rope(4, 8);
    const Tensor memory = numbers(ctx, {2, 3, 2, 4});
    const Tensor x = memory.slice(0, 0, 1);
    const Rope::Angles angles{memory.reshape({24, 2}).slice(0, 9, 3), numbers(ctx, {3, 2})};
    expect_refused([&] { rope.forward(ctx, x, angles); });
    expect_refused([&] { rope.backward(ctx, x, angles); });
}

void test_next_logits(const Context& ctx) {
    ParameterStore store;
    const ModelConfig config{.layers = 1, .heads = 1, .width = 8, .context = 4, .vocabulary = 16};
    const Transformer model(config, store);
    store.allocate(ctx, DType::f32);
    store.initialize(ctx, Seed{1});
    const KeyValueCache cache(ctx, config, DType::f32, 1);
    const Tensor logits = zeros(ctx, {1, 16}, DType::f32), ids = zeros(ctx, {1}, DType::i32);
    const attention::DecodeScratch scratch = model.step_scratch(ctx, cache, 1);
    const StepPass step{.positions = ids, .slots = ids, .cache = cache, .scratch = scratch};
    model.next_logits(ctx, logits, ids, step);
    expect_refused([&] { model.next_logits(ctx, logits, as_i32(logits, {1}), step); });
}

void test_normalize_matrices(const Context& ctx) {
    const Tensor x = numbers(ctx, {1, 4, 4});
    const Tensor squares = matrix_squares(ctx, x);
    expect_same_in_place(
        ctx, x, [&](const Tensor& out, const Tensor& in) { normalize_matrices(ctx, in, squares, out); });
    const Tensor memory = numbers(ctx, {5, 4});
    expect_refused([&] {
        normalize_matrices(ctx, memory.slice(0, 0, 4).reshape({1, 4, 4}), squares,
                           memory.slice(0, 1, 4).reshape({1, 4, 4}));
    });
}

void test_add_lower_powers(const Context& ctx) {
    const Tensor x = numbers(ctx, {1, 4, 4});
    expect_refused([&] { add_lower_powers(ctx, x, x, {1, 1, 1}); });
}

void test_reduce_scatter(const Context& ctx) {
    const Tensor full = numbers(ctx, {8});
    test::SilentPair().reduce_scatter(ctx, full, full.slice(0, 4, 4));
    for (const std::int64_t begin : {0, 2})
        expect_refused([&] { test::SilentPair().reduce_scatter(ctx, full, full.slice(0, begin, 4)); });
}
void test_all_gather(const Context& ctx) {
    const Tensor full = numbers(ctx, {8});
    test::SilentPair().all_gather(ctx, full.slice(0, 4, 4), full);
    for (const std::int64_t begin : {0, 2})
        expect_refused([&] { test::SilentPair().all_gather(ctx, full.slice(0, begin, 4), full); });
}

using enum Kind;
const OperatorRow operator_table[] = {
    {"attention/accuracy.h: numbers_of", returns_new},
    {"attention/attention.h: backward", checked, test_attention_backward},
    {"attention/attention.h: explain_forward", returns_new},
    {"attention/attention.h: forward", checked, test_attention_forward},
    {"attention/decode.h: decode", checked, test_decode},
    {"attention/attention.h: merge", checked, test_merge},
    {"attention/ring_attention.h: ring_backward", checked, test_ring_backward},
    {"attention/ring_attention.h: ring_forward", returns_new},
    {"attention/ring_attention.h: start_shift", checked, test_shift},
    {"tools/lab/warp_partition.h: partitioned_forward", checked_gpu, test_partitioned_forward},
    {"core/compare.h: compare", returns_new},
    {"core/gemm/gemm.h: gemm", checked, test_gemm},
    {"core/gemm/symmetric_product.h: symmetric_product", checked, test_symmetric_product},
    {"core/gradcheck.h: gradient_check", returns_new},
    {"core/gradcheck.h: gradient_check_layer", returns_new},
    {"core/parameter_store.h: ready_to_add", in_place},
    {"core/compare.h: to_string", returns_new},
    {"core/quantized_weights.h: dequantize_weights", checked, test_quantized_weights},
    {"core/quantized_weights.h: quantize_weights", checked, test_quantized_weights},
    {"core/random.h: fill_normal", in_place},
    {"core/tensor.h: empty_like", returns_new},
    {"core/tensor_math.h: add", returns_new},
    {"core/tensor_math.h: divide", returns_new},
    {"core/tensor_math.h: exp", returns_new},
    {"core/tensor_math.h: log", returns_new},
    {"core/tensor_math.h: max", returns_new},
    {"core/tensor_math.h: mean", returns_new},
    {"core/tensor_math.h: multiply", returns_new},
    {"core/tensor_math.h: scale", returns_new},
    {"core/tensor_math.h: subtract", returns_new},
    {"core/tensor_math.h: sum", returns_new},
    {"core/tensor_ops.h: axpy", checked, test_axpy},
    {"core/tensor_ops.h: cast", returns_new},
    {"core/tensor_ops.h: copy", checked, test_copy},
    {"core/tensor_ops.h: fill", in_place},
    {"core/tensor_ops.h: item", returns_new},
    {"core/tensor_ops.h: to_device", returns_new},
    {"core/tensor_ops.h: to_host", returns_new},
    {"layers/activation.h: backward", returns_new},
    {"layers/activation.h: backward_into", checked, test_activation_backward},
    {"layers/activation.h: forward", returns_new},
    {"layers/activation.h: forward_into", checked, test_activation_forward},
    {"layers/column_sums.h: add_column_sums", checked, test_column_sums},
    {"layers/column_sums.h: empty_column_sums", returns_new},
    {"layers/cross_entropy_head.h: forward", through},
    {"layers/cross_entropy_head.h: logits", through},
    {"layers/cross_entropy_head.h: loss", returns_new},
    {"layers/cross_entropy_head.h: losses", returns_new},
    {"layers/documents.h: PreviousTokens", returns_new},
    {"layers/documents.h: previous_rows", returns_new},
    {"layers/documents.h: previous_rows_backward", returns_new},
    {"layers/documents.h: previous_rows_of_step", checked, test_previous_rows_of_step},
    {"layers/dropout.h: add_residual", checked, test_add_residual},
    {"layers/dropout.h: backward", returns_new},
    {"layers/dropout.h: forward", returns_new},
    {"layers/embedding.h: backward", checked, test_embedding},
    {"layers/embedding.h: forward", returns_new},
    {"layers/embedding.h: forward_at", returns_new},
    {"layers/fused_linear.h: fused_linear_in_one_kernel", checked, test_fused_linear},
    {"layers/fused_linear.h: fuses_products", returns_new},
    {"layers/head_transform.h: differentiate_heads", checked, test_differentiate_heads},
    {"layers/head_transform.h: transform_heads", checked, test_transform_heads},
    {"layers/learned_factors.h: backward", checked, test_weighted_sum},
    {"layers/learned_factors.h: backward_add_x", through},
    {"layers/learned_factors.h: backward_heads", checked, test_head_gate_backward},
    {"layers/learned_factors.h: backward_through", through},
    {"layers/learned_factors.h: backward_values", through},
    {"layers/learned_factors.h: forward", returns_new},
    {"layers/learned_factors.h: forward_add", checked, test_head_gate_forward},
    {"layers/learned_factors.h: recompute", returns_new},
    {"layers/norm.h: backward", returns_new},
    {"layers/norm.h: backward_add", checked, test_norms},
    {"layers/norm.h: forward", checked, test_norms},
    {"layers/linear.h: accumulate_gradients", through},
    {"layers/linear.h: backward", through},
    {"layers/linear.h: forward", returns_new},
    {"layers/linear.h: forward_in_one_kernel", returns_new},
    {"layers/linear.h: forward_onto", returns_new},
    {"layers/linear_activation.h: linear_activation_backward", checked, test_linear_activation_backward},
    {"layers/linear_activation.h: linear_activation_forward", checked, test_linear_activation_forward},
    {"layers/linear.h: add_backward", checked, test_adapter_backward},
    {"layers/linear.h: add_forward", checked, test_adapter_forward},
    {"layers/most_likely.h: most_likely_tokens", checked, test_most_likely},
    {"layers/rope.h: angles_at", returns_new},
    {"layers/rope.h: backward", checked, test_rope},
    {"layers/rope.h: forward", checked, test_rope},
    {"layers/transformer/key_value_cache.h: read", returns_new},
    {"layers/transformer/key_value_cache.h: write", checked, test_cache_write},
    {"layers/transformer/mlp.h: backward", through},
    {"layers/transformer/mlp.h: forward", returns_new},
    {"layers/transformer/mlp.h: forward_hidden", returns_new},
    {"layers/transformer/mlp.h: forward_onto", returns_new},
    {"layers/transformer/multi_head_attention.h: backward", through},
    {"layers/transformer/multi_head_attention.h: differentiate_queries_and_keys", through},
    {"layers/transformer/multi_head_attention.h: forward", returns_new},
    {"layers/transformer/multi_head_attention.h: forward_onto", returns_new},
    {"layers/transformer/multi_head_attention.h: queries_and_keys", through},
    {"layers/transformer/transformer.h: evaluate", returns_new},
    {"layers/transformer/transformer.h: forward", returns_new},
    {"layers/transformer/transformer.h: logits", through},
    {"layers/transformer/transformer.h: logits_of_all", returns_new},
    {"layers/transformer/transformer.h: next_logits", checked, test_next_logits},
    {"layers/transformer/transformer.h: target_losses", returns_new},
    {"layers/transformer/transformer_block.h: backward", through},
    {"layers/transformer/transformer_block.h: forward", through},
    {"train/optimizers/elementwise_optimizer.h: step", in_place},
    {"train/optimizers/global_norm.h: clip_global_norm", returns_new},
    {"train/optimizers/global_norm.h: global_norm", returns_new},
    {"train/optimizers/matrix_optimizer.h: add_lower_powers", checked, test_add_lower_powers},
    {"train/optimizers/matrix_optimizer.h: matrix_squares", returns_new},
    {"train/optimizers/matrix_optimizer.h: normalize_matrices", checked, test_normalize_matrices},
    {"train/optimizers/matrix_optimizer.h: step", in_place},
    {"train/optimizers/muon.h: newton_schulz", in_place},
    {"train/optimizers/optimizer.h: step", in_place},
    {"train/parallel/communicator.h: all_gather", checked, test_all_gather},
    {"train/parallel/communicator.h: all_reduce", in_place},
    {"train/parallel/communicator.h: broadcast", in_place},
    {"train/parallel/communicator.h: reduce_scatter", checked, test_reduce_scatter},
    {"train/parallel/data_parallel.h: sum", in_place},
};

TEST(SharedMemory, EveryPublicOperatorHasARow) {
    std::set<std::string> rows;
    for (const OperatorRow& row : operator_table) {
        EXPECT_TRUE(rows.insert(row.name).second) << row.name << " twice";
        EXPECT_EQ(row.test != nullptr, row.kind == checked || row.kind == checked_gpu) << row.name;
    }
    const std::set<std::string> found = test::public_operators();
    EXPECT_GT(found.size(), 50u);
    for (const std::string& name : found) EXPECT_TRUE(rows.contains(name)) << name << " has no row";
    for (const std::string& name : rows) EXPECT_TRUE(found.contains(name)) << name << " does not exist";
}

TEST(SharedMemory, IsRefusedOrHasThePromisedResultOnACpu) {
    const Context cpu(Device::cpu(), 2);
    for (const OperatorRow& row : operator_table) {
        SCOPED_TRACE(row.name);
        if (row.kind == checked) row.test(cpu);
    }
}

class SharedMemoryOnCuda : public test::CudaTest {};

TEST_F(SharedMemoryOnCuda, IsRefusedOrHasThePromisedResult) {
    for (const OperatorRow& row : operator_table) {
        SCOPED_TRACE(row.name);
        if (row.test != nullptr) row.test(gpu());
    }
}

}  // namespace
}  // namespace gradtile
