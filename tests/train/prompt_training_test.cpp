// Prompts that are attended in both directions (prefix), and prompts that several completions share.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tiny_run.h"

#include <gradtile/core/gradcheck.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/memory_plan.h>
#include <gradtile/tools/evaluation/evaluate.h>
#include <gradtile/tools/generation/next_token.h>
#include <gradtile/tools/generation/sampler.h>
#include <gradtile/train/data/examples.h>

#include <support/equal_sums.h>
#include <support/error_message.h>
#include <support/small_models.h>

namespace gradtile {
namespace {

using test::message_of;
using test::SmallModel;
using test::TinyRun;
using testing::HasSubstr;

using Ids = std::vector<std::int32_t>;

struct PromptWithAnswers {
    Ids prompt;
    std::vector<Ids> answers;
};
const std::vector<PromptWithAnswers>& prompts() {
    static const std::vector<PromptWithAnswers> list{
        {{3, 9, 4, 1}, {{7, 2, 5}, {11}, {7, 8, 0, 6}}}, {{5, 13}, {{1, 12, 2}}}, {{14}, {{4, 4}, {4, 9}}}};
    return list;
}

/// Collects examples.
struct Collected {
    Ids ids;
    Examples examples;
    void add(const Ids& tokens, bool are_targets) {
        ids.insert(ids.end(), tokens.begin(), tokens.end());
        examples.is_target.resize(ids.size(), are_targets);
    }
    void end_example() { examples.begins.push_back(std::ssize(ids)); }
    TokenSequence tokens(DocumentKind kind) {
        examples.kind = kind;
        return TokenSequence::from_examples(std::move(ids), std::move(examples), "prompts");
    }
};

/// An example for each prompt.
TokenSequence shared() {
    Collected all;
    for (const auto& [prompt, answers] : prompts()) {
        all.add({prompt.begin(), prompt.end() - 1}, false);
        for (const Ids& answer : answers) {
            all.add({prompt.back()}, false);
            all.add(answer, true);
        }
        all.end_example();
    }
    return all.tokens(DocumentKind::shared_prompts);
}
/// An example for each answer.
TokenSequence separate() {
    Collected all;
    for (const auto& [prompt, answers] : prompts())
        for (const Ids& answer : answers) {
            all.add(prompt, false);
            all.add(answer, true);
            all.end_example();
        }
    return all.tokens(DocumentKind::completions);
}

constexpr std::int64_t context = 24, vocabulary = 15;

Packing packed(std::int64_t documents, DocumentMask mask) {
    return {{.kind = DocumentRule::Kind::examples}, documents, mask};
}

/// A model with random parameters, and the batch of all windows of a sequence.
struct PromptModel {
    PromptModel(const SmallModel& small, const TokenSequence& tokens, const Packing& packing,
                DType dtype = DType::f64)
        : model(small.config, parameters, small.training) {
        parameters.allocate(ctx, dtype);
        fill_normal(ctx, parameters.values(), 0.1, 0.3, Seed{5});
        SequentialLoader loader(tokens, context, {.packing = packing});
        batch = empty_batch(ctx, loader.windows(), context, loader.packing());
        counted = static_cast<double>(loader.next(batch));
        EXPECT_TRUE(loader.done());
    }
    /// The loss, then all parameter gradients.
    std::vector<double> loss_and_gradients() {
        parameters.reset_gradients();
        Transformer::Saved saved;
        std::vector<double> all{item(
            ctx, model.forward(ctx, batch.tokens, batch.targets, saved, {.documents = batch.documents}))};
        model.backward(ctx, saved);
        parameters.zero_unwritten_gradients(ctx);
        const std::vector<double> gradients = to_host(ctx, parameters.gradients());
        all.insert(all.end(), gradients.begin(), gradients.end());
        return all;
    }

    const Context ctx{Device::cpu(), 2};
    ParameterStore parameters;
    Transformer model;
    Batch batch;
    double counted = 0;
};

struct PromptCase {
    std::string name;
    SmallModel model;
};
/// All families without windows, in turn with each level of recomputation.
std::vector<PromptCase> prompt_cases() {
    const ModelConfig sizes{
        .layers = 2, .heads = 4, .width = 32, .hidden = 24, .context = context, .vocabulary = vocabulary};
    std::vector<PromptCase> cases;
    const auto add = [&](const std::string& name, const ModelConfig& config) {
        const auto level = static_cast<Recompute>(cases.size() % EnumNames<Recompute>::names.size());
        if (config.window == 0) cases.push_back({name, {config, {.recompute = level}}});
    };
    for (const int repeat : {0, 1, 2}) {
        add(concat("gpt2_", repeat), sizes);
        add(concat("llama_", repeat), test::llama_style(sizes));
        if (repeat < 2) add(concat("filler_", repeat), sizes);  // each model with each level
    }
    for (const test::FamilyModel& family : test::family_models(sizes)) add(family.name, family.config);
    return cases;
}
class PromptModels : public testing::TestWithParam<PromptCase> {};
INSTANTIATE_TEST_SUITE_P(Models, PromptModels, testing::ValuesIn(prompt_cases()),
                         [](const auto& info) { return info.param.name; });

/// One prompt with its answers, and several such examples in one window, against a row for each answer. The
/// loss is a mean over all targets, so the rows have weights by their numbers of targets.
TEST_P(PromptModels, SharedPromptsHaveTheLossAndGradientsOfSeparateRows) {
    for (const DType dtype : {DType::f64, DType::f32})
        for (const bool prefix : {false, true}) {
            SCOPED_TRACE(concat(dtype, prefix ? " prefix" : ""));
            const Packing rows = prefix ? packed(1, DocumentMask::prefix_ranges) : Packing{};
            PromptModel expected(GetParam().model, separate(), rows, dtype);
            EXPECT_EQ(expected.batch.tokens.size(0), 6);
            const std::vector<double> right = expected.loss_and_gradients();
            for (const std::int64_t documents : {1, 2}) {
                const DocumentMask mask = prefix ? DocumentMask::prefix_ranges : DocumentMask::ranges;
                PromptModel found(GetParam().model, shared(), packed(documents, mask), dtype);
                EXPECT_EQ(found.batch.tokens.size(0), documents == 1 ? 3 : 2);
                EXPECT_EQ(found.counted, expected.counted);
                test::expect_equal_sums(found.loss_and_gradients(), right, dtype);
                const std::vector<double> sums =
                    to_host(found.ctx, found.model.evaluate(found.ctx, found.batch.tokens,
                                                            found.batch.targets, found.batch.documents));
                EXPECT_EQ(sums[1], found.counted);
                EXPECT_NEAR(sums[0] / sums[1], right[0], 1000 * 0x1p-24 * right[0]);
            }
        }
}

/// The mask matrix of a prefix by its definition: row i sees key j if both are in the prompt, or j <= i. The
/// naive algorithm stores all scores and adds the matrix to them.
TEST_P(PromptModels, APrefixHasTheLossAndGradientsOfItsMaskMatrix) {
    PromptModel found(GetParam().model, separate(), packed(1, DocumentMask::prefix_ranges)),
        expected(GetParam().model, separate(), packed(1, DocumentMask::prefix_ranges));
    const std::vector<double> ranges = found.loss_and_gradients();
    const Tensor bias = zeros(expected.ctx, {6, 1, context, context}, DType::f64);
    std::int64_t row = 0;
    for (const auto& [prompt, answers] : prompts())
        for (std::size_t answer = 0; answer < answers.size(); ++answer, ++row)
            for (std::int64_t i = 0; i < context; ++i)
                for (std::int64_t j = 0; j < context; ++j) {
                    const bool both = std::max(i, j) < std::ssize(prompt);
                    if (!both && j > i)
                        bias.data<double>()[(row * context + i) * context + j] =
                            -std::numeric_limits<double>::infinity();
                }
    for (TransformerBlock& block : expected.model.blocks) {
        block.attn.options.causal = false;
        block.attn.options.algorithm = attention::Algorithm::naive;
        block.attn.options.biases[0] = bias;
    }
    expected.batch.documents = {};
    test::expect_equal_sums(ranges, expected.loss_and_gradients(), DType::f64);
    PromptModel causal(GetParam().model, separate(), {});
    EXPECT_GT(std::abs(causal.loss_and_gradients().front() - ranges.front()), 1e-4);
}

TEST_P(PromptModels, GradientsAreThoseOfFiniteDifferences) {
    PromptModel f(GetParam().model, shared(), packed(2, DocumentMask::prefix_ranges));
    const Differentiable function{
        [&](const Context& c, const Differentiable::Tensors&) {
            return Differentiable::Tensors{
                f.model.evaluate(c, f.batch.tokens, f.batch.targets, f.batch.documents).slice(0, 0, 1)};
        },
        [&](const Context& c, const Differentiable::Tensors&, const Differentiable::Tensors& d_loss) {
            Transformer::Saved saved;
            f.model.forward(
                c, f.batch.tokens, f.batch.targets, saved,
                {.gradient_scale = f.counted * item(c, d_loss[0]), .documents = f.batch.documents});
            f.model.backward(c, saved);
            return Differentiable::Tensors{};
        }};
    const GradientReport report =
        gradient_check(f.ctx, function, {}, f.parameters.parameters(), {.elements = 8});
    EXPECT_TRUE(report.ok()) << report;
}

/// A dry run does not know the ranges; the memory that it plans must suffice for any.
TEST_P(PromptModels, RunInThePlannedMemory) {
    PromptModel f(GetParam().model, shared(), packed(2, DocumentMask::ranges), DType::f32);
    const double expected = f.loss_and_gradients().front();
    const MemoryPlan plan = plan_memory(f.ctx, {.model = GetParam().model.config,
                                                .training = GetParam().model.training,
                                                .micro_batch = f.batch.tokens.size(0),
                                                .row_ranges = true});
    const Context inside = f.ctx.with_allocator(std::make_shared<Arena>(Device::cpu(), plan.activations));
    f.parameters.reset_gradients();
    Transformer::Saved saved;
    EXPECT_EQ(item(f.ctx, f.model.forward(inside, f.batch.tokens, f.batch.targets, saved,
                                          {.documents = f.batch.documents})),
              expected);
    f.model.backward(inside, std::move(saved));
}

/// Windows and ALiBi count rows, but positions repeat in the rows of a shared prompt.
TEST(PromptTraining, LayersRefuseRowRangesWithOptionsThatCountRows) {
    ModelConfig windowed{
        .layers = 2, .heads = 2, .width = 16, .context = context, .vocabulary = vocabulary, .window = 4};
    ModelConfig alibi = windowed;
    alibi.window = 0;
    alibi.positions = Positions::alibi;
    for (const ModelConfig& config : {windowed, alibi}) {
        PromptModel f(config, shared(), packed(1, DocumentMask::ranges));
        EXPECT_THAT(message_of([&] { f.loss_and_gradients(); }),
                    HasSubstr("multi_head_attention: row ranges with a window or ALiBi"));
    }
}

struct PromptRun : TinyRun {
    PromptRun() {
        config.data = shared;
        config.model.context = 32;
        config.eval_every = 4;
        config.model.positions = Positions::rope;
    }
    std::vector<nlohmann::json> train(const char* out) {
        config.out = (directory / out).string();
        Trainer(config, on_message).run();
        return losses(config.out);
    }
    const std::string rows = test::some_shared_prompts(48), shared = directory.write("shared.jsonl", rows),
                      separate = directory.write("separate.jsonl", test::separate_completions(rows));
};

/// Every step has all data, so that only the first step's rounding differs between the runs.
TEST(PromptTraining, ARunOnSharedPromptsHasTheLossOfTheRunOnSeparateRows) {
    for (const bool prefix : {false, true}) {
        PromptRun run;
        run.config.val_fraction = 0;
        run.config.steps = 3;
        run.config.model.prefix = prefix;
        run.config.batch = 48;
        const std::vector<nlohmann::json> shared = run.train("shared");
        run.config.data = run.separate;
        run.config.batch = 2 * 48;  // one to three completions a prompt
        const std::vector<nlohmann::json> separate = run.train("separate");
        ASSERT_EQ(shared.size(), 3u);
        const double bound = 1e3 * std::numeric_limits<float>::epsilon();
        for (std::size_t i = 0; i < shared.size(); ++i) {
            const double right = separate[i].at("loss").get<double>();
            EXPECT_NEAR(shared[i].at("loss").get<double>(), right, bound * right) << "step " << i + 1;
        }
    }
}

/// Settings of all ways to read the data.
std::map<std::string, std::function<void(PromptRun&)>> ways() {
    return {{"memory", [](PromptRun&) {}},
            {"cache", [](PromptRun& run) { run.config.token_cache = (run.directory / "cache").string(); }},
            {"packed", [](PromptRun& run) { run.config.packed = true; }},
            {"micro-batches", [](PromptRun& run) { run.config.micro_batch = 1; }},
            {"stream", [](PromptRun& run) {
                 run.config.tokenizer = "bytes";
                 run.config.stream_buffer = 9;
                 run.config.val_data = run.separate;
             }}};
}

TEST(PromptTraining, ResumesToTheBitAndEvaluatesAsItTrains) {
    for (const auto& [name, change] : ways())
        for (const bool prefix : {false, true}) {
            SCOPED_TRACE(concat(name, prefix ? " prefix" : ""));
            PromptRun run;
            change(run);
            run.config.model.prefix = prefix;
            const std::vector<nlohmann::json> whole = run.train("whole");
            run.config.out = (run.directory / "parts").string();
            { Trainer(run.config, run.on_message).run(/*stop_after=*/7); }
            const RunSummary summary = Trainer(run.config.out, {}, run.on_message).run();
            EXPECT_EQ(TinyRun::losses(run.config.out), whole);
            // The model is evaluated with what its checkpoint says.
            const auto model = load_model(summary.checkpoint);
            EXPECT_EQ(model->transformer.config.prefix, prefix);
            if (run.config.val_data.empty()) continue;
            const TokenSequence tokens = load_tokens({.data = run.separate}, model->tokenizer).tokens;
            const double loss = evaluate(*model, tokens, {.packing = model->packing}).loss;
            ASSERT_TRUE(summary.val_loss);
            EXPECT_NEAR(*summary.val_loss, loss, 1e-5 * loss);
        }
}

TEST(PromptTraining, ACacheGivesTheSameRun) {
    PromptRun run;
    run.config.model.prefix = true;
    const std::vector<nlohmann::json> expected = run.train("memory");
    run.config.token_cache = (run.directory / "cache").string();
    EXPECT_EQ(run.train("writes"), expected);
    EXPECT_EQ(run.train("reads"), expected);
}

TEST(PromptTraining, LoraTrainsACausalModelToAPrefix) {
    PromptRun run;
    run.config.data = run.separate;
    run.train("base");
    run.config.init_from = run.config.out;
    run.config.adapters.rank = 4;
    run.config.model.prefix = true;
    const std::vector<nlohmann::json> losses = run.train("lora");
    EXPECT_LT(losses.back().at("loss").get<double>(), losses.front().at("loss").get<double>());
    EXPECT_TRUE(load_model(run.config.out)->transformer.config.prefix);
}

TEST(PromptTraining, RefusesWhatHasNoPromptsAndWhatCountsRows) {
    PromptRun run;
    run.config.out = "";
    const auto refusal = [&](const auto& change) {
        TrainConfig config = run.config;
        change(config);
        return message_of([&] { Trainer(config, run.on_message); });
    };
    EXPECT_EQ(refusal([](TrainConfig&) {}), "no error");
    EXPECT_THAT(
        refusal([&](TrainConfig& c) {
            c.data = run.directory.write("text.txt", test::some_text(2000));
            c.model.prefix = true;
        }),
        HasSubstr("text.txt: holds no prompts with completions; expected them for a model with prefix"));
    EXPECT_THAT(refusal([&](TrainConfig& c) {
                    c.data = run.directory.write("talk.jsonl", test::some_conversations(30));
                    c.model.prefix = true;
                }),
                HasSubstr("talk.jsonl: holds no prompts with completions"));
    EXPECT_THAT(refusal([&](TrainConfig& c) { c.model.window = 4; }),
                HasSubstr("window: 4 with completions that share a prompt; expected 0"));
    EXPECT_THAT(refusal([&](TrainConfig& c) {
                    c.model.prefix = true;
                    c.sample_every = 5;
                    c.sample_prompt = std::string(33, 'a');
                }),
                HasSubstr("sample-prompt: 33 tokens with prefix; expected at most context, 32"));
    EXPECT_THAT(refusal([&](TrainConfig& c) { c.train_on = TrainOn::all; }),
                HasSubstr("shared.jsonl: line 1: completions with train-on all; expected answers"));
    EXPECT_THAT(refusal([&](TrainConfig& c) {
                    c.data = run.directory.write("bad.jsonl", R"({"prompt":"a","completions":[]})");
                }),
                HasSubstr("bad.jsonl: line 1: completions: none; expected a list with at least one text"));
    EXPECT_THAT(refusal([&](TrainConfig& c) {
                    c.data = run.directory.write("bad.jsonl", R"({"prompt":"","completions":["a"]})");
                }),
                HasSubstr("bad.jsonl: line 1: prompt: has no token"));
    EXPECT_THAT(refusal([&](TrainConfig& c) {
                    c.data = run.directory.write("bad.jsonl", R"({"prompt":"a","completions":["a",1]})");
                }),
                HasSubstr("bad.jsonl: line 1: completions: a list with 1; expected texts"));
}

TEST(PromptTraining, TheStartSaysHowManyPromptsAreTooLong) {
    PromptRun run;
    run.config.model.context = 10;
    Trainer trainer(run.config, run.on_message);
    EXPECT_THAT(trainer.data_description(),
                testing::Contains(HasSubstr("prompts are left out, because they have, with all their")));
}

/// The model was trained to see its prompt in both directions, so a text is read in this way with a cache and
/// without, alone and beside others. Texts end when the context is full.
TEST(PromptTraining, GenerationReadsThePromptAsTrainingDoes) {
    PromptRun run;
    run.config.model.prefix = true;
    const RunSummary summary = [&] {
        Trainer trainer(run.config, run.on_message);
        return trainer.run();
    }();
    const auto model = load_model(summary.checkpoint);
    const Ids prompt = model->tokenizer->encode("the cat", "prompt"), other{1, 2, 3, 4};
    const SampleOptions options{.tokens = 100, .temperature = 0.0, .use_cache = true};
    SampleOptions without_cache = options;
    without_cache.use_cache = false;
    const Ids text = sample_tokens(*model, prompt, options);
    EXPECT_EQ(std::ssize(text), 32 + 1 - std::ssize(prompt));
    EXPECT_EQ(sample_tokens(*model, prompt, without_cache), text);
    std::vector<Ids> texts(3);
    const std::vector<TokenRequest> requests{{prompt}, {other}, {prompt}};
    sample_token_batch(*model, requests, options, /*batch=*/2,
                       {.on_token = [&](std::size_t i, std::int32_t token) {
                           texts[i].push_back(token);
                           return true;
                       }});
    EXPECT_EQ(texts[0], text);
    EXPECT_EQ(texts[2], text);
    EXPECT_EQ(texts[1], sample_tokens(*model, other, without_cache));
    EXPECT_THAT(
        message_of([&] { sample_tokens(*model, Ids(33, 1), options); }),
        HasSubstr("sample: a prompt of 33 tokens; a model with prefix reads at most its context, 32"));

    // A text that begins like the text before it has other keys, if its prompt goes on.
    NextToken reused(*model), fresh(*model, 1, /*use_cache=*/false);
    const auto logits = [&](NextToken& next, const Ids& tokens) {
        return std::move(next.logits(std::array{NextToken::Text{0, tokens}}).front());
    };
    logits(reused, {1, 2, 3, 4, 5});
    const std::vector<double> found = logits(reused, {1, 2, 3, 6}), right = logits(fresh, {1, 2, 3, 6});
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], right[i], 1e-4);
    NextToken grown(*model);
    logits(grown, {1, 2, 3});
    EXPECT_GT(std::abs(logits(grown, {1, 2, 3, 6})[0] - right[0]), 1e-6) << "6 was not in its prompt";
}

}  // namespace
}  // namespace gradtile
