// The rows of core, attention and training.
#include "operand_rows.h"

#include <gradtile/attention/accuracy.h>
#include <gradtile/attention/attention.h>
#include <gradtile/attention/decode.h>
#include <gradtile/core/compare.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/gradcheck.h>
#include <gradtile/core/quantized_weights.h>
#include <gradtile/core/tensor_math.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/activation.h>
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/optimizers/matrix_optimizer.h>
#include <gradtile/train/optimizers/muon.h>
#include <gradtile/train/optimizers/optimizers.h>

namespace gradtile {

void Operators::add_core(std::vector<OperandRow>& all) const {
    const Tensor x = numbers({3, 4}), y = numbers({3, 4});
    const auto unary = [&](const char* name, const char* prefix, std::function<void(const Tensor&)> call) {
        all.push_back({name, prefix, {x}, [call](const Operands& t) { call(t[0]); }});
    };
    const auto binary = [&](const char* name, const char* prefix,
                            std::function<void(const Tensor&, const Tensor&)> call) {
        all.push_back({name, prefix, {x, y}, [call](const Operands& t) { call(t[0], t[1]); }});
    };
    using T = Tensor;
    binary("core/compare.h: compare", "compare: ", [&](const T& a, const T& b) { compare(ctx, a, b); });
    all.push_back({"core/gemm/gemm.h: gemm",
                   "gemm: ",
                   {numbers({4, 4}), numbers({4, 4}), numbers({4, 4}), numbers({4})},
                   [&](const Operands& t) { gemm(ctx, t[0], t[1], t[2], {.bias = t[3]}); },
                   {3}});
    all.push_back({"core/gemm/symmetric_product.h: symmetric_product",
                   "symmetric_product: ",
                   {numbers({1, 4, 4}, DType::bf16), numbers({1, 4, 4}, DType::bf16)},
                   [&](const Operands& t) { symmetric_product(ctx, t[0], t[1], {}); }});
    const Tensor doubles = numbers({3, 4}, DType::f64);
    all.push_back({"core/gradcheck.h: gradient_check", "gradient_check: ", {doubles}, [&](const Operands& t) {
                       const Differentiable same{
                           [](const Context&, const Operands& in) { return in; },
                           [](const Context&, const Operands&, const Operands& grads) { return grads; }};
                       gradient_check(ctx, same, {t[0]}, std::span<const Parameter>{}, {});
                   }});
    all.push_back({"core/gradcheck.h: gradient_check_layer", "", {doubles}, [&](const Operands& t) {
                       ActivationLayer layer;
                       gradient_check_layer(ctx, layer, t[0]);
                   }});
    all.push_back(
        {"core/parameter_store.h: ready_to_add",
         "fill: ",
         {x},
         [&](const Operands& t) { ready_to_add(ctx, {.grad = t[0], .write = GradientWrite::overwrite}); },
         {0}});
    all.push_back({"core/compare.h: to_string",
                   "to_string: ",
                   {x},
                   [&](const Operands& t) { to_string(ctx, t[0]); },
                   {0}});
    const Tensor matrix = numbers({1, 64});
    const Tensor words = zeros(ctx, {quantized_layout(WeightFormat::int8, 64).words}, DType::i32);
    all.push_back({"core/quantized_weights.h: quantize_weights",
                   "quantize_weights: ",
                   {words, matrix},
                   [&](const Operands& t) { quantize_weights(ctx, t[0], t[1], WeightFormat::int8); }});
    all.push_back({"core/quantized_weights.h: dequantize_weights",
                   "dequantize_weights: ",
                   {matrix, words},
                   [&](const Operands& t) { dequantize_weights(ctx, t[0], t[1], WeightFormat::int8); }});
    unary("core/random.h: fill_normal",
          "fill_normal: ", [&](const T& a) { fill_normal(ctx, a, 0, 1, Seed{1}); });
    unary("core/tensor.h: empty_like", "empty_like: ", [&](const T& a) { empty_like(ctx, a); });
    binary("core/tensor_math.h: add", "add: ", [&](const T& a, const T& b) { add(ctx, a, b); });
    binary("core/tensor_math.h: subtract",
           "subtract: ", [&](const T& a, const T& b) { subtract(ctx, a, b); });
    binary("core/tensor_math.h: multiply",
           "multiply: ", [&](const T& a, const T& b) { multiply(ctx, a, b); });
    binary("core/tensor_math.h: divide", "divide: ", [&](const T& a, const T& b) { divide(ctx, a, b); });
    unary("core/tensor_math.h: scale", "scale: ", [&](const T& a) { scale(ctx, a, 2); });
    unary("core/tensor_math.h: exp", "exp: ", [&](const T& a) { exp(ctx, a); });
    unary("core/tensor_math.h: log", "log: ", [&](const T& a) { log(ctx, a); });
    unary("core/tensor_math.h: sum", "sum: ", [&](const T& a) { sum(ctx, a, -1); });
    unary("core/tensor_math.h: mean", "mean: ", [&](const T& a) { mean(ctx, a, -1); });
    unary("core/tensor_math.h: max", "max: ", [&](const T& a) { max(ctx, a, -1); });
    unary("core/tensor_math.h: sum of all", "sum: ", [&](const T& a) { sum(ctx, a); });
    unary("core/tensor_math.h: mean of all", "mean: ", [&](const T& a) { mean(ctx, a); });
    unary("core/tensor_math.h: max of all", "max: ", [&](const T& a) { max(ctx, a); });
    binary("core/tensor_ops.h: axpy", "axpy: ", [&](const T& a, const T& b) { axpy(ctx, a, 2, b); });
    binary("core/tensor_ops.h: copy", "copy: ", [&](const T& a, const T& b) { copy(ctx, a, b); });
    unary("core/tensor_ops.h: cast", "cast: ", [&](const T& a) { cast(ctx, a, DType::f64); });
    unary("core/tensor_ops.h: fill", "fill: ", [&](const T& a) { fill(ctx, a, 1); });
    all.push_back(
        {"core/tensor_ops.h: item", "item: ", {numbers({1})}, [&](const Operands& t) { item(ctx, t[0]); }});
    unary("core/tensor_ops.h: to_device", "to_device: ", [&](const T& a) { to_device(ctx, a); });
    unary("core/tensor_ops.h: to_host", "to_host: ", [&](const T& a) { to_host(ctx, a); });
}

void Operators::add_attention(std::vector<OperandRow>& all) const {
    const auto heads = [&] { return numbers({1, 3, 2, 8}); };
    const auto options_of = [](const Operands& t, std::size_t first) {
        return attention::Options{.alibi_slopes = t[first], .biases = {t[first + 1]}, .sink = t[first + 2]};
    };
    const Operands options{numbers({2}), numbers({1, 2, 3, 3}), numbers({2})};
    const auto with_options = [&](Operands operands) {
        operands.insert(operands.end(), options.begin(), options.end());
        return operands;
    };
    all.push_back({"attention/attention.h: forward",
                   "attention: ",
                   with_options({heads(), heads(), heads()}),
                   [&, options_of](const Operands& t) {
                       attention::Saved saved;
                       attention::forward(ctx, t[0], t[1], t[2], options_of(t, 3), saved);
                   },
                   {3, 4, 5}});
    all.push_back({"attention/attention.h: forward into o",
                   "attention: ",
                   {heads(), heads(), heads(), heads(), numbers({2})},
                   [&](const Operands& t) {
                       attention::Saved saved;
                       attention::forward(ctx, t[0], t[1], t[2], {}, saved, t[3], t[4]);
                   },
                   {4}});
    all.push_back(
        {"attention/attention.h: forward of packed sequences",
         "attention: ",
         {numbers({3, 2, 8}), numbers({3, 2, 8}), numbers({3, 2, 8}),
          from_host(ctx, std::vector<std::int32_t>{0, 3}, {2}),
          from_host(ctx, std::vector<std::int32_t>{0, 3}, {2}), numbers({2, 3}), numbers({1, 2, 3, 3})},
         [&](const Operands& t) {
             attention::Saved saved;
             attention::forward(ctx, t[0], t[1], t[2],
                                {.biases = {t[5], t[6]}, .cumulative_q = t[3], .cumulative_k = t[4]}, saved);
         },
         {5, 6}});
    all.push_back({"attention/attention.h: explain_forward",
                   "attention: ",
                   {heads(), heads(), heads()},
                   [&](const Operands& t) { attention::explain_forward(ctx, t[0], t[1], t[2], {}); }});
    const Operands qkv{heads(), heads(), heads()};
    attention::Saved saved;
    attention::forward(ctx, qkv[0], qkv[1], qkv[2], {}, saved);
    const auto saved_of = [](const Operands& t) {
        return attention::Saved{.q = t[1], .k = t[2], .v = t[3], .o = t[4], .lse = t[5]};
    };
    all.push_back(
        {"attention/attention.h: backward",
         "attention: ",
         {heads(), saved.q, saved.k, saved.v, saved.o, saved.lse, numbers({1, 2, 3})},
         [&, saved_of](const Operands& t) { attention::backward(ctx, t[0], {}, saved_of(t), t[6]); },
         {6}});
    all.push_back({"attention/attention.h: backward into gradients",
                   "attention: ",
                   {heads(), saved.q, saved.k, saved.v, saved.o, saved.lse, heads(), heads(), heads()},
                   [&, saved_of](const Operands& t) {
                       attention::backward(ctx, t[0], {}, saved_of(t),
                                           attention::Gradients{.q = t[6], .k = t[7], .v = t[8]});
                   }});
    const auto token = [&] { return numbers({1, 1, 2, 8}); };
    all.push_back({"attention/decode.h: decode",
                   "decode: ",
                   {token(), token(), token(), token(), ids({1}), ids({1}), numbers({1, 16, 2, 8}),
                    numbers({1, 16, 2, 8}), numbers({1, 2, 1}), ids({1, 1})},
                   [&](const Operands& t) {
                       const attention::DecodeCache keys{t[6], t[7], t[9]};
                       const attention::DecodeScratch scratch(ctx, 1, 2, keys);
                       attention::decode(ctx, t[0],
                                         {.q = t[1], .k = t[2], .v = t[3], .slots = t[4], .positions = t[5]},
                                         keys, {.causal = true}, scratch, t[8]);
                   },
                   {8, 9}});
    const Tensor lse = numbers({1, 2, 3});
    all.push_back({"attention/attention.h: merge",
                   "merge: ",
                   {heads(), lse, heads(), numbers({1, 2, 3})},
                   [&](const Operands& t) {
                       attention::merge(ctx, {t[0], t[1]}, {t[2], t[3]});
                   }});
    all.push_back({"attention/attention.h: merge into",
                   "merge: ",
                   {heads(), numbers({1, 2, 3})},
                   [&, other = heads(), lse](const Operands& t) {
                       attention::merge(ctx, {t[0], t[1]}, {other, lse}, {other, lse});
                   }});
    all.push_back({"attention/ring_attention.h: start_shift",
                   "shift: ",
                   {numbers({8}), numbers({8})},
                   [&](const Operands& t) { test::SilentRing().start_shift(ctx, t[0], t[1]); }});
    all.push_back({"attention/ring_attention.h: ring_forward",
                   "ring_forward: ",
                   {heads(), heads(), heads()},
                   [&](const Operands& t) {
                       attention::Saved saved;
                       attention::ring_forward(ctx, t[0], t[1], t[2], {}, test::SilentRing(), saved);
                   }});
    all.push_back({"attention/ring_attention.h: ring_backward",
                   "ring_backward: ",
                   {heads(), heads(), heads(), heads(), heads(), lse, heads(), heads(), heads()},
                   [&](const Operands& t) {
                       attention::ring_backward(ctx, t[0], {}, test::SilentRing(),
                                                {.q = t[1], .k = t[2], .v = t[3], .o = t[4], .lse = t[5]},
                                                {.q = t[6], .k = t[7], .v = t[8]});
                   }});
    all.push_back({"attention/accuracy.h: numbers_of",
                   "to_host: ",
                   {heads()},
                   [&](const Operands& t) { attention::accuracy::numbers_of(ctx, t[0]); },
                   {0}});
}

void Operators::add_training(std::vector<OperandRow>& all) const {
    const auto matrices = [&] { return numbers({1, 4, 4}); };
    all.push_back({"train/optimizers/global_norm.h: global_norm",
                   "global_norm: ",
                   {numbers({8})},
                   [&](const Operands& t) { global_norm(ctx, t[0]); }});
    all.push_back({"train/optimizers/global_norm.h: clip_global_norm",
                   "global_norm: ",
                   {numbers({8}), numbers({1})},
                   [&](const Operands& t) { clip_global_norm(ctx, t[0], {.max_norm = 1, .loss = t[1]}); },
                   {1}});
    all.push_back({"train/optimizers/matrix_optimizer.h: matrix_squares",
                   "matrix_squares: ",
                   {matrices()},
                   [&](const Operands& t) { matrix_squares(ctx, t[0]); }});
    all.push_back({"train/optimizers/matrix_optimizer.h: normalize_matrices",
                   "normalize_matrices: ",
                   {matrices(), matrix_squares(ctx, matrices()), matrices()},
                   [&](const Operands& t) { normalize_matrices(ctx, t[0], t[1], t[2]); }});
    all.push_back({"train/optimizers/matrix_optimizer.h: add_lower_powers",
                   "add_lower_powers: ",
                   {matrices(), matrices()},
                   [&](const Operands& t) {
                       add_lower_powers(ctx, t[0], t[1], {1, 1, 1});
                   }});
    all.push_back(
        {"train/optimizers/muon.h: newton_schulz", "newton_schulz: ", {matrices()}, [&](const Operands& t) {
             newton_schulz(ctx, t[0], DType::f32);
         }});
    all.push_back(
        {"train/parallel/communicator.h: all_reduce", "all_reduce: ", {numbers({8})}, [&](const Operands& t) {
             pair.all_reduce(ctx, t[0]);
         }});
    all.push_back(
        {"train/parallel/communicator.h: broadcast", "broadcast: ", {numbers({8})}, [&](const Operands& t) {
             pair.broadcast(ctx, t[0]);
         }});
    all.push_back({"train/parallel/communicator.h: reduce_scatter",
                   "reduce_scatter: ",
                   {numbers({8}), numbers({4})},
                   [&](const Operands& t) { pair.reduce_scatter(ctx, t[0], t[1]); }});
    all.push_back({"train/parallel/communicator.h: all_gather",
                   "all_gather: ",
                   {numbers({4}), numbers({8})},
                   [&](const Operands& t) { pair.all_gather(ctx, t[0], t[1]); }});
}

std::vector<OperandRow> Operators::rows() const {
    std::vector<OperandRow> all;
    add_core(all);
    add_attention(all);
    add_layers(all);
    add_norms_and_fused_layers(all);
    add_linear_layers(all);
    add_learned_factors(all);
    add_transformer(all);
    add_training(all);
    return all;
}

}  // namespace gradtile
