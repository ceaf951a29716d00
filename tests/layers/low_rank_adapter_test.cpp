#include <gradtile/layers/linear.h>

#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>

#include <support/error_message.h>
#include <support/on_cuda.h>
#include <support/small_models.h>

namespace gradtile {
namespace {

using test::message_of;
using test::SmallModel;
using testing::HasSubstr;

/// An element of y sums over `in` and then over the rank, an element of dx over `out` and the rank. Two
/// intermediate results are rounded to the layer's dtype: A x (in backward dy B), and W x (in backward dy W).
/// A's gradient also contains dy's rounding error.
TEST(LowRankAdapter, PassesTheLayerSuite) {
    for (const auto& [in, out, rank] :
         {std::array<std::int64_t, 3>{1, 1, 1}, {7, 40, 3}, {48, 5, 8}, {33, 20, 16}})
        test::check_layer(
            [=, in = in, out = out, rank = rank](ParameterStore& store) {
                Linear linear(store, "linear", in, out);
                linear.add_adapter(store, {.rank = rank, .alpha = 1.5});
                return linear;
            },
            {.width = in,
             .operations = static_cast<double>(std::max(in, out) + rank + 1),
             .rounded_within = 3});
}

/// A linear layer with an adapter, whose own parameters are in a store without gradients.
struct AdaptedLinear {
    Context ctx{Device::cpu(), 2};
    ParameterStore frozen, adapters;
    Linear linear;

    AdaptedLinear(DType dtype, bool trains_base, std::int64_t rank = 3) : linear(frozen, "linear", 7, 5) {
        linear.add_adapter(adapters, {.rank = rank, .alpha = 4.5});
        frozen.allocate(ctx, dtype, {.gradients = trains_base});
        adapters.allocate(ctx, dtype);
        frozen.initialize(ctx, Seed{1});
        adapters.initialize(ctx, Seed{2});
    }
    void draw_b() { copy(ctx, linear.adapter->b.value(), randn(ctx, {5, 3}, adapters.dtype(), Seed{3})); }
};

TEST(LowRankAdapter, AFrozenWeightGetsNoGradientAndChangesNoOther) {
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
        AdaptedLinear frozen(dtype, false), trained(dtype, true);
        EXPECT_TRUE(frozen.linear.weight.is_frozen() && frozen.linear.bias.is_frozen());
        EXPECT_FALSE(frozen.frozen.gradients().defined() || frozen.frozen.has_master());
        std::vector<std::vector<double>> results[2];
        for (AdaptedLinear* f : {&frozen, &trained}) {
            f->draw_b();
            const Tensor x = randn(f->ctx, {9, 7}, dtype, Seed{4}),
                         dy = randn(f->ctx, {9, 5}, dtype, Seed{5});
            Linear::Saved saved;
            auto& all = results[f == &trained];
            all.push_back(to_host(f->ctx, f->linear.forward(f->ctx, x, saved)));
            all.push_back(to_host(f->ctx, f->linear.backward(f->ctx, dy, saved)));
            all.push_back(to_host(f->ctx, f->adapters.gradients()));
            f->linear.accumulate_gradients(f->ctx, dy, saved);
            all.push_back(to_host(f->ctx, f->adapters.gradients()));
        }
        EXPECT_EQ(results[0], results[1]) << dtype;
    }
}

TEST(LowRankAdapter, StartsAsTheLayerWithoutIt) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
        AdaptedLinear f(dtype, false);
        const Tensor x = randn(f.ctx, {9, 7}, dtype, Seed{4});
        Linear::Saved saved;
        const auto with = to_host(f.ctx, f.linear.forward(f.ctx, x, saved));
        f.linear.adapter.reset();
        EXPECT_EQ(with, to_host(f.ctx, f.linear.forward(f.ctx, x, saved))) << dtype;
        EXPECT_FALSE(saved.x.defined()) << "backward of a frozen layer does not read x";
    }
}

/// y = (W + alpha/r B A) x + b, computed here by its definition.
TEST(LowRankAdapter, AddsTheProductOfItsMatricesToTheWeight) {
    AdaptedLinear f(DType::f64, false);
    f.draw_b();
    const Tensor x = randn(f.ctx, {9, 7}, DType::f64, Seed{4});
    Linear::Saved saved;
    const auto y = to_host(f.ctx, f.linear.forward(f.ctx, x, saved)), xs = to_host(f.ctx, x),
               w = to_host(f.ctx, f.linear.weight.value()), a = to_host(f.ctx, f.linear.adapter->a.value()),
               b = to_host(f.ctx, f.linear.adapter->b.value());
    for (std::size_t row = 0; row < 9; ++row)
        for (std::size_t o = 0; o < 5; ++o) {
            double sum = 0;
            for (std::size_t i = 0; i < 7; ++i) {
                double weight = w[o * 7 + i];
                for (std::size_t r = 0; r < 3; ++r) weight += 1.5 * b[o * 3 + r] * a[r * 7 + i];
                sum += weight * xs[row * 7 + i];
            }
            EXPECT_NEAR(y[row * 5 + o], sum, 40 * 0x1p-53 * (1 + std::abs(sum)) * 10);
        }
}

TEST(LowRankAdapter, RefusesARankBelowOneByName) {
    ParameterStore store;
    Linear linear(store, "linear", 7, 5);
    EXPECT_THAT(message_of([&] { linear.add_adapter(store, {.rank = 0, .alpha = 1.0}); }),
                HasSubstr("low_rank_adapter linear: rank 0"));
}

// ---- In a model ----

SmallModel with_adapters(SmallModel model, const char* on = "all") {
    model.adapters = {.rank = 2, .alpha = 3.0, .on = on};
    return model;
}
ModelConfig gpt2() {
    return {.layers = 2, .heads = 2, .width = 8, .context = 7, .vocabulary = 11};
}
ModelConfig llama() {
    return test::llama_style({.layers = 2, .width = 16, .hidden = 12, .context = 7, .vocabulary = 11});
}

struct Gradients {
    double loss = 0;
    std::map<std::string, std::vector<double>> of;
    std::map<std::string, int> completed;
};

/// The adapter gradients in a model whose other parameters are frozen, or trained in the same store.
Gradients gradients_of(const SmallModel& small, bool frozen, DType dtype = DType::f64) {
    const Context ctx(Device::cpu(), 2);
    ParameterStore parameters, others;
    const Transformer model =
        frozen ? Transformer(small.config, parameters, others, small.training, small.adapters)
               : Transformer(small.config, parameters, small.training, small.adapters);
    parameters.allocate(ctx, dtype);
    if (frozen) others.allocate(ctx, dtype, {.gradients = false});
    std::vector<Parameter> all(parameters.parameters().begin(), parameters.parameters().end());
    all.insert(all.end(), others.parameters().begin(), others.parameters().end());
    for (const Parameter& parameter : all) {
        std::uint64_t seed = 1;
        for (const char c : parameter.name()) seed = seed * 131 + static_cast<unsigned char>(c);
        fill_normal(ctx, parameter.value(), parameter.name().ends_with("weight") ? 0.3 : 0.1, 0.4,
                    Seed{seed});
    }
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < 21; ++i) ids.push_back((i * i * 7 + 3 * i) % 11);
    const Tensor tokens = from_host(ctx, ids, {3, 7});
    std::ranges::reverse(ids);
    const Tensor targets = from_host(ctx, ids, {3, 7});
    Transformer::Saved saved;
    Gradients result;
    result.loss =
        item(ctx, model.forward(ctx, tokens, targets, saved, {.dropout = DropoutKey::from_step(1, 1, 0)}));
    model.backward(ctx, saved, {.gradient_complete = [&](const Parameter& parameter) {
                       ++result.completed[parameter.name()];
                   }});
    for (const Parameter& parameter : parameters.parameters())
        if (parameter.name().find(".lora_") != std::string::npos)
            result.of[parameter.name()] = to_host(ctx, parameter.grad());
    return result;
}

TEST(LowRankAdapter, AdaptersOfAFrozenModelHaveTheGradientsOfATrainedModel) {
    SmallModel options = test::with_attention_options(llama());
    options.training.dropout = 0.1;
    for (const SmallModel& model : {SmallModel(gpt2()), SmallModel(llama()), options})
        for (const char* on : {"all", "attn", "mlp", "attn.qkv", "attn.proj"})
            for (const Recompute recompute : {Recompute::none, Recompute::activations, Recompute::block}) {
                SmallModel adapted = with_adapters(model, on);
                const Gradients expected = gradients_of(adapted, /*frozen=*/false);
                adapted.training.recompute = recompute;
                const Gradients found = gradients_of(adapted, /*frozen=*/true);
                EXPECT_EQ(found.loss, expected.loss);
                EXPECT_EQ(found.of, expected.of) << on << ", recompute " << name_of(recompute);
                EXPECT_FALSE(found.of.empty());
                std::map<std::string, int> once;
                for (const auto& [name, gradient] : found.of) once[name] = 1;
                EXPECT_EQ(found.completed, once) << on;
            }
}

TEST(LowRankAdapter, FrozenModelsComputeTheSameBitsAtEveryLevelOfRecomputation) {
    for (const DType dtype : {DType::f32, DType::bf16})
        for (const ModelConfig& model : {gpt2(), llama()}) {
            SmallModel adapted = with_adapters(model);
            const Gradients expected = gradients_of(adapted, true, dtype);
            for (const Recompute recompute : {Recompute::activations, Recompute::block}) {
                adapted.training.recompute = recompute;
                EXPECT_EQ(gradients_of(adapted, true, dtype).of, expected.of) << name_of(recompute);
            }
        }
}

TEST(LowRankAdapter, AModelNamesTheMatricesThatHaveAdapters) {
    const auto names = [](const SmallModel& small) {
        ParameterStore adapters, frozen;
        const Transformer model(small.config, adapters, frozen, small.training, small.adapters);
        std::vector<std::string> list;
        for (const Parameter& parameter : adapters.parameters()) list.push_back(parameter.name());
        EXPECT_EQ(adapters.count(), small.config.layers * adapter_elements(small.config, small.adapters));
        EXPECT_EQ(adapters.count() + frozen.count(), parameter_count(small.config, small.adapters));
        return list;
    };
    SmallModel one_layer = with_adapters(gpt2(), "attn.qkv,mlp.fc");
    one_layer.config.layers = 1;
    EXPECT_THAT(names(one_layer), testing::ElementsAre("h.0.attn.qkv.lora_a", "h.0.attn.qkv.lora_b",
                                                       "h.0.mlp.fc.lora_a", "h.0.mlp.fc.lora_b"));
    EXPECT_THAT(names(with_adapters(llama(), "mlp")),
                testing::IsSupersetOf({"h.0.mlp.gate_up.lora_a", "h.1.mlp.down.lora_b"}));
    for (const char* wrong : {"", "qkv", "attn,", "mlp.gate_up", "attn.qkv mlp.fc", "all,wte"})
        EXPECT_THAT(message_of([&] { validate(with_adapters(gpt2(), wrong).adapters, gpt2()); }),
                    HasSubstr("is no matrix of this model's blocks; expected all, attn, mlp, attn.qkv, "
                              "attn.proj, mlp.fc or mlp.proj"))
            << wrong;
    EXPECT_THAT(message_of([] { validate({.rank = 9}, gpt2()); }),
                HasSubstr("lora-rank: 9 is more than width 8"));
}

/// Each element takes 4 operations per token in a frozen matrix, and 6 in an adapter.
TEST(LowRankAdapter, CountsNoGradientsOfFrozenMatrices) {
    const AdapterOptions adapters = with_adapters(gpt2()).adapters;
    const auto frozen = static_cast<double>(2 * block_matrices(gpt2()).elements() + 8 * 11);
    EXPECT_DOUBLE_EQ(flops_per_token(gpt2(), 7, adapters),
                     flops_per_token(gpt2(), 7) - 2 * frozen +
                         6 * 2 * static_cast<double>(adapter_elements(gpt2(), adapters)));
}

// ---- On the GPU ----

using test::OnCuda;

TEST_F(OnCuda, LinearLayersWithAdaptersPassTheLayerSuite) {
    for (const auto& [in, out, rank] :
         {std::array<std::int64_t, 3>{7, 40, 3}, {48, 5, 8}, {64, 192, 16}, {33, 20, 1}})
        test::check_layer_on_cuda(gpu(),
                                  [=, in = in, out = out, rank = rank](ParameterStore& store) {
                                      Linear linear(store, "linear", in, out);
                                      linear.add_adapter(store, {.rank = rank, .alpha = 1.5});
                                      return linear;
                                  },
                                  {.width = in,
                                   .operations = static_cast<double>(std::max(in, out) + rank + 1),
                                   .rounded_within = 3,
                                   .strided = false});
}

}  // namespace
}  // namespace gradtile
