// Models whose sequences are shared by the ranks of a ring compute what a single process computes.
#include <cmath>
#include <mutex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/layers/transformer/transformer.h>

#include <support/small_models.h>
#include <support/thread_ring.h>

namespace gradtile {
namespace {

using test::SmallModel;

constexpr std::int64_t context_of_shared = 16;

std::vector<std::pair<std::string, SmallModel>> shared_models() {
    const ModelConfig sizes{
        .layers = 2, .heads = 2, .width = 16, .hidden = 12, .context = context_of_shared, .vocabulary = 11};
    std::vector<std::pair<std::string, SmallModel>> models{{"gpt2", sizes}};
    for (const test::FamilyModel& family : test::family_models(sizes)) {
        ModelConfig config = family.config;
        if (config.key_offset) continue;  // refused, see below
        config.window = config.window_pattern = 0;
        config.window_rope_base = 0;
        models.emplace_back(family.name, config);
    }
    ModelConfig options = test::llama_style(sizes);
    options.sinks = true;
    options.softcap = 2;
    models.emplace_back("options_activations", SmallModel(options, {.recompute = Recompute::activations}));
    ModelConfig gates = sizes;
    gates.layers = 3;
    gates.x0_lambdas = gates.attention_gate = gates.value_embeddings = true;
    models.emplace_back("gates_block", SmallModel(gates, {.recompute = Recompute::block}));
    models.emplace_back("lora", SmallModel(sizes, {}, {.rank = 2}));
    return models;
}

/// A model whose numbers are float32 numbers in every dtype.
struct SharedModel {
    Context ctx{Device::cpu(), 1};
    ParameterStore parameters;
    Transformer model;

    SharedModel(const SmallModel& small, DType dtype)
        : model(small.config, parameters, small.training, small.adapters) {
        parameters.allocate(ctx, dtype);
        const std::int64_t elements = parameters.flat_elements();
        const Tensor noise = randn(ctx, {elements}, DType::f32, Seed{5});
        fill(ctx, parameters.values(), 0.0);
        for (const Parameter& parameter : parameters.parameters()) {
            const std::int64_t count = parameter.shape().elements();
            axpy(ctx, parameter.value(), 0.25,
                 noise.slice(0, parameter.offset(), count).reshape(parameter.shape()));
        }
    }
};

/// The loss of a step, the loss of an evaluation, and all gradients.
struct StepNumbers {
    double loss = 0, evaluated = 0;
    std::vector<double> gradients;
    std::vector<double> magnitudes = {};  // sums of the ranks' gradients without their signs
};

Tensor some_ids(const Context& ctx, std::uint32_t state) {
    std::vector<std::int32_t> ids(2 * context_of_shared);
    for (std::int32_t& id : ids)
        id = static_cast<std::int32_t>(((state = 1664525u * state + 1013904223u) >> 16) % 11);
    return from_host(ctx, ids, {2, context_of_shared});
}

StepNumbers step_of(const SharedModel& m, const Tensor& tokens, const Tensor& targets, double target_count,
                    const Documents& documents) {
    const Tensor count = from_host(m.ctx, std::vector<double>{target_count}, {1}, DType::f64);
    Transformer::Saved saved;
    StepNumbers numbers;
    numbers.loss = item(m.ctx, m.model.forward(m.ctx, tokens, targets, saved,
                                               {.target_count = count, .documents = documents}));
    m.model.backward(m.ctx, saved);
    m.parameters.zero_unwritten_gradients(m.ctx);
    numbers.gradients = to_host(m.ctx, m.parameters.gradients());
    numbers.evaluated = item(m.ctx, m.model.evaluate(m.ctx, tokens, targets, documents).slice(0, 0, 1));
    return numbers;
}

/// A batch with ignored targets, which are not spread equally over the ranks.
struct SharedBatch {
    Tensor tokens, targets;
    double target_count = 0;
    explicit SharedBatch(const Context& ctx) : tokens(some_ids(ctx, 1)), targets(some_ids(ctx, 2)) {
        fill(ctx, targets.slice(1, 2, 3), -1.0);
        target_count = static_cast<double>(targets.elements() - 2 * 3);
    }
};

StepNumbers whole_step(const SmallModel& small, DType dtype) {
    const SharedModel m(small, dtype);
    const SharedBatch batch(m.ctx);
    return step_of(m, batch.tokens, batch.targets, batch.target_count, {});
}

/// The part of x [B,T] that a ring's rank has.
Tensor part_of_rank(const Context& ctx, const attention::Ring& ring, const Tensor& x) {
    const auto chunks = attention::zigzag_chunks(x.size(1), ring.rank(), ring.size());
    const std::int64_t chunk = x.size(1) / (2 * ring.size());
    const Tensor part = empty(ctx, {x.size(0), 2 * chunk}, x.dtype());
    copy(ctx, part.slice(1, 0, chunk), x.slice(1, chunks[0], chunk));
    copy(ctx, part.slice(1, chunk, chunk), x.slice(1, chunks[1], chunk));
    return part;
}

Documents shared_documents(const Context& ctx, const attention::Ring& ring, std::int64_t rows) {
    std::vector<std::int32_t> positions;
    for (std::int64_t row = 0; row < rows; ++row)
        for (std::int32_t i = 0; i < context_of_shared; ++i) positions.push_back(i);
    return {.positions = part_of_rank(ctx, ring, from_host(ctx, positions, {rows, context_of_shared})),
            .ring = &ring};
}

/// The sums of all ranks' numbers.
StepNumbers shared_step(const SmallModel& small, int ranks) {
    StepNumbers sums;
    std::mutex mutex;
    test::on_thread_ring(ranks, [&](const attention::Ring& ring) {
        const SharedModel m(small, DType::f64);
        const SharedBatch batch(m.ctx);
        const StepNumbers own =
            step_of(m, part_of_rank(m.ctx, ring, batch.tokens), part_of_rank(m.ctx, ring, batch.targets),
                    batch.target_count, shared_documents(m.ctx, ring, batch.tokens.size(0)));
        const std::lock_guard lock(mutex);
        sums.loss += own.loss;
        sums.evaluated += own.evaluated;
        sums.gradients.resize(own.gradients.size());
        sums.magnitudes.resize(own.gradients.size());
        for (std::size_t i = 0; i < own.gradients.size(); ++i) {
            sums.gradients[i] += own.gradients[i];
            sums.magnitudes[i] += std::abs(own.gradients[i]);
        }
    });
    return sums;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    EXPECT_EQ(a.size(), b.size());
    double result = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
        result = std::max(result, std::abs(a[i] - b[i]));
    return result;
}

/// The elements whose gradients attention computes in float32 in every dtype.
std::vector<bool> float32_gradients(const SmallModel& small) {
    const SharedModel m(small, DType::f64);
    std::vector<bool> marks(static_cast<std::size_t>(m.parameters.flat_elements()));
    for (const Parameter& parameter : m.parameters.parameters())
        if (parameter.name().ends_with(".sinks"))
            std::fill_n(marks.begin() + parameter.offset(), parameter.shape().elements(), true);
    return marks;
}

class SharedSequencesOf : public ::testing::TestWithParam<std::pair<std::string, SmallModel>> {};
INSTANTIATE_TEST_SUITE_P(Models, SharedSequencesOf, ::testing::ValuesIn(shared_models()),
                         [](const auto& info) { return info.param.first; });

/// float64's roundings are 2^29 times smaller than float32's, whose effect the same step in float32 shows.
/// The shared step rounds as often, and the merges and the sums over ranks add less than as much again; each
/// of the two float64 results has such an error. The largest of hundreds of float32 errors stands for all: a
/// factor of 4 covers an element where float32's roundings cancel.
TEST_P(SharedSequencesOf, HaveTheLossAndTheGradientsOfOneProcess) {
    const SmallModel& small = GetParam().second;
    const StepNumbers whole = whole_step(small, DType::f64), rounded = whole_step(small, DType::f32);
    const double factor = 4 * 3 * 0x1p-29;
    const double gradient_bound = factor * largest_difference(whole.gradients, rounded.gradients);
    // A loss is a float64 sum of float32 losses, whose errors may cancel; no log-sum-exp is below 1 ulp.
    const double loss_bound = factor * std::max(std::abs(whole.loss - rounded.loss), 0x1p-24 * whole.loss);
    const std::vector<bool> in_float32 = float32_gradients(small);
    EXPECT_GT(gradient_bound, 0);
    for (const int ranks : {2, 4}) {
        const StepNumbers shared = shared_step(small, ranks);
        ASSERT_EQ(shared.gradients.size(), whole.gradients.size());
        for (std::size_t i = 0; i < whole.gradients.size(); ++i) {
            // Each rank's part and the whole are rounded to float32.
            const double rounding =
                in_float32[i] ? 0x1p-24 * (shared.magnitudes[i] + std::abs(whole.gradients[i])) : 0.0;
            ASSERT_LE(std::abs(shared.gradients[i] - whole.gradients[i]), gradient_bound + rounding)
                << "element " << i << ", " << ranks << " ranks";
        }
        EXPECT_LE(std::abs(shared.loss - whole.loss), loss_bound) << ranks;
        EXPECT_LE(std::abs(shared.evaluated - whole.evaluated), loss_bound * 2 * context_of_shared) << ranks;
    }
}

/// The plan is the memory of the rank that needs most.
TEST_P(SharedSequencesOf, FitExactlyInThePlannedMemory) {
    const SmallModel& small = GetParam().second;
    const Context planner(Device::cpu(), 1);
    for (const int ranks : {2, 4}) {
        MemoryRequest request{.model = small.config,
                              .training = small.training,
                              .adapters = small.adapters,
                              .dtype = DType::f64,
                              .micro_batch = 2,
                              .ring = ranks};
        const MemoryPlan plan = plan_memory(planner, request);
        std::mutex mutex;
        std::size_t largest = 0;
        test::on_thread_ring(ranks, [&](const attention::Ring& ring) {
            const auto arena = std::make_shared<Arena>(Device::cpu(), 2 * plan.activations);
            const Context ctx(Device::cpu(), 1), inside = ctx.with_allocator(arena);
            ParameterStore parameters, frozen;
            const Transformer model(small.config, parameters, frozen, small.training, small.adapters);
            parameters.allocate(ctx, DType::f64);
            frozen.allocate(ctx, DType::f64, {.gradients = false});
            parameters.initialize(ctx, Seed{1});
            frozen.initialize(ctx, Seed{1});
            const Tensor tokens = part_of_rank(ctx, ring, some_ids(ctx, 1));
            {
                Transformer::Saved saved;
                const Tensor loss = model.forward(inside, tokens, tokens, saved,
                                                  {.documents = shared_documents(ctx, ring, 2)});
                model.backward(inside, std::move(saved));
            }
            const std::lock_guard lock(mutex);
            largest = std::max(largest, arena->peak_bytes());
        });
        EXPECT_EQ(largest, plan.activations) << ranks;
    }
}

TEST(SharedSequencesModel, RefusesWindowsDropoutAndPredecessors) {
    ModelConfig config{.layers = 1, .heads = 2, .width = 8, .context = context_of_shared, .vocabulary = 11};
    const auto message = [&](const ModelConfig& model_config, const TrainingOptions& training) {
        std::string text;
        test::on_thread_ring(2, [&](const attention::Ring& ring) {
            const SharedModel m({model_config, training}, DType::f32);
            Transformer::Saved saved;
            try {
                const Tensor tokens = part_of_rank(m.ctx, ring, some_ids(m.ctx, 1));
                m.model.forward(m.ctx, tokens, tokens, saved,
                                {.dropout = DropoutKey::from_step(1, 1, 0),
                                 .documents = shared_documents(m.ctx, ring, 2)});
            } catch (const Error& error) {
                if (ring.rank() == 0) text = error.what();
            }
        });
        return text;
    };
    EXPECT_THAT(message(config, {.attention_dropout = 0.5}),
                ::testing::StartsWith("ring_forward: dropout_p is set"));
    config.window = 3;
    EXPECT_THAT(message(config, {}), ::testing::StartsWith("ring_forward: window is set"));
    config.window = 0;
    config.positions = Positions::rope;
    config.rotary_width = 2;
    config.key_offset = true;
    EXPECT_THAT(message(config, {}), ::testing::StartsWith("previous_token: several processes share"));
}

}  // namespace
}  // namespace gradtile
