#include <gradtile/layers/transformer/memory_plan.h>

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/internal/offload_stream.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>

#include <support/small_models.h>

namespace gradtile {
namespace {

using test::SmallModel;

SmallModel gpt2_style(Recompute recompute) {
    return {{.layers = 3, .heads = 2, .width = 32, .context = 40, .vocabulary = 50},
            {.dropout = 0.1, .recompute = recompute}};
}
SmallModel llama_style(Recompute recompute) {
    return {test::llama_style({.layers = 3, .width = 32, .context = 40, .vocabulary = 50}),
            {.recompute = recompute}};
}
SmallModel with_attention_options(Recompute recompute) {
    SmallModel small = test::with_attention_options(llama_style(recompute).config);
    small.training.recompute = recompute;
    return small;
}

SmallModel with_lora(SmallModel small) {
    small.adapters = {.rank = 4, .on = "attn"};
    return small;
}

SmallModel with_frozen(WeightFormat format, const SmallModel& small) {
    SmallModel quantized = with_lora(small);
    quantized.adapters.frozen_format = format;
    return quantized;
}

MemoryRequest request_for(const SmallModel& small, DType dtype = DType::f32, std::int64_t micro_batch = 1) {
    return {.model = small.config,
            .training = small.training,
            .adapters = small.adapters,
            .dtype = dtype,
            .micro_batch = micro_batch};
}

struct Case {
    const char* name;
    SmallModel model;
    DType dtype;
};

class MemoryPlanOf : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Models, MemoryPlanOf,
    ::testing::Values(
        Case{"gpt2_f32", gpt2_style(Recompute::none), DType::f32},
        Case{"gpt2_f32_activations", gpt2_style(Recompute::activations), DType::f32},
        Case{"gpt2_f32_block", gpt2_style(Recompute::block), DType::f32},
        Case{"gpt2_bf16", gpt2_style(Recompute::none), DType::bf16},
        Case{"gpt2_bf16_activations", gpt2_style(Recompute::activations), DType::bf16},
        Case{"llama_f32", llama_style(Recompute::none), DType::f32},
        Case{"llama_f32_activations", llama_style(Recompute::activations), DType::f32},
        Case{"llama_f32_block", llama_style(Recompute::block), DType::f32},
        Case{"llama_bf16", llama_style(Recompute::none), DType::bf16},
        Case{"options_f32", with_attention_options(Recompute::none), DType::f32},
        Case{"options_bf16_activations", with_attention_options(Recompute::activations), DType::bf16},
        Case{"options_bf16_block", with_attention_options(Recompute::block), DType::bf16},
        Case{"lora_f32", with_lora(gpt2_style(Recompute::none)), DType::f32},
        Case{"lora_bf16_activations", with_lora(llama_style(Recompute::activations)), DType::bf16},
        Case{"lora_f32_block", with_lora(with_attention_options(Recompute::block)), DType::f32},
        Case{"nf4_f32", with_frozen(WeightFormat::nf4, gpt2_style(Recompute::none)), DType::f32},
        Case{"nf4_bf16_block", with_frozen(WeightFormat::nf4, llama_style(Recompute::block)), DType::bf16},
        Case{"int8_bf16", with_frozen(WeightFormat::int8, llama_style(Recompute::none)), DType::bf16}),
    [](const auto& info) { return info.param.name; });

/// The families in turn with each level.
std::vector<Case> family_cases() {
    std::vector<Case> cases;
    for (const test::FamilyModel& family :
         test::family_models({.layers = 3, .width = 32, .context = 40, .vocabulary = 50})) {
        const auto level = static_cast<Recompute>(cases.size() % EnumNames<Recompute>::names.size());
        const DType dtype = cases.size() % 2 == 0 ? DType::bf16 : DType::f32;
        cases.push_back({family.name, {family.config, {.dropout = 0.1, .recompute = level}}, dtype});
    }
    return cases;
}
INSTANTIATE_TEST_SUITE_P(Families, MemoryPlanOf, ::testing::ValuesIn(family_cases()),
                         [](const auto& info) { return info.param.name; });

/// Runs one training step of two micro-steps with activations in `arena` and, if it is not null, residuals
/// in `offload`'s memory. Returns the flat gradients.
std::vector<double> train_step(const Context& ctx, const std::shared_ptr<Arena>& arena,
                               const MemoryRequest& request, const OffloadStream* offload = nullptr) {
    ParameterStore parameters, frozen;
    const Transformer model(request.model, parameters, frozen, request.training, request.adapters);
    parameters.allocate(ctx, request.dtype);
    parameters.initialize(ctx, Seed{1});
    frozen.allocate(ctx, request.dtype, {.gradients = false});
    frozen.initialize(ctx, Seed{1});
    const Shape batch{request.micro_batch, request.model.context};
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < batch.elements(); ++i) ids.push_back(i * i % 47);
    const Tensor tokens = from_host(ctx, ids, batch), targets = tokens;
    const Context inside = arena ? ctx.with_allocator(arena) : ctx;
    for (const std::int64_t first_sample : {std::int64_t{0}, request.micro_batch}) {
        Transformer::Saved saved;
        const Tensor loss =
            model.forward(inside, tokens, targets, saved,
                          {.dropout = DropoutKey::from_step(1, 1, first_sample), .offload = offload});
        model.backward(inside, std::move(saved));
    }
    return to_host(ctx, parameters.gradients());
}

TEST_P(MemoryPlanOf, PlannedActivationsAreTheExactMemoryThatAStepNeeds) {
    const Context ctx(Device::cpu(), 2);
    const MemoryRequest request = request_for(GetParam().model, GetParam().dtype, 3);
    const MemoryPlan plan = plan_memory(ctx, request);
    EXPECT_GT(plan.activations, 0u);

    const auto arena = std::make_shared<Arena>(ctx.device(), plan.activations);
    EXPECT_EQ(train_step(ctx, arena, request), train_step(ctx, nullptr, request));
    EXPECT_EQ(arena->peak_bytes(), plan.activations);
    EXPECT_EQ(arena->bytes_in_use(), 0u);

    const auto too_small = std::make_shared<Arena>(ctx.device(), plan.activations - 256);
    EXPECT_THROW(train_step(ctx, too_small, request), Error);
}

/// More blocks than stay on the device. The arena has the planned size, so memory that residuals have left is
/// used again, and a value that did not return would be overwritten.
MemoryRequest offloading(const Case& with, std::int64_t layers) {
    MemoryRequest request = request_for(with.model, with.dtype, 3);
    request.model.layers = layers;
    request.offload_residuals = true;
    return request;
}

TEST_P(MemoryPlanOf, OffloadedResidualsGiveTheSameBitsInThePlannedMemory) {
    const Context ctx(Device::cpu(), 2);
    const MemoryRequest request = offloading(GetParam(), 6);
    const MemoryPlan plan = plan_memory(ctx, request);
    EXPECT_GT(plan.residuals, 0u);
    EXPECT_EQ(plan.host(), plan.residuals);
    const auto arena = std::make_shared<Arena>(ctx.device(), plan.activations);
    const OffloadStream offload(ctx, plan.residuals);
    EXPECT_EQ(train_step(ctx, arena, request, &offload), train_step(ctx, nullptr, request));
    for (const auto& [used, planned] :
         {std::pair<const Arena&, std::size_t>{*arena, plan.activations}, {offload.host(), plan.residuals}}) {
        EXPECT_EQ(used.peak_bytes(), planned);
        EXPECT_EQ(used.bytes_in_use(), 0u);
    }
}

/// A dry run of forward, and of backward with `hooks`. Returns the bytes on the device between them.
std::size_t saved_bytes(const MemoryRequest& request, OffloadStream& offload, const Context& inside,
                        const Arena& arena, const BackwardHooks& hooks = {}) {
    const Context outside = inside.plan(Arena::for_planning(Device::cpu()));
    ParameterStore parameters, frozen;
    const Transformer model(request.model, parameters, frozen, request.training, request.adapters);
    parameters.allocate(outside, request.dtype);
    frozen.allocate(outside, request.dtype, {.gradients = false});
    const Tensor tokens = empty(outside, {request.micro_batch, request.model.context}, DType::i32);
    Transformer::Saved saved;
    model.forward(inside, tokens, tokens, saved,
                  {.dropout = DropoutKey::from_step(1, 1, 0), .offload = &offload});
    const std::size_t bytes = arena.bytes_in_use();
    model.backward(inside, std::move(saved), hooks);
    return bytes;
}

/// Fails when a layer saves a tensor that does not leave.
TEST_P(MemoryPlanOf, OffloadedResidualsOfMoreLayersNeedNoMoreMemory) {
    const auto bytes_of = [](const MemoryRequest& request) {
        const auto arena = Arena::for_planning(Device::cpu());
        const Context inside = Context(Device::cpu(), 1).plan(arena);
        OffloadStream offload(inside);
        return saved_bytes(request, offload, inside, *arena);
    };
    EXPECT_EQ(bytes_of(offloading(GetParam(), 10)), bytes_of(offloading(GetParam(), 6)));
}

TEST_P(MemoryPlanOf, OffloadedResidualsReturnBeforeTheirBlocksBackwardPass) {
    const auto arena = Arena::for_planning(Device::cpu());
    const Context inside = Context(Device::cpu(), 1).plan(arena);
    OffloadStream offload(inside);
    std::vector<std::size_t> first, last;  // bytes on the host in these blocks' backward passes
    const auto record_bytes = [&](const Parameter& parameter) {
        const std::size_t bytes = offload.host().bytes_in_use();
        if (parameter.name().starts_with("h.0.")) first.push_back(bytes);
        if (parameter.name().starts_with("h.5.")) last.push_back(bytes);
    };
    saved_bytes(offloading(GetParam(), 6), offload, inside, *arena, {.gradient_complete = record_bytes});
    EXPECT_GT(offload.host().peak_bytes(), 0u);
    EXPECT_THAT(first, ::testing::AllOf(::testing::Not(::testing::IsEmpty()), ::testing::Each(0u)));
    EXPECT_THAT(last, ::testing::AllOf(::testing::Not(::testing::IsEmpty()),
                                       ::testing::Each(offload.host().peak_bytes())));
}

TEST(MemoryPlan, OffloadsNoResidualsOfTwoBlocks) {
    const Context ctx(Device::cpu(), 1);
    MemoryRequest request = request_for(gpt2_style(Recompute::none));
    request.model.layers = 2;
    const MemoryPlan kept = plan_memory(ctx, request);
    request.offload_residuals = true;
    const MemoryPlan plan = plan_memory(ctx, request);
    EXPECT_EQ(plan.residuals, 0u);
    EXPECT_EQ(plan.activations, kept.activations);
}

TEST_P(MemoryPlanOf, EvaluationAndSamplingFitInTheTrainingArena) {
    const Context ctx(Device::cpu(), 2);
    const MemoryRequest request = request_for(GetParam().model, GetParam().dtype, 3);
    const auto arena = std::make_shared<Arena>(ctx.device(), plan_memory(ctx, request).activations);
    ParameterStore parameters;
    const Transformer model(request.model, parameters, request.training, request.adapters);
    parameters.allocate(ctx, request.dtype);
    const Tensor tokens = zeros(ctx, {request.micro_batch, request.model.context}, DType::i32);
    const Context inside = ctx.with_allocator(arena);
    EXPECT_NO_THROW(model.evaluate(inside, tokens, tokens));
    EXPECT_NO_THROW(model.logits(inside, tokens));
}

/// A GPT-2 style layer saves 16 times as many elements as its input x has; with recomputed activations 10
/// times, and with recomputed blocks once. LSE, its remainder and statistics are not counted.
TEST(MemoryPlan, EachLevelOfRecomputationTakesLessMemory) {
    const Context ctx(Device::cpu(), 1);
    const auto bytes_of = [&](Recompute recompute, std::int64_t layers) {
        MemoryRequest request = request_for(gpt2_style(recompute), DType::f32, 4);
        request.model.layers = layers;
        return static_cast<double>(plan_memory(ctx, request).activations);
    };
    const double unit = 4 * 40 * 32 * size_of(DType::f32);
    for (const auto& [recompute, units] :
         {std::pair{Recompute::none, 16.0}, std::pair{Recompute::activations, 10.0},
          std::pair{Recompute::block, 1.0}}) {
        const double layer = (bytes_of(recompute, 24) - bytes_of(recompute, 12)) / 12;
        EXPECT_GE(layer, units * unit) << name_of(recompute);
        // A row with 32 elements also has 4 statistics, and 2 LSE with their remainders: 8 numbers. The arena
        // rounds the size of each tensor (at most 16 per layer) up to a multiple of 256 bytes.
        EXPECT_LE(layer, (units + 0.25) * unit + 16 * 256) << name_of(recompute);
    }
}

/// An optimizer with `bytes` bytes of state per element, divided into equal shards.
auto bytes_per_element(std::size_t bytes, std::int64_t shards = 1) {
    return [=](const ParameterStore& store) {
        const auto part = static_cast<std::size_t>(store.flat_elements() / shards);
        return OptimizerPart{.elements = part, .state_bytes = bytes * part};
    };
}

TEST(MemoryPlan, CountsTheBytesOfParametersInTheirDtypes) {
    const Context ctx(Device::cpu(), 1);
    const SmallModel model = gpt2_style(Recompute::none);
    ParameterStore parameters;
    const Transformer transformer(model.config, parameters);
    const auto elements = static_cast<std::size_t>(parameters.flat_elements());
    MemoryRequest request = request_for(model, DType::bf16);
    request.optimizer_part = bytes_per_element(4);
    const MemoryPlan plan = plan_memory(ctx, request);
    EXPECT_EQ(plan.parameters, parameters.count());
    EXPECT_EQ(plan.values, 2 * elements);
    EXPECT_EQ(plan.masters, 4 * elements);
    EXPECT_EQ(plan.gradients, 4 * elements);
    EXPECT_EQ(plan.optimizer, 4 * elements);
    EXPECT_EQ(plan.total(), plan.values + plan.masters + plan.gradients + plan.optimizer + plan.activations);
    EXPECT_EQ(plan_memory(ctx, request_for(model)).masters, 0u);
}

/// In a model with adapters, all other parameters are frozen: they have values, but neither gradients,
/// masters nor state.
TEST(MemoryPlan, CountsNeitherGradientsNorMastersNorStateOfFrozenParameters) {
    const Context ctx(Device::cpu(), 1);
    const SmallModel model = gpt2_style(Recompute::none), adapted = with_lora(model);
    ParameterStore adapters, frozen;
    const Transformer transformer(model.config, adapters, frozen, model.training, adapted.adapters);
    const auto trained = static_cast<std::size_t>(adapters.flat_elements());
    const auto all = trained + static_cast<std::size_t>(frozen.flat_elements());
    const auto plan_of = [&](const SmallModel& small) {
        MemoryRequest request = request_for(small, DType::bf16);
        request.save = MemoryRequest::Save::whole;
        request.optimizer_part = bytes_per_element(8);
        return plan_memory(ctx, request);
    };
    const MemoryPlan plan = plan_of(adapted), full = plan_of(model);
    EXPECT_EQ(plan.parameters, full.parameters + adapters.count());
    EXPECT_EQ(plan.frozen, full.parameters);
    EXPECT_EQ(plan.values, 2 * all);
    EXPECT_EQ(plan.masters, 4 * trained);
    EXPECT_EQ(plan.gradients, 4 * trained);
    EXPECT_EQ(plan.optimizer, 8 * trained);
    EXPECT_EQ(plan.snapshot, 2 * trained + plan.masters + plan.optimizer);
    // The MLP matrices' inputs are not saved: one and four times x in each layer.
    const std::size_t x = 40 * 32 * size_of(DType::bf16), layers = 3;
    EXPECT_GE(full.activations, plan.activations + layers * 5 * x);
    std::ostringstream out;
    out << plan;
    EXPECT_THAT(out.str(), testing::HasSubstr(concat("(", adapters.count(), " trained)")));
}

/// Quantized matrices count with the words of their codes, and a step needs one of them at a time in full: in
/// this model, whose other activations are small, the largest.
TEST(MemoryPlan, CountsTheCodesOfQuantizedMatricesAndOneDequantizedMatrix) {
    const Context ctx(Device::cpu(), 1);
    SmallModel small = with_lora(gpt2_style(Recompute::none));
    small.config.context = 1;
    const MemoryPlan plain = plan_memory(ctx, request_for(small, DType::bf16));
    const BlockMatrices matrices = block_matrices(small.config);
    for (const WeightFormat format : {WeightFormat::nf4, WeightFormat::int8}) {
        const MemoryPlan plan = plan_memory(ctx, request_for(with_frozen(format, small), DType::bf16));
        std::int64_t words = 0, elements = 0;
        for (const MatrixShape& matrix : {matrices.qkv, matrices.proj, matrices.up, matrices.down}) {
            elements += matrix.elements();
            words += rounded_up(quantized_layout(format, matrix.elements()).words, parameter_alignment);
        }
        EXPECT_EQ(plan.values, plain.values - static_cast<std::size_t>(3 * 2 * elements - 3 * 4 * words));
        EXPECT_EQ(plan.gradients, plain.gradients);
        const auto largest = static_cast<std::size_t>(2 * matrices.up.elements());
        EXPECT_GT(plan.activations, largest);
        EXPECT_LE(plan.activations, plain.activations + largest);
        std::ostringstream out;
        out << plan;
        EXPECT_THAT(out.str(),
                    testing::HasSubstr(concat("the blocks' frozen matrices in ", name_of(format))));
    }
}

/// A process stores all gradients, and its shard's gradient sums.
TEST(MemoryPlan, ShardsDivideMastersAndOptimizerState) {
    const Context ctx(Device::cpu(), 1);
    MemoryRequest request = request_for(gpt2_style(Recompute::none), DType::bf16);
    const MemoryPlan full = plan_memory(ctx, request);
    request.optimizer_shards = 3;
    request.optimizer_part = bytes_per_element(8, 3);
    const MemoryPlan third = plan_memory(ctx, request);
    const std::size_t elements = full.masters / 4, part = elements / 3;
    EXPECT_EQ(third.values, full.values);
    EXPECT_EQ(third.masters, 4 * part);
    EXPECT_EQ(third.optimizer, 8 * part);
    EXPECT_EQ(third.gradients, 4 * (elements + part));
    EXPECT_EQ(third.activations, full.activations);
    // ZeRO-3, whose samples need more memory than the activations.
    request.value_slots = [](const Context&, const ParameterStore&) { return std::size_t{4096}; };
    EXPECT_EQ(plan_memory(ctx, request).values, 2 * part + 4096);
    EXPECT_EQ(plan_memory(ctx, request).activations, full.activations);
    request.samples = true;
    EXPECT_EQ(plan_memory(ctx, request).activations, std::max(full.activations, full.values));
    request.value_slots = {};
    request.optimizer_shards = 0;
    EXPECT_THROW(plan_memory(ctx, request), Error);
}

/// A dry run does not access the device, so it can be made on a machine without a GPU. On a GPU, logits have
/// a padded vocabulary and chunks of up to 1 GiB, so activations need other memory than on the CPU.
TEST(MemoryPlan, APlanForAGpuNeedsNoGpu) {
    const Context nowhere = Context(Device::cpu(), 1).plan(Arena::for_planning(Device::cuda()));
    const MemoryRequest request = request_for(gpt2_style(Recompute::none), DType::f32, 3);
    if (!GRADTILE_HAVE_CUDA) GTEST_SKIP() << "built without CUDA, so the scratch memory of a GPU is unknown";
    const MemoryPlan plan = plan_memory(nowhere, request);
    EXPECT_EQ(plan.values, plan_memory(Context(Device::cpu(), 1), request).values);
    const std::size_t logits = 3 * 40 * 64 * size_of(DType::f32);
    EXPECT_GT(plan.activations, logits);
}

TEST(MemoryPlan, FindsTheLargestMicroBatchThatFits) {
    const Context ctx(Device::cpu(), 1);
    for (const std::int64_t max_documents : {0, 5}) {
        MemoryRequest request = request_for(gpt2_style(Recompute::none), DType::f32, 11);
        request.max_documents = max_documents;
        const std::size_t budget = plan_memory(ctx, request).total() + 1;
        EXPECT_EQ(largest_micro_batch_that_fits(ctx, request, budget), 11);
        EXPECT_EQ(plan_within(ctx, request, budget).total(), budget - 1);
        EXPECT_EQ(largest_micro_batch_that_fits(ctx, request, 1000), 0);
    }
}

TEST(MemoryPlan, RefusesAMicroBatchThatDoesNotFitAndNamesTheLargestThatDoes) {
    const Context ctx(Device::cpu(), 1);
    MemoryRequest request = request_for(gpt2_style(Recompute::none), DType::f32, 5);
    const std::size_t budget = plan_memory(ctx, request).total();
    request.micro_batch = 8;
    try {
        plan_within(ctx, request, budget);
        FAIL() << "micro-batch 8 was accepted";
    } catch (const Error& error) {
        EXPECT_THAT(error.what(),
                    ::testing::MatchesRegex("memory: micro-batch 8 needs .* MiB, the budget is .* "
                                            "MiB; the largest micro-batch that fits is 5 "
                                            "\\(recompute activations: [6-8], block: [0-9]+\\)"));
    }
    request.micro_batch = 1;
    EXPECT_THROW(plan_within(ctx, request, 1000), Error);
}

TEST(MemoryPlan, CountsAnOffloadedOptimizerAsHostMemory) {
    const Context ctx(Device::cpu(), 1);
    MemoryRequest request = request_for(gpt2_style(Recompute::none), DType::bf16);
    request.save = MemoryRequest::Save::whole;
    request.optimizer_part = [](const ParameterStore& store) {
        const auto count = static_cast<std::size_t>(store.flat_elements());
        return OptimizerPart{.elements = count, .state_bytes = 8 * count};
    };
    const MemoryPlan kept = plan_memory(ctx, request);
    request.offload_optimizer = true;
    const MemoryPlan offloaded = plan_memory(ctx, request);
    EXPECT_EQ(kept.host(), 0u);
    EXPECT_EQ(offloaded.host(), kept.masters + kept.optimizer);
    EXPECT_EQ(offloaded.total() + offloaded.host(), kept.total());
    EXPECT_EQ(offloaded.total(), kept.values + kept.gradients + kept.activations + kept.snapshot);
    std::ostringstream out;
    out << offloaded;
    EXPECT_THAT(out.str(), ::testing::ContainsRegex("total(.|\n)*masters(.|\n)*host memory"));
}

TEST(MemoryPlan, CountsOffloadedValuesAsHostMemory) {
    const Context ctx(Device::cpu(), 1);
    MemoryRequest request = request_for(gpt2_style(Recompute::none), DType::bf16);
    const MemoryPlan kept = plan_memory(ctx, request);
    request.offload_values = true;
    request.value_slots = [](const Context&, const ParameterStore&) { return std::size_t{1000}; };
    const MemoryPlan plan = plan_memory(ctx, request);
    EXPECT_EQ(plan.values, 1000u);
    EXPECT_EQ(plan.host(), kept.values);
    EXPECT_EQ(kept.total() - plan.total(), kept.values - 1000);
    std::ostringstream out;
    out << plan;
    EXPECT_THAT(out.str(),
                ::testing::ContainsRegex("total(.|\n)*parameters +" + std::to_string(kept.values)));
}

/// Sums in bfloat16 have no room for the float32 masters of a checkpoint.
TEST(MemoryPlan, CountsTheMastersThatASaveJoins) {
    const Context ctx(Device::cpu(), 1);
    MemoryRequest request = request_for(gpt2_style(Recompute::none), DType::bf16);
    request.save = MemoryRequest::Save::whole;
    const MemoryPlan kept = plan_memory(ctx, request);
    request.joins_masters = true;
    const MemoryPlan joined = plan_memory(ctx, request);
    EXPECT_EQ(joined.snapshot - kept.snapshot, kept.gradients);
    EXPECT_EQ(joined.total() - kept.total(), kept.gradients);
}

class MemoryPlanOfAGpu : public testing::Test {
  protected:
    void SetUp() override {
        if (!GRADTILE_HAVE_CUDA)
            GTEST_SKIP() << "this build has no CUDA operators, whose memory would be planned";
        request.optimizer_part = [](const ParameterStore& store) {
            const auto count = static_cast<std::size_t>(store.flat_elements());
            return OptimizerPart{
                .elements = count / 2, .state_bytes = 4 * count, .all_state_bytes = 8 * count};
        };
    }
    MemoryPlan plan() const { return plan_memory(ctx, request); }

    const Context ctx = Context(Device::cpu(), 1).plan(Arena::for_planning(Device::cuda()));
    MemoryRequest request = request_for(gpt2_style(Recompute::none), DType::bf16);
};

/// The device copies the state within its memory and sends the copy to page-locked memory, from which it is
/// written. Shards of which process 0 writes all are gathered in its host memory.
TEST_F(MemoryPlanOfAGpu, CountsTheCopiesOfASave) {
    using Save = MemoryRequest::Save;
    const MemoryPlan none = plan();
    const std::size_t elements = none.gradients / 4;
    EXPECT_EQ(none.host(), 0u);
    const auto expect_bytes = [&](Save save, std::size_t on_device, std::size_t on_host) {
        request.save = save;
        const MemoryPlan saved = plan();
        EXPECT_EQ(saved.snapshot, on_device);
        EXPECT_EQ(saved.total(), none.total() + on_device);
        EXPECT_EQ(saved.host(), on_host);
    };
    const std::size_t whole = (2 + 4) * elements + 4 * elements, part = (2 + 4) * elements / 2 + 4 * elements;
    expect_bytes(Save::whole, whole, whole);
    expect_bytes(Save::part, part, part);
    expect_bytes(Save::gathered, 0, (2 + 4 + 8) * elements);
    request.save = Save::whole;
    std::ostringstream out;
    out << plan();
    EXPECT_THAT(out.str(),
                ::testing::ContainsRegex("checkpoint copy(.|\n)*total(.|\n)*page-locked\n +checkpoint "
                                         "copy +" +
                                         std::to_string(whole)));
    request.offload_optimizer = true;  // the device has no room for the copy
    EXPECT_EQ(plan().snapshot, 0u);
    EXPECT_EQ(plan().host(), none.masters + none.optimizer + whole);
}

/// Sums in bfloat16 have no room for the float32 masters, which are joined in page-locked memory.
TEST_F(MemoryPlanOfAGpu, CountsTheMastersThatASaveJoins) {
    for (const MemoryRequest::Save save : {MemoryRequest::Save::whole, MemoryRequest::Save::part}) {
        request.save = save;
        request.joins_masters = false;
        const MemoryPlan kept = plan();
        request.joins_masters = true;
        EXPECT_EQ(plan().total(), kept.total());
        EXPECT_EQ(plan().host() - kept.host(), kept.gradients / (save == MemoryRequest::Save::part ? 2 : 1));
    }
}

/// All checkpoints have one copy of the frozen values, in host memory.
TEST_F(MemoryPlanOfAGpu, CountsTheFrozenValuesOfASave) {
    request.adapters = {.rank = 4, .on = "attn"};
    request.save = MemoryRequest::Save::whole;
    const MemoryPlan saved = plan();
    const std::size_t frozen = saved.host() - saved.snapshot;
    EXPECT_EQ(saved.values, frozen + saved.gradients / 2);
    request.save = MemoryRequest::Save::part;
    request.optimizer_shards = 2;
    EXPECT_EQ(plan().host() - plan().snapshot, frozen / 2);
    request.offload_values = true;  // then the host has them
    request.frozen_slots = [](const Context&, const ParameterStore&) { return FrozenBytes{.at_rest = 64}; };
    EXPECT_EQ(plan().host() - plan().snapshot, 64u);
}

/// The driver frees one before it takes the other.
TEST_F(MemoryPlanOfAGpu, CountsTheLargerOfTheGraphAndTheTimedProducts) {
    const MemoryPlan kept = plan();
    EXPECT_EQ(kept.graph, 0u);
    request.times_products = true;
    const std::size_t largest = 4 * 32 * 4 * 32;  // the MLP's matrices, in float32
    EXPECT_EQ(plan().graph, largest);
    EXPECT_EQ(plan().total(), kept.total() + largest);
    const auto text = [&] {
        std::ostringstream out;
        out << plan();
        return out.str();
    };
    EXPECT_THAT(text(), ::testing::ContainsRegex("timed products +16384 bytes"));
    request.graph = 20000;
    EXPECT_EQ(plan().total(), kept.total() + 20000);
    EXPECT_THAT(text(), ::testing::ContainsRegex("CUDA graph +20000 bytes"));
    request.adapters = {.rank = 4, .on = "attn"};  // outputs of 40 rows, 128 columns in bfloat16
    request.graph = 0;
    EXPECT_EQ(plan().graph, 40u * 128 * 2);
}

TEST(MemoryPlan, CountsOffloadedResidualsAsHostMemory) {
    const Context ctx(Device::cpu(), 1);
    MemoryRequest request = request_for(gpt2_style(Recompute::none), DType::bf16, 4);
    request.model.layers = 12;
    const MemoryPlan kept = plan_memory(ctx, request);
    request.offload_residuals = true;
    const MemoryPlan plan = plan_memory(ctx, request);
    // A block saves 16 times its input, and statistics, see EachLevelOfRecomputationTakesLessMemory.
    const std::size_t block = 16 * 4 * 40 * 32 * size_of(DType::bf16);
    EXPECT_GE(plan.residuals, 10 * block);
    EXPECT_LE(plan.residuals, 11 * block);
    EXPECT_LE(plan.activations, kept.activations - 9 * block);
    EXPECT_EQ(kept.total() - plan.total(), kept.activations - plan.activations);
    std::ostringstream out;
    out << plan;
    EXPECT_THAT(out.str(), ::testing::ContainsRegex("optimizer state(.|\n)*total(.|\n)*residuals +" +
                                                    std::to_string(plan.residuals)));
}

/// The driver's tables of page-locked memory are in the device's memory.
TEST(MemoryPlan, EstimatesACudaContext) {
    const Context ctx(Device::cpu(), 1);
    MemoryRequest request = request_for(gpt2_style(Recompute::none), DType::bf16);
    EXPECT_EQ(plan_memory(ctx, request).cuda_context, 0u);
    request.is_for_gpu = true;
    const MemoryPlan kept = plan_memory(ctx, request);
    EXPECT_EQ(kept.cuda_context, cuda_context_memory(0));
    request.offload_optimizer = true;
    const MemoryPlan offloaded = plan_memory(ctx, request);
    EXPECT_EQ(offloaded.cuda_context, cuda_context_memory(offloaded.host()));
    EXPECT_GT(offloaded.cuda_context, kept.cuda_context);
    EXPECT_EQ(offloaded.used(), offloaded.total() + offloaded.cuda_context);
    std::ostringstream out;
    out << offloaded;
    EXPECT_THAT(out.str(), ::testing::ContainsRegex("total .*\n  with CUDA, about +" +
                                                    std::to_string(offloaded.used())));
}

TEST(MemoryPlan, PrintsOneLineForEachPurpose) {
    std::ostringstream out;
    out << plan_memory(Context(Device::cpu(), 1), request_for(gpt2_style(Recompute::block), DType::bf16));
    for (const char* word :
         {"recompute block", "parameters", "masters", "gradients", "optimizer state", "activations", "total"})
        EXPECT_THAT(out.str(), ::testing::HasSubstr(word));
}

}  // namespace
}  // namespace gradtile
