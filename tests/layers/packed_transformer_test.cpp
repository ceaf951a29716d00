// Packed documents give the same losses and gradients as the same documents in separate batches.
#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/gradcheck.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/layers/transformer/transformer.h>

#include <support/equal_sums.h>
#include <support/error_message.h>
#include <support/small_models.h>

namespace gradtile {
namespace {

using test::SmallModel;

struct PackedCase {
    const char* name;
    SmallModel model;
};

SmallModel small_gpt2(Recompute recompute) {
    return {{.layers = 2, .heads = 2, .width = 16, .context = 12, .vocabulary = 19},
            {.recompute = recompute}};
}
SmallModel small_llama(Recompute recompute) {
    return {test::llama_style({.layers = 2, .width = 32, .context = 12, .vocabulary = 19}),
            {.recompute = recompute}};
}

class PackedTransformer : public ::testing::TestWithParam<PackedCase> {};
INSTANTIATE_TEST_SUITE_P(Models, PackedTransformer,
                         ::testing::Values(PackedCase{"gpt2", small_gpt2(Recompute::none)},
                                           PackedCase{"gpt2_block", small_gpt2(Recompute::block)},
                                           PackedCase{"llama", small_llama(Recompute::none)},
                                           PackedCase{"llama_activations",
                                                      small_llama(Recompute::activations)},
                                           PackedCase{"llama_block", small_llama(Recompute::block)}),
                         [](const auto& info) { return info.param.name; });

/// The families in turn with each level.
std::vector<PackedCase> packed_families() {
    std::vector<PackedCase> cases;
    for (const test::FamilyModel& family :
         test::family_models({.layers = 2, .width = 32, .hidden = 24, .context = 12, .vocabulary = 19})) {
        const auto level = static_cast<Recompute>(cases.size() % EnumNames<Recompute>::names.size());
        cases.push_back({family.name, {family.config, {.recompute = level}}});
    }
    return cases;
}
INSTANTIATE_TEST_SUITE_P(Families, PackedTransformer, ::testing::ValuesIn(packed_families()),
                         [](const auto& info) { return info.param.name; });

/// The documents in two 12-token windows; the last two documents are empty.
const std::vector<std::int32_t> document_lengths{5, 1, 6, 12, 0, 0};

DropoutKey key_of(std::int64_t first_sample) {
    return DropoutKey::from_step(1, 1, first_sample);
}

struct PackedModel {
    explicit PackedModel(const SmallModel& small, DType dtype = DType::f32)
        : model(small.config, parameters, small.training) {
        parameters.allocate(ctx, dtype);
        fill_normal(ctx, parameters.values(), 0.1, 0.3, Seed{5});
        std::vector<std::int32_t> ids, next, offsets{0}, positions;
        for (std::int32_t i = 0; i < 24; ++i) {
            ids.push_back((7 * i + i * i) % 19);
            next.push_back(i % 5 == 3 ? -1 : (5 * i + 2) % 19);
        }
        for (const std::int32_t length : document_lengths) {
            offsets.push_back(offsets.back() + length);
            for (std::int32_t i = 0; i < length; ++i) positions.push_back(i);
        }
        tokens = from_host(ctx, ids, {2, 12});
        targets = from_host(ctx, next, {2, 12});
        documents = {.offsets = from_host(ctx, offsets, {std::ssize(offsets)}),
                     .positions = from_host(ctx, positions, {2, 12})};
    }
    /// The loss, then all parameter gradients.
    std::vector<double> packed() {
        parameters.reset_gradients();
        Transformer::Saved saved;
        const double loss = item(
            ctx, model.forward(ctx, tokens, targets, saved, {.dropout = key_of(0), .documents = documents}));
        model.backward(ctx, saved);
        return with_gradients(loss);
    }
    /// Returns the same results, computed by one pass per document.
    std::vector<double> one_by_one() {
        parameters.reset_gradients();
        const Tensor count = from_host(ctx, std::vector<double>{counted()}, {1}, DType::f64);
        double loss = 0;
        std::int64_t first = 0;
        for (std::size_t document = 0; document < document_lengths.size(); ++document) {
            const std::int64_t length = document_lengths[document];
            if (length == 0) continue;
            const auto part = [&](const Tensor& x) {
                return x.reshape({24}).slice(0, first, length).reshape({1, length});
            };
            Transformer::Saved saved;
            const ForwardOptions options{.target_count = count,
                                         .dropout = key_of(static_cast<std::int64_t>(document))};
            loss += item(ctx, model.forward(ctx, part(tokens), part(targets), saved, options));
            model.backward(ctx, saved);
            first += length;
        }
        return with_gradients(loss);
    }
    double counted() const {
        const std::vector<double> all = to_host(ctx, targets);
        return static_cast<double>(std::ranges::count_if(all, [](double x) { return x >= 0; }));
    }

    const Context ctx{Device::cpu(), 2};
    ParameterStore parameters;
    const Transformer model;
    Tensor tokens, targets;
    Documents documents;

  private:
    std::vector<double> with_gradients(double loss) {
        parameters.zero_unwritten_gradients(ctx);
        std::vector<double> all{loss};
        const std::vector<double> gradients = to_host(ctx, parameters.gradients());
        all.insert(all.end(), gradients.begin(), gradients.end());
        return all;
    }
};

void expect_equal_to_documents_one_by_one(const SmallModel& model) {
    for (const DType dtype : {DType::f64, DType::f32}) {
        PackedModel f(model, dtype);
        const std::vector<double> packed = f.packed();
        test::expect_equal_sums(packed, f.one_by_one(), dtype);
    }
}

TEST_P(PackedTransformer, EqualsTheDocumentsOneByOne) {
    expect_equal_to_documents_one_by_one(GetParam().model);
}

/// A document's number, which selects attention's masks, counts the empty documents before it.
TEST_P(PackedTransformer, DropsProbabilitiesLikeTheDocumentsOneByOne) {
    SmallModel model = GetParam().model;
    model.training.attention_dropout = 0.4;
    expect_equal_to_documents_one_by_one(model);
    EXPECT_NE(PackedModel(model).packed(), PackedModel(GetParam().model).packed());
}

TEST_P(PackedTransformer, DiffersFromOneDocumentPerWindow) {
    PackedModel f(GetParam().model);
    const std::vector<double> packed = f.packed();
    f.documents = {};
    const std::vector<double> full = f.packed();
    double largest = 0, difference = 0;
    for (std::size_t i = 1; i < packed.size(); ++i) {
        largest = std::max(largest, std::abs(packed[i]));
        difference = std::max(difference, std::abs(packed[i] - full[i]));
    }
    EXPECT_GT(difference, 0.01 * largest);
}

TEST_P(PackedTransformer, EvaluatesLikeTraining) {
    PackedModel f(GetParam().model);
    const double trained = f.packed().front();
    const std::vector<double> sums =
        to_host(f.ctx, f.model.evaluate(f.ctx, f.tokens, f.targets, f.documents));
    EXPECT_EQ(sums[1], f.counted());
    EXPECT_NEAR(sums[0] / sums[1], trained, 1e-5 * trained);
}

TEST_P(PackedTransformer, GradientsAreThoseOfFiniteDifferences) {
    PackedModel f(GetParam().model, DType::f64);
    const Differentiable function{
        [&](const Context& c, const Differentiable::Tensors&) {
            return Differentiable::Tensors{
                f.model.evaluate(c, f.tokens, f.targets, f.documents).slice(0, 0, 1)};
        },
        [&](const Context& c, const Differentiable::Tensors&, const Differentiable::Tensors& d_loss) {
            Transformer::Saved saved;
            f.model.forward(c, f.tokens, f.targets, saved,
                            {.gradient_scale = f.counted() * item(c, d_loss[0]), .documents = f.documents});
            f.model.backward(c, saved);
            return Differentiable::Tensors{};
        }};
    const GradientReport report =
        gradient_check(f.ctx, function, {}, f.parameters.parameters(), {.elements = 12});
    EXPECT_TRUE(report.ok()) << report;
}

/// A dry run does not know the documents; the memory that it plans must suffice for any.
TEST_P(PackedTransformer, RunsInThePlannedMemory) {
    PackedModel f(GetParam().model);
    const std::vector<double> expected = f.packed();
    const MemoryPlan plan = plan_memory(f.ctx, {.model = GetParam().model.config,
                                                .training = GetParam().model.training,
                                                .micro_batch = 2,
                                                .max_documents = std::ssize(document_lengths) / 2});
    const Context inside = f.ctx.with_allocator(std::make_shared<Arena>(Device::cpu(), plan.activations));
    f.parameters.reset_gradients();
    Transformer::Saved saved;
    const ForwardOptions options{.dropout = key_of(0), .documents = f.documents};
    EXPECT_EQ(item(f.ctx, f.model.forward(inside, f.tokens, f.targets, saved, options)), expected.front());
    f.model.backward(inside, std::move(saved));
}

/// The masks belong to windows in the global batch, not to windows in a micro-batch.
TEST(PackedDocuments, AttentionDropoutDoesNotDependOnTheMicroBatch) {
    SmallModel model = small_llama(Recompute::none);
    model.training.attention_dropout = 0.5;
    const PackedModel f(model, DType::f64);
    const MultiHeadAttention& layer = f.model.blocks[0].attn;
    const auto outputs = [&](const Tensor& x, std::int64_t first_sample, const Documents& documents) {
        MultiHeadAttention::Saved saved;
        const TrainingPass pass{.dropout = key_of(first_sample), .documents = documents};
        return to_host(f.ctx, layer.forward(f.ctx, x, pass, saved));
    };
    const Tensor x = randn(f.ctx, {2, 12, model.config.width}, DType::f64, Seed{5});
    const std::vector<double> both = outputs(x, 0, f.documents);
    const Documents second{.offsets = from_host(f.ctx, std::vector<std::int32_t>{0, 12, 12, 12}, {4}),
                           .positions = f.documents.positions.slice(0, 1, 1)};
    const std::vector<double> alone = outputs(x.slice(0, 1, 1), 1, second);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), both.begin() + std::ssize(both) / 2));
    EXPECT_NE(outputs(x.slice(0, 1, 1), 0, second), alone);
}

TEST(PackedDocuments, RefusesWindowsWithDifferentNumbersOfDocuments) {
    PackedModel f(small_llama(Recompute::none));
    f.documents.offsets = f.documents.offsets.slice(0, 0, 6);
    EXPECT_THAT(test::message_of([&] { f.packed(); }), testing::HasSubstr("5 in 2 windows"));
}

TEST(PackedDocuments, RefusesPositionsOutsideTheContext) {
    for (const PackedCase& c : {PackedCase{"gpt2", small_gpt2(Recompute::none)},
                                PackedCase{"llama", small_llama(Recompute::none)}}) {
        PackedModel f(c.model);
        f.documents.positions.data<std::int32_t>()[3] = 12;
        EXPECT_THROW(f.packed(), Error) << c.name;
    }
}

}  // namespace
}  // namespace gradtile
