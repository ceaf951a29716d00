// Operands that are missing, for every public operator: an undefined tensor, a tensor without axes, and the
// saved values of no forward pass. The operators are found in the installed headers, so that a new operator
// without a row in the table fails the first test.
#include <deque>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/attention/accuracy.h>
#include <gradtile/attention/attention.h>
#include <gradtile/attention/decode.h>
#include <gradtile/core/compare.h>
#include <gradtile/core/gemm/gemm.h>
#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/core/gradcheck.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor_math.h>
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
#include <gradtile/train/optimizers/global_norm.h>
#include <gradtile/train/optimizers/matrix_optimizer.h>
#include <gradtile/train/optimizers/muon.h>
#include <gradtile/train/optimizers/optimizers.h>
#include <gradtile/train/parallel/data_parallel.h>

#include <support/public_operators.h>

namespace gradtile {
namespace {

using testing::AnyOf;
using testing::Not;
using testing::StartsWith;
using Operands = std::vector<Tensor>;

struct OperandRow {
    const char* name;    // "header: function", and after a space what distinguishes two rows
    const char* prefix;  // what the operator's errors begin with
    Operands operands;   // that the operator accepts
    std::function<void(const Operands&)> call;
    std::set<std::size_t> optional = {};  // operands that may be undefined
};

std::string error_with(const OperandRow& row, const Operands& operands) {
    try {
        row.call(operands);
    } catch (const Error& error) {
        return error.what();
    } catch (const std::exception& error) {
        return concat("no gradtile::Error: ", error.what());
    }
    return "no error";
}

/// A communicator of one process out of two that exchanges nothing.
class SilentPair final : public Communicator {
  public:
    SilentPair() : Communicator(1, 2) {}

  private:
    void do_all_reduce(const Context&, const Tensor&) const override {}
    void do_reduce_scatter(const Context&, const Tensor&, const Tensor&) const override {}
    void do_all_gather(const Context&, const Tensor&, const Tensor&) const override {}
    void do_broadcast(const Context&, const Tensor&, int) const override {}
    void do_barrier(const Context&) const override {}
};

/// The rows' operators, with parameters that live as long as the rows.
struct Operators {
    const Context ctx{Device::cpu(), 1};
    ParameterStore store;
    const ModelConfig config{.layers = 1, .heads = 2, .width = 8, .context = 4, .vocabulary = 16};
    const Embedding embedding{store, "e", 8, 4};
    const PositionEmbedding positions{store, "p", 8, 4};
    const LayerNorm layer_norm{store, "ln", 4, /*bias=*/true};
    const RMSNorm rms_norm{store, "rn", 4};
    const Linear linear{store, "l", 4, 6};
    const LowRankAdapter adapter{store, "a", 4, 6, {.rank = 2, .alpha = 2}};
    const CrossEntropyHead head{store, "head", 8, 4};
    const WeightedSum weighted_sum{store, "s", std::vector<WeightedSum::Term>{{"a", 1.0}, {"b", 1.0}}};
    const HeadGate gate{store, "g", 8, 2, 1.0};
    const ValueEmbedding value{store, "v", 8, 8, 2, 4, 0.02};
    const Transformer model{config, store};
    const TransformerBlock& block = model.blocks.front();
    const Dropout dropout{0.5};
    const DropoutKey key = DropoutKey{.training = true};
    const Rope rope{4, 8};
    const SilentPair pair;
    const KeyValueCache cache{ctx, config, DType::f32, 1};

    Operators() {
        store.allocate(ctx, DType::f32, {.multiple = flat_multiple(2)});
        store.initialize(ctx, Seed{1});
    }
    Tensor numbers(const Shape& shape, DType dtype = DType::f32) const {
        return randn(ctx, shape, dtype, Seed{3});
    }
    Tensor ids(const Shape& shape) const { return zeros(ctx, shape, DType::i32); }

    std::vector<OperandRow> rows() const;
    void add_core(std::vector<OperandRow>& all) const;
    void add_attention(std::vector<OperandRow>& all) const;
    void add_layers(std::vector<OperandRow>& all) const;
    void add_learned_factors(std::vector<OperandRow>& all) const;
    void add_transformer(std::vector<OperandRow>& all) const;
    void add_training(std::vector<OperandRow>& all) const;
};

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
                   {heads(), heads(), heads(), heads()},
                   [&](const Operands& t) {
                       attention::Saved saved;
                       attention::forward(ctx, t[0], t[1], t[2], {}, saved, t[3]);
                   }});
    all.push_back({"attention/attention.h: forward of packed sequences",
                   "attention: ",
                   {numbers({3, 2, 8}), numbers({3, 2, 8}), numbers({3, 2, 8}),
                    from_host(ctx, std::vector<std::int32_t>{0, 3}, {2}),
                    from_host(ctx, std::vector<std::int32_t>{0, 3}, {2})},
                   [&](const Operands& t) {
                       attention::Saved saved;
                       attention::forward(ctx, t[0], t[1], t[2], {.cumulative_q = t[3], .cumulative_k = t[4]},
                                          saved);
                   }});
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
                   {token(), token(), token(), token(), ids({1}), ids({1}), numbers({1, 4, 2, 8}),
                    numbers({1, 4, 2, 8}), numbers({1, 2, 1})},
                   [&](const Operands& t) {
                       const attention::DecodeCache keys{t[6], t[7]};
                       const attention::DecodeScratch scratch(ctx, 1, 2, keys);
                       attention::decode(ctx, t[0],
                                         {.q = t[1], .k = t[2], .v = t[3], .slots = t[4], .positions = t[5]},
                                         keys, {.causal = true}, scratch, t[8]);
                   },
                   {8}});
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
    all.push_back({"attention/accuracy.h: numbers_of",
                   "to_host: ",
                   {heads()},
                   [&](const Operands& t) { attention::accuracy::numbers_of(ctx, t[0]); },
                   {0}});
}

void Operators::add_layers(std::vector<OperandRow>& all) const {
    const Tensor x = numbers({3, 4}), dy = numbers({3, 4}), out = numbers({3, 6});
    for (const ActivationTraits& traits : activation_table) {
        const ActivationLayer layer{traits.activation};
        const Tensor half = numbers({3, traits.gated ? 2 : 4});
        const char* const prefix = traits.name.data();
        all.push_back({"layers/activation.h: forward", prefix, {x}, [&, layer](const Operands& t) {
                           ActivationLayer::Saved saved;
                           layer.forward(ctx, t[0], saved);
                       }});
        all.push_back({"layers/activation.h: backward", prefix, {half, x}, [&, layer](const Operands& t) {
                           layer.backward(ctx, t[0], {t[1]});
                       }});
        all.push_back({"layers/activation.h: forward_into", prefix, {half, x}, [&, layer](const Operands& t) {
                           layer.forward_into(ctx, t[0], t[1]);
                       }});
        all.push_back({"layers/activation.h: backward_into",
                       prefix,
                       {numbers({3, 4}), half, x},
                       [&, layer](const Operands& t) { layer.backward_into(ctx, t[0], t[1], t[2]); }});
    }
    all.push_back({"layers/column_sums.h: add_column_sums",
                   "column_sums: ",
                   {numbers({4}), dy, numbers({1, 4})},
                   [&](const Operands& t) {
                       add_column_sums(ctx, {.grad = t[0], .write = GradientWrite::overwrite}, {t[1], t[2]});
                   },
                   {0, 2}});
    all.push_back({"layers/column_sums.h: empty_column_sums", "column_sums: ", {x}, [&](const Operands& t) {
                       empty_column_sums(ctx, t[0]);
                   }});
    const Tensor targets = ids({3});
    all.push_back({"layers/cross_entropy_head.h: forward",
                   "cross_entropy: ",
                   {x, targets, numbers({1}, DType::f64)},
                   [&](const Operands& t) {
                       CrossEntropyHead::Saved saved;
                       head.forward(ctx, t[0], t[1], saved, 1, t[2]);
                   },
                   {2}});
    all.push_back({"layers/cross_entropy_head.h: backward", "cross_entropy: ", {x}, [&](const Operands& t) {
                       head.backward(ctx, {t[0]});
                   }});
    all.push_back(
        {"layers/cross_entropy_head.h: loss", "cross_entropy: ", {x, targets}, [&](const Operands& t) {
             head.loss(ctx, t[0], t[1]);
         }});
    all.push_back(
        {"layers/cross_entropy_head.h: losses", "cross_entropy: ", {x, targets}, [&](const Operands& t) {
             head.losses(ctx, t[0], t[1]);
         }});
    all.push_back({"layers/cross_entropy_head.h: logits",
                   "cross_entropy: ",
                   {x, numbers({3, 8})},
                   [&](const Operands& t) { head.logits(ctx, t[0], t[1]); },
                   {1}});
    all.push_back({"layers/dropout.h: forward", "dropout: ", {x}, [&](const Operands& t) {
                       Dropout::Saved saved;
                       dropout.forward(ctx, t[0], key, saved);
                   }});
    all.push_back({"layers/dropout.h: forward that drops nothing", "dropout: ", {x}, [&](const Operands& t) {
                       Dropout::Saved saved;
                       dropout.forward(ctx, t[0], DropoutKey{}, saved);
                   }});
    all.push_back({"layers/dropout.h: backward", "dropout: ", {dy}, [&](const Operands& t) {
                       dropout.backward(ctx, t[0], {.key = key});
                   }});
    all.push_back(
        {"layers/dropout.h: backward that drops nothing", "dropout: ", {dy}, [&](const Operands& t) {
             dropout.backward(ctx, t[0], {.key = DropoutKey{}});
         }});
    all.push_back({"layers/dropout.h: add_residual", "dropout: ", {x, dy}, [&](const Operands& t) {
                       Dropout::Saved saved;
                       dropout.add_residual(ctx, t[0], t[1], key, saved);
                   }});
    const Tensor tokens = ids({1, 3}), rows = numbers({1, 3, 4});
    all.push_back({"layers/embedding.h: forward", "embedding: ", {tokens}, [&](const Operands& t) {
                       Embedding::Saved saved;
                       embedding.forward(ctx, t[0], saved);
                   }});
    all.push_back({"layers/embedding.h: backward", "embedding: ", {rows, tokens}, [&](const Operands& t) {
                       embedding.backward(ctx, t[0], {.tokens = t[1]});
                   }});
    all.push_back(
        {"layers/embedding.h: forward of positions", "position_embedding: ", {rows}, [&](const Operands& t) {
             PositionEmbedding::Saved saved;
             positions.forward(ctx, t[0], saved);
         }});
    all.push_back(
        {"layers/embedding.h: forward_at", "position_embedding: ", {rows, tokens}, [&](const Operands& t) {
             PositionEmbedding::Saved saved;
             positions.forward_at(ctx, t[0], t[1], saved);
         }});
    all.push_back(
        {"layers/embedding.h: backward of positions", "position_embedding: ", {rows}, [&](const Operands& t) {
             positions.backward(ctx, t[0], {.start = 0});
         }});
    all.push_back({"layers/fused_linear.h: fused_linear",
                   "fused_linear: ",
                   {out, x, numbers({4}), numbers({4}), numbers({6, 4}), numbers({6}), numbers({3, 6})},
                   [&](const Operands& t) {
                       fused_linear(ctx, t[0], t[1],
                                    {.norm = FusedLinear::Norm{.weight = t[2], .bias = t[3]},
                                     .weight = t[4],
                                     .bias = t[5],
                                     .residual = t[6]});
                   },
                   {3, 5, 6}});
    all.push_back(
        {"layers/fused_linear.h: fused_linear_in_one_kernel",
         "fused_linear: ",
         {out, x, numbers({6, 4})},
         [&](const Operands& t) { fused_linear_in_one_kernel(ctx, t[0], t[1], {.weight = t[2]}); }});
    all.push_back({"layers/fused_linear.h: fuses_products",
                   "fused_linear: ",
                   {x},
                   [&](const Operands& t) { fuses_products(ctx, t[0]); },
                   {0}});
    const Tensor to_transform = numbers({1, 3, 2, 4}), rstd = numbers({1, 3, 2});
    const Operands norm{numbers({4}), numbers({4}), numbers({3, 2}), numbers({3, 2})};
    const auto transform_of = [](const Operands& t, std::size_t first) {
        return HeadTransform{.queries = 1,
                             .q_weight = t[first],
                             .k_weight = t[first + 1],
                             .epsilon = 1e-5,
                             .angles = {t[first + 2], t[first + 3]}};
    };
    all.push_back({"layers/head_transform.h: transform_heads",
                   "head_transform: ",
                   {numbers({1, 3, 2, 4}), rstd, to_transform, norm[0], norm[1], norm[2], norm[3]},
                   [&, transform_of](const Operands& t) {
                       transform_heads(ctx, t[0], t[1], t[2], transform_of(t, 3));
                   }});
    all.push_back({"layers/head_transform.h: differentiate_heads",
                   "head_transform: ",
                   {numbers({1, 3, 2, 4}), rstd, to_transform, norm[0], norm[1], norm[2], norm[3]},
                   [&, transform_of](const Operands& t) {
                       differentiate_heads(ctx, t[0], t[1], t[2], transform_of(t, 3));
                   }});
    const auto add_norm = [&]<class Norm>(const Norm& layer, const char* header, const char* prefix,
                                          const Operands& statistics) {
        using Saved = typename Norm::Saved;
        const auto saved_of = [](const Operands& t, std::size_t first) {
            if constexpr (std::is_same_v<Norm, LayerNorm>) {
                return Saved{.x = t[first], .mean = t[first + 1], .rstd = t[first + 2]};
            } else {
                return Saved{.x = t[first], .rstd = t[first + 1]};
            }
        };
        const auto with_saved = [&](Operands operands) {
            operands.push_back(x);
            operands.insert(operands.end(), statistics.begin(), statistics.end());
            return operands;
        };
        static std::deque<std::string> names;
        const auto named = [&](const char* function) {
            return names.emplace_back(concat(header, ": ", function)).c_str();
        };
        all.push_back({named("forward"),
                       prefix,
                       {x, dy},
                       [&](const Operands& t) {
                           Saved saved;
                           const Tensor branch = t[1].defined() ? cast(ctx, t[1], t[1].dtype()) : Tensor();
                           layer.forward(ctx, Residual{.x = t[0], .branch = branch}, saved);
                       },
                       {1}});
        all.push_back({named("backward"), prefix, with_saved({dy}),
                       [&, saved_of](const Operands& t) { layer.backward(ctx, t[0], saved_of(t, 1)); }});
        all.push_back(
            {named("backward_add"), prefix, with_saved({dy, numbers({3, 4})}),
             [&, saved_of](const Operands& t) { layer.backward_add(ctx, t[0], saved_of(t, 2), t[1]); }});
    };
    add_norm(layer_norm, "layers/norm.h", "layer_norm: ", {numbers({3}), numbers({3})});
    add_norm(rms_norm, "layers/norm.h", "rms_norm: ", {numbers({3})});
    all.push_back({"layers/linear.h: forward", "linear ", {x}, [&](const Operands& t) {
                       Linear::Saved saved;
                       linear.forward(ctx, t[0], saved);
                   }});
    all.push_back({"layers/linear.h: forward_onto", "linear ", {out, x}, [&](const Operands& t) {
                       Linear::Saved saved;
                       linear.forward_onto(ctx, Residual{t[0]}, t[1], saved);
                   }});
    all.push_back({"layers/linear.h: forward_in_one_kernel",
                   "linear ",
                   {x},
                   [&](const Operands& t) { linear.forward_in_one_kernel(ctx, t[0]); },
                   {0}});
    all.push_back({"layers/linear.h: backward", "linear ", {out, x}, [&](const Operands& t) {
                       linear.backward(ctx, t[0], {t[1]});
                   }});
    all.push_back({"layers/linear.h: accumulate_gradients", "linear ", {out, x}, [&](const Operands& t) {
                       linear.accumulate_gradients(ctx, t[0], {t[1]});
                   }});
    all.push_back({"layers/linear_activation.h: linear_activation_forward",
                   "linear_activation: ",
                   {out, numbers({3, 6}), x, numbers({6, 4}), numbers({6})},
                   [&](const Operands& t) {
                       linear_activation_forward(ctx, t[0], t[1], t[2], t[3], t[4], Activation::gelu_tanh);
                   },
                   {4}});
    all.push_back({"layers/linear_activation.h: linear_activation_backward",
                   "linear_activation backward: ",
                   {out, x, numbers({4, 6}), numbers({3, 6})},
                   [&](const Operands& t) {
                       linear_activation_backward(ctx, t[0], t[1], t[2], t[3], Activation::gelu_tanh);
                   }});
    all.push_back({"layers/linear.h: add_forward", "low_rank_adapter: ", {out, x}, [&](const Operands& t) {
                       adapter.add_forward(ctx, t[0], t[1]);
                   }});
    all.push_back({"layers/linear.h: add_backward",
                   "low_rank_adapter: ",
                   {numbers({3, 4}), out, x},
                   [&](const Operands& t) { adapter.add_backward(ctx, t[0], t[1], t[2]); },
                   {0}});
    all.push_back({"layers/most_likely.h: most_likely_tokens",
                   "most_likely_tokens: ",
                   {ids({3}), x},
                   [&](const Operands& t) { most_likely_tokens(ctx, t[0], t[1]); }});
    all.push_back({"layers/rope.h: angles_at", "rope: ", {ids({3})}, [&](const Operands& t) {
                       rope.angles_at(ctx, t[0], DType::f32);
                   }});
    const Operands rotated{numbers({1, 3, 2, 4}), numbers({3, 2}), numbers({3, 2})};
    all.push_back({"layers/rope.h: forward", "rope: ", rotated, [&](const Operands& t) {
                       rope.forward(ctx, t[0], Rope::Angles{t[1], t[2]});
                   }});
    all.push_back({"layers/rope.h: backward", "rope: ", rotated, [&](const Operands& t) {
                       rope.backward(ctx, t[0], Rope::Angles{t[1], t[2]});
                   }});
}

void Operators::add_learned_factors(std::vector<OperandRow>& all) const {
    const auto add = [&](const char* name, const char* prefix, const Operands& operands, auto call) {
        all.push_back({name, prefix, operands, call});
    };
    const Tensor x = numbers({1, 3, 8}), tokens = ids({1, 3}), logits = numbers({1, 3, 2});
    const auto heads = [&] { return numbers({1, 3, 2, 4}); };
    HeadGate::Saved gates;
    gate.forward(ctx, x, heads(), gates);
    add("layers/learned_factors.h: forward", "weighted_sum: ", {x, x}, [&](const Operands& t) {
        WeightedSum::Saved saved;
        weighted_sum.forward(ctx, t, saved);
    });
    add("layers/learned_factors.h: backward", "weighted_sum: ", {numbers({1, 3, 8})},
        [&, x](const Operands& t) {
            std::vector<Tensor> others(1);
            weighted_sum.backward(ctx, t[0], {.terms = {x, x}}, others);
        });
    add("layers/learned_factors.h: forward of a gate", "head_gate: ", {x, heads()}, [&](const Operands& t) {
        HeadGate::Saved saved;
        gate.forward(ctx, t[0], t[1], saved);
    });
    add("layers/learned_factors.h: forward_add", "head_gate: ", {heads(), x, heads()},
        [&](const Operands& t) {
            HeadGate::Saved saved;
            gate.forward_add(ctx, t[0], t[1], t[2], saved);
        });
    add("layers/learned_factors.h: forward_add of embeddings", "", {heads(), x, tokens},
        [&](const Operands& t) {
            ValueEmbedding::Saved saved;
            value.forward_add(ctx, t[0], t[1], {.tokens = t[2]}, saved);
        });
    add("layers/learned_factors.h: recompute", "head_gate: ", {heads()},
        [&, gates](const Operands& t) { gate.recompute(ctx, t[0], gates); });
    add("layers/learned_factors.h: backward_heads", "head_gate: ", {heads(), heads(), heads()},
        [&, gates](const Operands& t) { gate.backward_heads(ctx, t[0], t[1], t[2], gates); });
    add("layers/learned_factors.h: backward_add_x", "", {numbers({1, 3, 8}), logits},
        [&, gates](const Operands& t) { gate.backward_add_x(ctx, t[0], t[1], gates); });
    add("layers/learned_factors.h: backward_through", "", {x, heads()}, [&, gates](const Operands& t) {
        Tensor d_logits;
        gate.backward_through(ctx, model.blocks[0].attn.proj, t[0], {}, t[1], gates, d_logits);
    });
    add("layers/learned_factors.h: backward_values", "", {heads(), tokens}, [&, gates](const Operands& t) {
        value.backward_values(ctx, t[0], {.tokens = t[1]}, {.gate = gates});
    });
    add("layers/transformer/transformer_block.h: add_output", "stream_history: ", {x},
        [&](const Operands& t) {
            StreamHistory history;
            history.kept = 1;
            Residual stream{t[0]};
            history.add_output(ctx, stream);
        });
    add("layers/transformer/transformer_block.h: add_to_output", "axpy: ", {x}, [&](const Operands& t) {
        StreamGradients gradients{.outputs = {numbers({1, 3, 8})}};
        SummedGradient gradient{t[0]};
        gradients.add_to_output(ctx, 0, gradient);
    });
    add("layers/transformer/transformer_block.h: add_to_x0", "axpy: ", {x}, [&](const Operands& t) {
        SummedGradient gradient{t[0]};
        StreamGradients{.x0 = numbers({1, 3, 8})}.add_to_x0(ctx, gradient);
    });
}

void Operators::add_transformer(std::vector<OperandRow>& all) const {
    const Tensor tokens = ids({1, 3}), targets = ids({1, 3}), x = numbers({1, 3, 8});
    const TrainingPass pass;
    all.push_back(
        {"layers/transformer/configured_norm.h: forward", "layer_norm: ", {x}, [&](const Operands& t) {
             ConfiguredNorm::Saved saved;
             model.norm_f.forward(ctx, t[0], saved);
         }});
    all.push_back(
        {"layers/transformer/configured_norm.h: backward", "layer_norm: ", {x}, [&, x](const Operands& t) {
             ConfiguredNorm::Saved saved;
             model.norm_f.forward(ctx, x, saved);
             model.norm_f.backward(ctx, t[0], saved);
         }});
    all.push_back({"layers/transformer/configured_norm.h: backward_add",
                   "layer_norm: ",
                   {x, numbers({1, 3, 8})},
                   [&, x](const Operands& t) {
                       ConfiguredNorm::Saved saved;
                       model.norm_f.forward(ctx, x, saved);
                       model.norm_f.backward_add(ctx, t[0], saved, t[1]);
                   }});
    all.push_back({"layers/transformer/mlp.h: forward", "mlp: ", {x}, [&](const Operands& t) {
                       Mlp::Saved saved;
                       block.mlp.forward(ctx, t[0], saved);
                   }});
    all.push_back({"layers/transformer/mlp.h: forward_hidden", "mlp: ", {x}, [&](const Operands& t) {
                       Mlp::Saved saved;
                       block.mlp.forward_hidden(ctx, t[0], saved);
                   }});
    all.push_back(
        {"layers/transformer/mlp.h: forward_onto", "", {numbers({1, 3, 8}), x}, [&](const Operands& t) {
             Mlp::Saved saved;
             block.mlp.forward_onto(ctx, Residual{t[0]}, t[1], saved);
         }});
    all.push_back({"layers/transformer/mlp.h: backward", "linear ", {x}, [&, x](const Operands& t) {
                       Mlp::Saved saved;
                       block.mlp.forward(ctx, x, saved);
                       block.mlp.backward(ctx, t[0], saved);
                   }});
    all.push_back({"layers/transformer/multi_head_attention.h: forward",
                   "multi_head_attention: ",
                   {x},
                   [&, pass](const Operands& t) {
                       MultiHeadAttention::Saved saved;
                       block.attn.forward(ctx, t[0], pass, saved);
                   }});
    all.push_back({"layers/transformer/multi_head_attention.h: forward_onto",
                   "",
                   {numbers({1, 3, 8}), x},
                   [&, pass](const Operands& t) {
                       MultiHeadAttention::Saved saved;
                       block.attn.forward_onto(ctx, Residual{t[0]}, t[1], pass, saved);
                   }});
    all.push_back({"layers/transformer/multi_head_attention.h: backward",
                   "linear ",
                   {x},
                   [&, x, pass](const Operands& t) {
                       MultiHeadAttention::Saved saved;
                       block.attn.forward(ctx, x, pass, saved);
                       block.attn.backward(ctx, t[0], saved);
                   }});
    all.push_back({"layers/transformer/multi_head_attention.h: queries_and_keys",
                   "multi_head_attention: ",
                   {numbers({1, 3, 24})},
                   [&](const Operands& t) {
                       MultiHeadAttention::Saved saved;
                       block.attn.queries_and_keys(ctx, t[0], {}, saved);
                   }});
    all.push_back({"layers/transformer/transformer_block.h: forward",
                   "layer_norm: ",
                   {x},
                   [&, pass](const Operands& t) {
                       TransformerBlock::Saved saved;
                       block.forward(ctx, Residual{t[0]}, pass, saved);
                   }});
    all.push_back(
        {"layers/transformer/transformer_block.h: backward", "linear ", {x}, [&, x, pass](const Operands& t) {
             TransformerBlock::Saved saved;
             block.forward(ctx, Residual{x}, pass, saved);
             block.backward(ctx, t[0].defined() ? cast(ctx, t[0], t[0].dtype()) : Tensor(), saved);
         }});
    all.push_back(
        {"layers/transformer/transformer.h: forward", "", {tokens, targets}, [&](const Operands& t) {
             Transformer::Saved saved;
             model.forward(ctx, t[0], t[1], saved);
         }});
    all.push_back(
        {"layers/transformer/transformer.h: evaluate", "", {tokens, targets}, [&](const Operands& t) {
             model.evaluate(ctx, t[0], t[1]);
         }});
    all.push_back(
        {"layers/transformer/transformer.h: target_losses", "", {tokens, targets}, [&](const Operands& t) {
             model.target_losses(ctx, t[0], t[1]);
         }});
    all.push_back(
        {"layers/transformer/transformer.h: logits", "transformer: ", {tokens}, [&](const Operands& t) {
             model.logits(ctx, t[0]);
         }});
    all.push_back({"layers/transformer/transformer.h: logits_of_all",
                   "transformer: ",
                   {tokens},
                   [&](const Operands& t) { model.logits_of_all(ctx, t[0]); }});
    all.push_back({"layers/transformer/transformer.h: next_logits",
                   "next_logits: ",
                   {numbers({1, 16}), ids({1}), ids({1}), ids({1})},
                   [&](const Operands& t) {
                       const attention::DecodeScratch scratch = model.step_scratch(ctx, cache, 1);
                       model.next_logits(
                           ctx, t[0], t[1],
                           {.positions = t[2], .slots = t[3], .cache = cache, .scratch = scratch});
                   }});
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
    all.push_back({"train/parallel/data_parallel.h: pack",
                   "pack: ",
                   {numbers({8}), numbers({4})},
                   [&](const Operands& t) {
                       pack(ctx, t[0], std::vector<FlatRange>{{0, 2}, {4, 2}}, t[1]);
                   }});
}

std::vector<OperandRow> Operators::rows() const {
    std::vector<OperandRow> all;
    add_core(all);
    add_attention(all);
    add_layers(all);
    add_learned_factors(all);
    add_transformer(all);
    add_training(all);
    return all;
}

/// Expects an error of the operator, and not of the tensor functions that it calls.
void expect_refused(const OperandRow& row, const Operands& operands, const std::string& what) {
    const std::string message = error_with(row, operands);
    EXPECT_THAT(message, StartsWith(row.prefix)) << row.name << ", " << what;
    EXPECT_THAT(message, Not(AnyOf(StartsWith("shape: "), StartsWith("tensor: "), StartsWith("no "))))
        << row.name << ", " << what;
}

TEST(UndefinedOperands, AreRefusedByTheOperator) {
    const Operators operators;
    for (const OperandRow& row : operators.rows()) {
        EXPECT_EQ(error_with(row, row.operands), "no error") << row.name;
        for (std::size_t i = 0; i < row.operands.size(); ++i) {
            Operands operands = row.operands;
            operands[i] = {};
            if (!row.optional.contains(i)) expect_refused(row, operands, concat("without operand ", i));
            // A tensor without axes has one element, which some operators accept.
            operands[i] = zeros(operators.ctx, {}, row.operands[i].dtype());
            if (error_with(row, operands) != "no error")
                expect_refused(row, operands, concat("without axes of operand ", i));
        }
    }
}

TEST(UndefinedOperands, EveryPublicOperatorHasARow) {
    // These take no tensor from the caller but parameters, optimizer states or what another row checks.
    const std::set<std::string> without{
        "layers/transformer/multi_head_attention.h: differentiate_queries_and_keys",
        "tools/lab/warp_partition.h: partitioned_forward",
        "train/model/language_model.h: copy_parameters",
        "train/optimizers/elementwise_optimizer.h: step",
        "train/optimizers/matrix_optimizer.h: step",
        "train/optimizers/optimizer.h: step",
        "train/parallel/data_parallel.h: sum",
        "train/parallel/data_parallel.h: unpack"};
    std::set<std::string> rows = without;
    const Operators operators;
    for (const OperandRow& row : operators.rows()) {
        const std::string name = row.name;
        rows.insert(name.substr(0, name.find(' ', name.find(": ") + 2)));
    }
    for (const std::string& name : test::public_operators())
        EXPECT_TRUE(rows.contains(name)) << name << " has no row";
}

template <class Call>
std::string message_of_saved(const Call& call) {
    return error_with({"", "", {}, [&](const Operands&) { call(); }}, {});
}

TEST(UndefinedOperands, BackwardRefusesTheSavedValuesOfNoForwardPass) {
    const Operators o;
    const Tensor dy = o.numbers({1, 3, 4}), wide = o.numbers({1, 3, 8});
    const std::pair<const char*, std::function<void()>> calls[] = {
        {"attention: ",
         [&] {
             attention::backward(o.ctx, o.numbers({1, 3, 2, 8}), {}, {});
         }},
        {"gelu-tanh: ", [&] { ActivationLayer().backward(o.ctx, dy, {}); }},
        {"cross_entropy: ", [&] { o.head.backward(o.ctx, {}); }},
        {"dropout: ", [&] { o.dropout.backward(o.ctx, dy, {}); }},
        {"dropout: ", [&] { Dropout().backward(o.ctx, SummedGradient(dy), {}); }},
        {"embedding: ", [&] { o.embedding.backward(o.ctx, dy, {}); }},
        {"position_embedding: ", [&] { o.positions.backward(o.ctx, dy, {}); }},
        {"weighted_sum: ",
         [&] {
             std::vector<Tensor> others(1);
             o.weighted_sum.backward(o.ctx, dy, {}, others);
         }},
        {"head_gate: ",
         [&] {
             const Tensor heads = o.numbers({1, 3, 2, 4});
             o.gate.backward_heads(o.ctx, heads, heads, heads, {});
         }},
        {"layer_norm: ", [&] { o.layer_norm.backward(o.ctx, dy, {}); }},
        {"rms_norm: ", [&] { o.rms_norm.backward(o.ctx, dy, {}); }},
        {"linear ",
         [&] {
             o.linear.backward(o.ctx, o.numbers({1, 3, 6}), {});
         }},
        {"gelu-tanh: ", [&] { o.block.mlp.backward(o.ctx, wide, {}); }},
        {"linear ", [&] { o.block.attn.backward(o.ctx, wide, {}); }},
        {"transformer: ", [&] { o.model.backward(o.ctx, {}); }}};
    for (const auto& [prefix, call] : calls) {
        const std::string message = message_of_saved(call);
        EXPECT_THAT(message, StartsWith(prefix));
        EXPECT_THAT(message, Not(AnyOf(StartsWith("shape: "), StartsWith("no ")))) << prefix;
    }
}

TEST(UndefinedOperands, UnknownActivationsAndPositionsAreNamed) {
    const Operators o;
    ActivationLayer::Saved saved;
    EXPECT_EQ(message_of_saved([&] {
                  ActivationLayer{static_cast<Activation>(99)}.forward(o.ctx, o.numbers({3, 4}), saved);
              }),
              "activation: unknown activation 99; expected gelu-tanh, gelu, swiglu, relu2 or geglu-tanh");
    const Tensor outside = from_host(o.ctx, std::vector<std::int32_t>{0, 8, 1}, {1, 3});
    EXPECT_EQ(message_of_saved([&] { o.rope.angles_at(o.ctx, outside, DType::f32); }),
              "rope: position 8 is outside 0 to 7");
    PositionEmbedding::Saved saved_positions;
    EXPECT_EQ(message_of_saved([&] {
                  o.positions.forward_at(o.ctx, o.numbers({1, 3, 4}), outside, saved_positions);
              }),
              "position_embedding: position 8 is outside 0 to 7");
}

}  // namespace
}  // namespace gradtile
