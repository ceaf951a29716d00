#include <gradtile/core/parameter_store.h>

#include <cmath>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/tensor_ops.h>

#include <support/cpu_context.h>
#include <support/error_message.h>

namespace gradtile {
namespace {

using test::ctx;

struct Store : ParameterStore {
    Parameter weight = add("weight", {3, 5}, Init::normal(0.02));
    Parameter bias = add("bias", {5}, Init::ones());
    explicit Store(DType dtype) {
        allocate(ctx, dtype);
        initialize(ctx, Seed{1});
    }
};

TEST(ParameterStore, LaysOutNamedViewsOfFlatBlocks) {
    const Store store(DType::bf16);
    EXPECT_EQ(store.count(), 20);
    EXPECT_EQ(store.flat_elements() % 64, 0);
    EXPECT_EQ(store.bias.offset() % 64, 0);
    EXPECT_EQ(to_host(ctx, store.bias.value()), std::vector<double>(5, 1.0));
    fill(ctx, store.find("bias").value(), 2.0);
    EXPECT_EQ(item(ctx, store.values().slice(0, store.bias.offset(), 1)), 2.0);
    EXPECT_THROW(store.find("gain"), Error);
}

TEST(ParameterStore, PadsRowsWithZerosThatBelongToNoParameter) {
    ParameterStore store;
    const Parameter table = store.add("table", {3, 50}, Init::normal(1.0), 8);
    const Parameter behind = store.add("behind", {2}, Init::ones());
    store.allocate(ctx, DType::bf16);
    store.initialize(ctx, Seed{1});
    EXPECT_EQ(store.count(), 152);
    EXPECT_EQ(table.shape(), (Shape{3, 50}));
    EXPECT_EQ(table.padded_value().shape(), (Shape{8, 50}));
    EXPECT_EQ(table.padded_grad().shape(), (Shape{8, 50}));
    EXPECT_EQ(table.padded_value().raw_data(), table.value().raw_data());
    EXPECT_EQ(table.padded_grad().raw_data(), table.grad().raw_data());
    EXPECT_GE(behind.offset(), table.offset() + 8 * 50);
    EXPECT_THAT(to_host(ctx, table.padded_value().slice(0, 3, 5)), testing::Each(0.0));
    EXPECT_EQ(behind.padded_value().shape(), behind.shape());
}

TEST(ParameterStore, SixteenBitValuesAreTheirMastersRounded) {
    const Store store(DType::bf16), wide(DType::f32);
    ASSERT_TRUE(store.has_master());
    EXPECT_FALSE(wide.has_master());
    EXPECT_EQ(store.master().dtype(), DType::f32);
    EXPECT_EQ(store.gradients().dtype(), DType::f32);
    EXPECT_EQ(to_host(ctx, store.master()), to_host(ctx, wide.values()));
    EXPECT_EQ(to_host(ctx, store.values()), to_host(ctx, cast(ctx, store.master(), DType::bf16)));
}

TEST(ParameterStore, AnotherLayerDoesNotChangeTheInitialWeightsOfOthers) {
    const Store small(DType::f32);
    ParameterStore large;
    large.add("earlier", {7, 7}, Init::normal(1.0));
    const Parameter weight = large.add("weight", {3, 5}, Init::normal(0.02));
    large.allocate(ctx, DType::f32);
    large.initialize(ctx, Seed{1});
    EXPECT_EQ(to_host(ctx, weight.value()), to_host(ctx, small.weight.value()));
}

TEST(ParameterStore, StartsWithZeroGradientsAndKeepsPaddingZero) {
    const Store store(DType::f32);
    EXPECT_THAT(to_host(ctx, store.gradients()), testing::Each(0.0));
    const std::int64_t end = store.weight.offset() + 15;
    EXPECT_THAT(to_host(ctx, store.values().slice(0, end, store.bias.offset() - end)), testing::Each(0.0));
}

TEST(ParameterStore, TheFirstContributionAfterAResetOverwrites) {
    const Store store(DType::f32);
    const auto next_write = [&](const Parameter& parameter) {
        return parameter.begin_gradient_write().write;
    };
    EXPECT_EQ(next_write(store.weight), GradientWrite::accumulate);
    store.reset_gradients();
    EXPECT_EQ(next_write(store.weight), GradientWrite::overwrite);
    EXPECT_EQ(next_write(store.weight), GradientWrite::accumulate);
    EXPECT_EQ(next_write(store.bias), GradientWrite::overwrite);
    EXPECT_EQ(next_write(Parameter()), GradientWrite::accumulate);
}

TEST(ParameterStore, ZeroesGradientsWithoutAContribution) {
    const Store store(DType::f32);
    fill(ctx, store.gradients(), std::nan(""));
    store.reset_gradients();
    fill(ctx, store.weight.begin_gradient_write().grad, 3.0);
    store.zero_unwritten_gradients(ctx);
    EXPECT_THAT(to_host(ctx, store.weight.grad()), testing::Each(3.0));
    EXPECT_THAT(to_host(ctx, store.bias.grad()), testing::Each(0.0));
    EXPECT_EQ(store.bias.begin_gradient_write().write, GradientWrite::accumulate);
}

TEST(ParameterStore, WithoutAGradientBlockAProviderGivesTheFirstContributionItsMemory) {
    ParameterStore store;
    const Parameter weight = store.add("weight", {3, 5}, Init::zeros(), 4);
    store.allocate(ctx, DType::bf16, {.masters = false, .gradient_block = false});
    EXPECT_FALSE(store.gradients().defined());
    EXPECT_FALSE(weight.is_frozen());
    EXPECT_FALSE(weight.grad().defined());
    const Tensor memory = zeros(ctx, {20}, DType::f32);
    EXPECT_THAT(test::message_of([&] { weight.set_gradient(memory); }),
                testing::HasSubstr("weight: set_gradient without a gradient provider"));
    int calls = 0;
    store.set_gradient_provider([&](const Parameter& parameter) {
        ++calls;
        parameter.set_gradient(memory);
    });
    store.reset_gradients();
    EXPECT_EQ(weight.begin_gradient_write().grad.raw_data(), memory.raw_data());
    EXPECT_EQ(weight.begin_gradient_write().write, GradientWrite::accumulate);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(weight.padded_grad().shape(), (Shape{4, 5}));
    EXPECT_THAT(test::message_of([&] { weight.set_gradient(memory.slice(0, 0, 15)); }),
                testing::HasSubstr("expected flat float32 with the elements of [4, 5]"));
    weight.set_gradient({});
    EXPECT_FALSE(weight.grad().defined());
    const Store with_block(DType::f32);
    EXPECT_THAT(test::message_of([&] { with_block.set_gradient_provider([](const Parameter&) {}); }),
                testing::HasSubstr("the store has a gradient block"));
}

TEST(ParameterStore, GivesTheDrawnMastersToAStoreThatKeepsThem) {
    const Store with_masters(DType::bf16);
    ParameterStore store;
    const Parameter weight = store.add("weight", {3, 5}, Init::normal(0.02));
    store.allocate(ctx, DType::bf16, {.masters = false});
    Tensor drawn;
    store.initialize(ctx, Seed{1}, [&](const Parameter&, const Tensor& masters) { drawn = masters; });
    ASSERT_EQ(drawn.elements(), 64);
    EXPECT_EQ(to_host(ctx, drawn.slice(0, 0, 15)), to_host(ctx, with_masters.master_of(with_masters.weight)));
    EXPECT_THAT(to_host(ctx, drawn.slice(0, 15, 49)), testing::Each(0.0));
    EXPECT_EQ(to_host(ctx, weight.value()), to_host(ctx, with_masters.weight.value()));
}

TEST(ParameterStore, AnOperatorThatOnlyAddsGetsZerosForTheFirstContribution) {
    const Store store(DType::f32);
    fill(ctx, store.gradients(), 3.0);
    EXPECT_THAT(to_host(ctx, ready_to_add(ctx, store.bias.begin_gradient_write())), testing::Each(3.0));
    store.reset_gradients();
    EXPECT_THAT(to_host(ctx, ready_to_add(ctx, store.bias.begin_gradient_write())), testing::Each(0.0));
    EXPECT_FALSE(ready_to_add(ctx, {}).defined());
}

TEST(ParameterStore, RefusesASecondNameAndLateAdditions) {
    ParameterStore store;
    store.add("weight", {3}, Init::zeros());
    EXPECT_THROW(store.add("weight", {4}, Init::zeros()), Error);
    store.allocate(ctx, DType::f32);
    EXPECT_THROW(store.add("late", {4}, Init::zeros()), Error);
    EXPECT_THROW(store.allocate(ctx, DType::f32), Error);
}

TEST(ParameterStore, RefusesIntegersAndRowMultiplesBelow1) {
    ParameterStore store;
    EXPECT_THROW(store.add("weight", {3}, Init::zeros(), 0), Error);
    EXPECT_THROW(store.add("weight", {3}, Init::zeros(), -2), Error);
    EXPECT_NO_THROW(store.add("weight", {3}, Init::zeros(), 2)) << "a refusal adds nothing";
    EXPECT_THROW(store.allocate(ctx, DType::i32), Error);
}

TEST(Parameter, AnUndefinedHandleThrows) {
    const Parameter none;
    const std::pair<const char*, std::function<void()>> calls[] = {
        {"name", [&] { none.name(); }},
        {"shape", [&] { none.shape(); }},
        {"init", [&] { none.init(); }},
        {"decays", [&] { none.decays(); }},
        {"value", [&] { none.value(); }},
        {"is_frozen", [&] { none.is_frozen(); }},
        {"grad", [&] { none.grad(); }},
        {"reset_gradient", [&] { none.reset_gradient(); }},
        {"padded_value", [&] { none.padded_value(); }},
        {"padded_grad", [&] { none.padded_grad(); }},
        {"offset", [&] { none.offset(); }},
    };
    for (const auto& [name, call] : calls)
        EXPECT_THAT(test::message_of(call), testing::HasSubstr("parameter: undefined")) << name;
    EXPECT_FALSE(none.begin_gradient_write().grad.defined());
}

TEST(Parameter, HasNoValueBeforeItsStoreIsAllocated) {
    ParameterStore store;
    const Parameter weight = store.add("h.0.weight", {3}, Init::zeros());
    EXPECT_THAT(test::message_of([&] { store.initialize(ctx, Seed{1}); }),
                testing::HasSubstr("parameter store: initialized before it was allocated"));
    EXPECT_THAT(test::message_of([&] { weight.value(); }),
                testing::HasSubstr("parameter h.0.weight: has no value; its store is not allocated"));
}

TEST(ParameterStore, MatricesDecayAndVectorsDoNot) {
    const Store store(DType::f32);
    EXPECT_TRUE(store.weight.decays());
    EXPECT_FALSE(store.bias.decays());
}

/// A frozen store whose middle parameter is quantized.
struct QuantizedStore : ParameterStore {
    Parameter first = add("first", {3, 5}, Init::normal(0.02));
    Parameter matrix = add("matrix", {70, 65}, Init::normal(0.5));
    Parameter last = add("last", {5}, Init::ones());
    explicit QuantizedStore(WeightFormat format, DType dtype) {
        if (format != WeightFormat::same) quantize({&matrix, 1}, format);
        allocate(ctx, dtype, {.gradients = false});
        initialize(ctx, Seed{1});
    }
};

TEST(ParameterStore, QuantizedParametersTakeNoPlaceAmongTheValues) {
    for (const WeightFormat format : {WeightFormat::nf4, WeightFormat::int8})
        for (const DType dtype : {DType::f32, DType::bf16}) {
            const QuantizedStore store(format, dtype), plain(WeightFormat::same, dtype),
                drawn(WeightFormat::same, DType::f32);
            EXPECT_EQ(store.count(), plain.count());
            EXPECT_EQ(store.flat_elements(), 2 * 64);
            EXPECT_EQ(store.code_words(), rounded_up(quantized_layout(format, 70 * 65).words, 64));
            EXPECT_EQ(store.codes().shape(), Shape{store.code_words()});
            EXPECT_EQ(to_host(ctx, store.first.value()), to_host(ctx, plain.first.value()));
            EXPECT_EQ(to_host(ctx, store.last.value()), to_host(ctx, plain.last.value()));
            EXPECT_TRUE(store.matrix.is_quantized() && store.matrix.is_frozen() &&
                        !store.first.is_quantized());
            EXPECT_EQ(store.matrix.dtype(), dtype);

            const Tensor words = empty(ctx, store.matrix.codes().shape(), DType::i32);
            quantize_weights(ctx, words, drawn.matrix.value(), format);
            EXPECT_EQ(to_host(ctx, store.matrix.codes()), to_host(ctx, words));
            const Tensor expected = empty(ctx, {70, 65}, dtype);
            dequantize_weights(ctx, expected, words, format);
            EXPECT_EQ(to_host(ctx, store.matrix.dequantized(ctx)), to_host(ctx, expected));
            EXPECT_EQ(store.matrix.dequantized(ctx).dtype(), dtype);
            EXPECT_EQ(store.last.dequantized(ctx).raw_data(), store.last.value().raw_data()) << "no copy";
            EXPECT_EQ(test::message_of([&] { store.matrix.value(); }),
                      "parameter matrix: has no value; it is quantized");
        }
}

TEST(ParameterStore, RefusesToQuantizeWhatCannotBe) {
    ParameterStore store, other;
    const Parameter own = store.add("own", {64, 64}, Init::zeros()),
                    foreign = other.add("foreign", {1}, Init::zeros());
    const auto refusal = [&](const auto& action) { return test::message_of(action); };
    EXPECT_THAT(refusal([&] {
                    store.quantize({&foreign, 1}, WeightFormat::nf4);
                }),
                testing::HasSubstr("'foreign' to quantize is not one of its parameters"));
    EXPECT_THAT(refusal([&] {
                    store.quantize({&own, 1}, WeightFormat::same);
                }),
                testing::HasSubstr("expected nf4 or int8"));
    EXPECT_THAT(refusal([&] { own.dtype(); }), testing::HasSubstr("its store is not allocated"));
    store.quantize({&own, 1}, WeightFormat::nf4);
    EXPECT_THAT(refusal([&] { store.allocate(ctx, DType::f32); }),
                testing::HasSubstr("expected FlatOptions::gradients = false"));
    store.allocate(ctx, DType::f32, {.gradients = false});
    EXPECT_THAT(refusal([&] {
                    store.quantize({&own, 1}, WeightFormat::nf4);
                }),
                testing::HasSubstr("quantized after the store was allocated"));
}

}  // namespace
}  // namespace gradtile
