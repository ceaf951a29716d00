// Generation steps with lengths in device memory: on a CPU the operators alone, on a GPU with graphs and
// without, against generation without a cache.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/attention/attention.h>
#include <gradtile/attention/row_ranges.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/generation/next_token.h>
#include <gradtile/tools/generation/sampler.h>
#include <gradtile/tools/generation/token_step.h>

#include <support/cuda_test.h>
#include <support/error_message.h>
#include <tools/generation/generation_cases.h>

namespace gradtile {
namespace {

using test::GenerationCase;
using test::message_of;
using testing::HasSubstr;

using Texts = std::vector<std::vector<std::int32_t>>;

/// Sets an environment variable while it exists.
class EnvironmentSetting {
  public:
    EnvironmentSetting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
    ~EnvironmentSetting() { unsetenv(name_); }
    EnvironmentSetting(const EnvironmentSetting&) = delete;
    EnvironmentSetting& operator=(const EnvironmentSetting&) = delete;

  private:
    const char* name_;
};
struct GraphSetting : EnvironmentSetting {
    explicit GraphSetting(const char* value) : EnvironmentSetting("GRADTILE_GENERATION_GRAPH", value) {}
};

class TokenSteps : public testing::TestWithParam<GenerationCase> {};
INSTANTIATE_TEST_SUITE_P(Models, TokenSteps, testing::ValuesIn(test::generation_cases()),
                         [](const auto& info) { return info.param.name; });

/// Three texts in a cache for five texts, token by token: the steps' logits against those from one pass over
/// the whole text.
void expect_logits_of_steps(const LanguageModel* model) {
    const Context& ctx = model->ctx;
    const ModelConfig& config = model->transformer.config;
    const KeyValueCache cache(ctx, config, DType::f64, 5);
    const attention::DecodeScratch scratch = model->transformer.step_scratch(ctx, cache, 3);
    const std::vector<std::int32_t> slots{3, 0, 4};
    Texts texts(3);
    const Tensor logits = empty(ctx, {3, config.vocabulary}, DType::f64);
    // Text i begins at step i, so that the rows have other slots and positions in every step.
    for (std::int32_t step = 0; step < config.context; ++step) {
        std::vector<std::int32_t> tokens, positions, row_slots;
        for (std::size_t i = 0; i < 3; ++i) {
            if (static_cast<std::size_t>(step) < i) continue;
            positions.push_back(static_cast<std::int32_t>(texts[i].size()));
            texts[i].push_back((7 * step * step + 11 * static_cast<std::int32_t>(i) + 2) % 40);
            tokens.push_back(texts[i].back());
            row_slots.push_back(slots[i]);
        }
        const std::int64_t rows = std::ssize(tokens);
        model->transformer.next_logits(ctx, logits.slice(0, 0, rows), from_host(ctx, tokens, {rows}),
                                       {.positions = from_host(ctx, positions, {rows}),
                                        .slots = from_host(ctx, row_slots, {rows}),
                                        .cache = cache,
                                        .scratch = scratch});
        for (std::int64_t row = 0; row < rows; ++row) {
            const auto& text = texts[static_cast<std::size_t>(row)];
            const auto expected =
                to_host(ctx, model->transformer.logits(ctx, from_host(ctx, text, {1, std::ssize(text)})));
            const auto values = to_host(ctx, logits.slice(0, row, 1));
            // 10,000 roundings (2^-53), relative to the largest logit; the sums before a logit have a few
            // hundred. A wrong key or position changes a logit by far more.
            double largest = 0;
            for (const double logit : expected) largest = std::max(largest, std::abs(logit));
            for (std::size_t v = 0; v < expected.size(); ++v)
                ASSERT_NEAR(values[v], expected[v], 1e4 * 0x1p-53 * largest)
                    << "step " << step << ", text " << row;
        }
    }
}

TEST_P(TokenSteps, LogitsEqualThoseOfTheWholeTextInFloat64OnACpu) {
    expect_logits_of_steps(test::generation_model(GetParam(), DType::f64).get());
}

/// For each ModelConfig field, a change that has an effect if the field has one.
const std::vector<GenerationCase> field_changes{
    {"layers", [](ModelConfig& c) { c.layers = 3; }},
    {"heads", [](ModelConfig& c) { c.heads = 2; }},
    {"kv_heads", [](ModelConfig& c) { c.kv_heads = 2; }},
    {"width", [](ModelConfig& c) { c.width = 48; }},
    {"head_width", [](ModelConfig& c) { c.head_width = 12; }},
    {"hidden", [](ModelConfig& c) { c.hidden = 72; }},
    {"context", [](ModelConfig& c) { c.context = 9; }},
    {"vocabulary", [](ModelConfig& c) { c.vocabulary = 41; }},
    {"block", [](ModelConfig& c) { c.block = BlockKind::sandwich_norm; }},
    {"norm", [](ModelConfig& c) { c.norm = Norm::rms; }},
    {"norm_offset", [](ModelConfig& c) { c.norm_offset = true; }},
    {"activation", [](ModelConfig& c) { c.activation = Activation::swiglu; }},
    {"positions", [](ModelConfig& c) { c.positions = Positions::rope; }},
    {"rope_base",
     [](ModelConfig& c) {
         c.positions = Positions::rope;
         c.rope_base = 7;
     }},
    {"rotary_width",
     [](ModelConfig& c) {
         c.positions = Positions::rope;
         c.rotary_width = 4;
     }},
    {"rope_scaling",
     [](ModelConfig& c) {
         c.positions = Positions::rope;
         c.rope_scaling = {.kind = RopeKind::yarn, .factor = 4, .original_context = 4};
     }},
    {"window_rope_base",
     [](ModelConfig& c) {
         c.positions = Positions::rope;
         c.window = 3;
         c.window_pattern = 2;
         c.window_rope_base = 7;
     }},
    {"rope_pattern",
     [](ModelConfig& c) {
         c.positions = Positions::rope;
         c.rope_pattern = 2;
     }},
    {"norm_epsilon", [](ModelConfig& c) { c.norm_epsilon = 0.5; }},
    {"bias", [](ModelConfig& c) { c.bias = false; }},
    {"qkv_bias",
     [](ModelConfig& c) {
         c.bias = false;
         c.qkv_bias = true;
     }},
    {"scaled_embedding", [](ModelConfig& c) { c.scaled_embedding = true; }},
    {"embedding_norm", [](ModelConfig& c) { c.embedding_norm = true; }},
    {"x0_lambdas", [](ModelConfig& c) { c.x0_lambdas = true; }},
    {"attention_gate", [](ModelConfig& c) { c.attention_gate = true; }},
    {"value_embeddings", [](ModelConfig& c) { c.value_embeddings = true; }},
    {"key_offset",
     [](ModelConfig& c) {
         c.positions = Positions::rope;
         c.rotary_width = 4;
         c.key_offset = true;
     }},
    {"tied_head", [](ModelConfig& c) { c.tied_head = false; }},
    {"qk_norm", [](ModelConfig& c) { c.qk_norm = true; }},
    {"qk_norm_kind",
     [](ModelConfig& c) {
         c.qk_norm = true;
         c.qk_norm_kind = QkNorm::projection;
     }},
    {"query_scalar", [](ModelConfig& c) { c.query_scalar = 3; }},
    {"window", [](ModelConfig& c) { c.window = 3; }},
    {"window_pattern",
     [](ModelConfig& c) {
         c.window = 3;
         c.window_pattern = 2;
     }},
    {"prefix", [](ModelConfig& c) { c.prefix = true; }},
    {"softcap", [](ModelConfig& c) { c.softcap = 0.5; }},
    {"sinks", [](ModelConfig& c) { c.sinks = true; }},
    {"logit_softcap", [](ModelConfig& c) { c.logit_softcap.limit = 2; }},
};

std::vector<std::string> config_fields() {
    // With a field more or less, this line does not compile. Each field then needs its name below, and a
    // change above.
    [[maybe_unused]] const auto& [layers, heads, kv_heads, width, head_width, hidden, context, vocabulary,
                                  block, norm, norm_offset, activation, positions, rope_base, rotary_width,
                                  rope_scaling, window_rope_base, rope_pattern, norm_epsilon, bias, qkv_bias,
                                  tied_head, scaled_embedding, embedding_norm, x0_lambdas, attention_gate,
                                  value_embeddings, key_offset, qk_norm, qk_norm_kind, query_scalar, window,
                                  window_pattern, prefix, softcap, sinks, logit_softcap] = ModelConfig{};
    return {"layers",
            "heads",
            "kv_heads",
            "width",
            "head_width",
            "hidden",
            "context",
            "vocabulary",
            "block",
            "norm",
            "norm_offset",
            "activation",
            "positions",
            "rope_base",
            "rotary_width",
            "rope_scaling",
            "window_rope_base",
            "rope_pattern",
            "norm_epsilon",
            "bias",
            "qkv_bias",
            "tied_head",
            "scaled_embedding",
            "embedding_norm",
            "x0_lambdas",
            "attention_gate",
            "value_embeddings",
            "key_offset",
            "qk_norm",
            "qk_norm_kind",
            "query_scalar",
            "window",
            "window_pattern",
            "prefix",
            "softcap",
            "sinks",
            "logit_softcap"};
}

/// The documents of one text of a model with prefix, whose first `prompt` tokens are the prompt.
Documents documents_of(const LanguageModel& model, std::int64_t length, std::int64_t prompt) {
    if (!model.transformer.config.prefix) return {};
    std::vector<std::int32_t> positions(static_cast<std::size_t>(length));
    std::iota(positions.begin(), positions.end(), 0);
    return {.positions = from_host(model.ctx, positions, {1, length}),
            .row_ranges = attention::masks::prefix(model.ctx, length, prompt)};
}

/// Two texts in parts of several tokens: the cached passes' logits against those from one pass over the whole
/// text. A prompt is what the first part reads.
void expect_logits_of_cached_passes(const LanguageModel* model) {
    const Context& ctx = model->ctx;
    const KeyValueCache cache(ctx, model->transformer.config, DType::f64, 2);
    Texts texts(2);
    for (std::int32_t part = 0; part < 3; ++part) {
        std::vector<TextToRead> unread;
        for (std::int32_t i = 0; i < 2; ++i) {
            auto& text = texts[static_cast<std::size_t>(i)];
            const std::size_t start = text.size();
            for (std::int32_t n = 0; n < 1 + i + part % 2; ++n)
                text.push_back((7 * part + 11 * i + 5 * n) % 40);
            unread.push_back({.slot = i,
                              .start = static_cast<std::int64_t>(start),
                              .tokens = std::span(text).subspan(start)});
        }
        const auto logits = to_host(ctx, model->transformer.logits(ctx, packed_texts(ctx, unread), cache));
        std::vector<double> expected;
        for (std::int64_t i = 0; i < 2; ++i) {
            const auto& text = texts[static_cast<std::size_t>(i)];
            const Tensor tokens = from_host(ctx, text, {1, std::ssize(text)});
            const Documents documents = documents_of(*model, std::ssize(text), /*prompt=*/1 + i);
            for (const double logit : to_host(ctx, model->transformer.logits(ctx, tokens, documents)))
                expected.push_back(logit);
        }
        ASSERT_EQ(logits.size(), expected.size());
        // As in expect_logits_of_steps().
        const double largest =
            std::abs(*std::ranges::max_element(expected, {}, [](double x) { return std::abs(x); }));
        for (std::size_t i = 0; i < logits.size(); ++i)
            ASSERT_NEAR(logits[i], expected[i], 1e4 * 0x1p-53 * largest) << "part " << part;
    }
}

TEST(TokenStep, EveryFieldOfAConfigIsComputedInEveryPass) {
    const auto unchanged = test::generation_model(test::generation_cases().front(), DType::f64);
    for (const std::string& field : config_fields()) {
        const auto change = std::ranges::find(field_changes, field, &GenerationCase::name);
        ASSERT_NE(change, field_changes.end()) << field << " has no change";
        SCOPED_TRACE(field);
        const auto model = test::generation_model(*change, DType::f64);
        EXPECT_NE(model->transformer.config, unchanged->transformer.config);
        EXPECT_TRUE(model->transformer.can_step(model->ctx));
        expect_logits_of_steps(model.get());
        expect_logits_of_cached_passes(model.get());
    }
}

/// An enumerator that is added to an enumeration must not be computed like another one.
TEST(TokenStep, NoModelHasAnUnknownEnumerator) {
    const ModelConfig known{.vocabulary = 40};
    ModelConfig norm = known, activation = known, positions = known, block = known;
    block.block = static_cast<BlockKind>(EnumNames<BlockKind>::names.size());
    norm.norm = static_cast<Norm>(EnumNames<Norm>::names.size());
    activation.activation = static_cast<Activation>(activation_table.size());
    positions.positions = static_cast<Positions>(EnumNames<Positions>::names.size());
    const auto make = [](const ModelConfig& config) {
        ParameterStore parameters;
        const Transformer model(config, parameters);
    };
    EXPECT_NO_THROW(make(known));
    for (const ModelConfig& config : {norm, activation, positions, block})
        EXPECT_THROW(make(config), std::exception);
}

class TokenStepsOnCuda : public testing::TestWithParam<GenerationCase> {
  protected:
    void SetUp() override {
        if (cuda_device_count() == 0) GTEST_SKIP() << "no usable CUDA device on this machine";
    }
    static std::unique_ptr<LanguageModel> model(DType dtype) {
        return test::generation_model(GetParam(), dtype, Context(Device::cuda(0), 1));
    }
    static constexpr std::array<std::int32_t, 5> prompt{3, 1, 4, 1, 5};
};
INSTANTIATE_TEST_SUITE_P(Models, TokenStepsOnCuda, testing::ValuesIn(test::generation_cases()),
                         [](const auto& info) { return info.param.name; });

/// Compares a greedy text with logits from passes over whole windows, without a cache. Texts may differ after
/// a token whose logit and the largest logit have a relative difference of at most 1e-5.
void expect_greedy_text(const LanguageModel& model, std::span<const std::int32_t> prompt,
                        std::span<const std::int32_t> text, const std::string& how) {
    NextToken full_window(model, /*slots=*/1, /*use_cache=*/false);
    std::vector<std::int32_t> tokens(prompt.begin(), prompt.end());
    for (const std::int32_t token : text) {
        const std::vector<double> logits = test::logits_after(full_window, tokens);
        const auto best = std::ranges::max_element(logits) - logits.begin();
        if (token != best) {
            const double largest = logits[static_cast<std::size_t>(best)];
            EXPECT_LE(largest - logits[static_cast<std::size_t>(token)], 1e-5 * std::abs(largest))
                << how << ", after " << tokens.size() << " tokens";
            return;
        }
        tokens.push_back(token);
    }
}

TEST_P(TokenStepsOnCuda, GreedyTokensEqualThoseWithoutACacheAlsoBeyondAFullContext) {
    const auto small = model(DType::f32);
    for (const char* setting : {"on", "off", "passes"}) {
        const GraphSetting graphs(setting);
        const std::vector<std::int32_t> text =
            sample_tokens(*small, prompt, {.tokens = 60, .temperature = 0.0});
        EXPECT_EQ(text.size(), 60u);
        expect_greedy_text(*small, prompt, text, setting);
    }
}

/// Prompts as long as the context, longer and shorter. There are more texts than the kernels' 8 rows at
/// first, and fewer later, because texts end at different times.
TEST_P(TokenStepsOnCuda, GreedyTextsOfABatchEqualThoseWithoutACache) {
    const auto small = model(DType::f32);
    Texts prompts;
    for (const std::int32_t length : {5, 1, 12, 30, 5, 2, 11, 13, 7, 3, 1}) {
        auto& one = prompts.emplace_back();
        for (std::int32_t i = 0; i < length; ++i) one.push_back((7 * i * i + 3 * length + i) % 40);
    }
    std::vector<TokenRequest> requests;
    for (const auto& one : prompts) requests.push_back({one, 0});
    for (const char* setting : {"on", "off"})
        for (const std::int64_t batch : {1, 3, 11}) {
            const GraphSetting graphs(setting);
            Texts texts(prompts.size());
            sample_token_batch(*small, requests, {.tokens = 40, .temperature = 0.0}, batch,
                               {.on_token = [&](std::size_t i, std::int32_t token) {
                                   texts[i].push_back(token);
                                   return texts[i].size() < 20 + 3 * i;
                               }});
            for (std::size_t i = 0; i < prompts.size(); ++i) {
                EXPECT_EQ(texts[i].size(), std::min<std::size_t>(40, 20 + 3 * i));
                expect_greedy_text(*small, prompts[i], texts[i], concat(setting, ", batch ", batch));
            }
        }
}

/// The steps' logits are equal to the bit with and without a graph. In every dtype they are as accurate as
/// logits from passes without fused kernels; both are compared with float64 and the same weights.
TEST_P(TokenStepsOnCuda, LogitsAreAsAccurateAsThoseOfPasses) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
        if (!attention::supports(Device::cuda(), dtype)) continue;
        const auto small = model(dtype);
        const ModelConfig& config = small->transformer.config;
        LanguageModel exact(Context(Device::cpu(), 2), config, DType::f64, std::nullopt, FlatOptions{}, {},
                            GetParam().adapters);
        const auto rounded = test::stores_of(*small), stores = test::stores_of(exact);
        for (std::size_t n = 0; n < stores.size(); ++n)
            for (const Parameter& parameter : rounded[n]->parameters()) {
                const Tensor& value = parameter.value();
                copy(exact.ctx, stores[n]->find(parameter.name()).value(),
                     from_host(exact.ctx, to_host(small->ctx, value), value.shape(), DType::f64));
            }
        const auto logits_with = [&](const LanguageModel& of, const char* setting) {
            const GraphSetting graphs(setting);
            std::optional<EnvironmentSetting> separate_operators;
            if (std::string_view(setting) == "passes")
                separate_operators.emplace("GRADTILE_FUSED_LINEAR", "off");
            NextToken next(of);
            std::vector<std::int32_t> text(prompt.begin(), prompt.end());
            std::vector<double> all;
            for (std::int32_t i = 0; i < 30; ++i) {
                const std::vector<double> logits = test::logits_after(next, text);
                all.insert(all.end(), logits.begin(), logits.end());
                text.push_back((7 * i + 2) % 40);
            }
            return all;
        };
        const std::vector<double> graph = logits_with(*small, "on"), kernels = logits_with(*small, "off"),
                                  passes = logits_with(*small, "passes"), expected = logits_with(exact, "on");
        EXPECT_EQ(graph, kernels) << dtype;
        ASSERT_EQ(graph.size(), expected.size());
        double step_error = 0, pass_error = 0, largest = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
            step_error = std::max(step_error, std::abs(graph[i] - expected[i]));
            pass_error = std::max(pass_error, std::abs(passes[i] - expected[i]));
            largest = std::max(largest, std::abs(expected[i]));
        }
        // Steps and passes round equally often, so their errors have the same distribution. The largest of
        // 1,200 errors differs between two samples from this distribution, but by less than a factor of 3.
        // The comparison also fails for NaN.
        EXPECT_LE(step_error, 3 * pass_error + 4 * 0x1p-24 * largest) << dtype << ", largest " << largest;
    }
}

class TokenStepOnCuda : public test::CudaTest {
  protected:
    std::unique_ptr<LanguageModel> model = nullptr;
    void SetUp() override {
        test::CudaTest::SetUp();
        if (!IsSkipped())
            model = test::generation_model(test::generation_cases().front(), DType::bf16, gpu());
    }
    Context arena_for(std::int64_t slots) const {
        return generation_context(*model, [&](const Context& dry) {
            const KeyValueCache cache(dry, model->transformer.config, DType::bf16, slots);
            TokenStep::plan(dry, *model, cache, slots);
        });
    }
    static std::vector<TokenStep::Input> inputs_of(std::int64_t texts, std::int64_t position) {
        std::vector<TokenStep::Input> inputs;
        for (std::int64_t i = 0; i < texts; ++i)
            inputs.push_back({.slot = i,
                              .position = position,
                              .token = static_cast<std::int32_t>((5 * i + 3 * position) % 40)});
        return inputs;
    }
};

TEST_F(TokenStepOnCuda, ASecondStepOfANumberOfTextsIsCaptured) {
    const KeyValueCache cache(gpu(), model->transformer.config, DType::bf16, 4);
    TokenStep step(arena_for(4), *model, cache, 4);
    for (const std::int64_t texts : {4, 2}) {
        step.logits(inputs_of(texts, 0));
        EXPECT_FALSE(step.graph(texts).captured());
        step.most_likely(inputs_of(texts, 1));
        EXPECT_TRUE(step.graph(texts).captured());
        // The graph's nodes: two copies; the token rows, the position rows and their sum; five kernels for
        // each layer; the head and the most likely token.
        EXPECT_EQ(step.graph(texts).nodes(), 2 + 3 + 5 * model->transformer.blocks.size() + 2);
        const auto logits = step.logits(inputs_of(texts, 2));
        const auto most_likely = step.most_likely(inputs_of(texts, 2));
        ASSERT_EQ(most_likely.size(), logits.size());
        for (std::size_t i = 0; i < logits.size(); ++i)
            EXPECT_EQ(most_likely[i], std::ranges::max_element(logits[i]) - logits[i].begin());
    }
    EXPECT_THAT(message_of([&] { step.logits(inputs_of(5, 3)); }), HasSubstr("5 texts; expected 1 to 4"));
}

/// The system's allocator cannot be used during a capture.
TEST_F(TokenStepOnCuda, GenerationGoesOnWhenAStepCannotBeCaptured) {
    const auto run = [&](const Context& ctx, bool is_captured) {
        const KeyValueCache cache(gpu(), model->transformer.config, DType::bf16, 2);
        TokenStep step(ctx, *model, cache, 2);
        std::vector<std::vector<double>> all;
        testing::internal::CaptureStderr();
        for (std::int64_t position = 0; position < 5; ++position)
            for (auto& logits : step.logits(inputs_of(2, position))) all.push_back(logits);
        const std::string lines = testing::internal::GetCapturedStderr();
        EXPECT_EQ(step.graph(2).captured(), is_captured);
        EXPECT_EQ(lines.find("a token is not replayed as a CUDA graph: ") == 0, !is_captured) << lines;
        EXPECT_EQ(std::ranges::count(lines, '\n'), is_captured ? 0 : 1) << lines;
        return all;
    };
    EXPECT_EQ(run(gpu().with_deterministic(true), false), run(arena_for(2), true));
}

TEST_F(TokenStepOnCuda, ALogitThatIsNotFiniteIsAnError) {
    fill(gpu(), model->transformer.norm_f.weight.value(), std::numeric_limits<double>::infinity());
    NextToken next(*model);
    const std::array<std::int32_t, 1> text{3};
    EXPECT_THAT(message_of([&] {
                    next.most_likely(std::array{NextToken::Text{0, text}});
                }),
                HasSubstr("is not finite"));
}

}  // namespace
}  // namespace gradtile
