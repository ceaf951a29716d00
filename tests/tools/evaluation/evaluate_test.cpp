// The loss over a token sequence.
#include <gradtile/tools/evaluation/evaluate.h>

#include <gtest/gtest.h>

#include <gradtile/core/allocator.h>
#include <gradtile/train/data/examples.h>

namespace gradtile {
namespace {

std::unique_ptr<LanguageModel> byte_model(std::int64_t context, DType dtype) {
    auto model = std::make_unique<LanguageModel>(
        Context(Device::cpu(), 1),
        as_llama({.layers = 1, .heads = 2, .width = 16, .context = context, .vocabulary = 256}), dtype,
        Tokenizer::bytes());
    model->parameters.initialize(model->ctx, Seed{4});
    return model;
}

TokenSequence text_of(const std::string& text) {
    return TokenSequence::from_bytes(text, "text");
}

/// The full context would need 1 GiB for a single model activation, and for the position angles.
TEST(Evaluate, ATextShorterThanTheContextTakesMemoryForItsTokensOnly) {
    const auto model = byte_model(16'777'216, DType::f32), small = byte_model(9, DType::f32);
    const Context ctx =
        model->ctx.with_allocator(std::make_shared<Arena>(Device::cpu(), std::size_t{1} << 20));
    const Evaluation result = evaluate(ctx, *model, text_of("ten tokens"));
    EXPECT_EQ(result.targets, 9);
    EXPECT_EQ(result.loss, evaluate(*small, text_of("ten tokens")).loss);
}

TEST(Evaluate, TheLastWindowTakesMemoryForItsTokensOnly) {
    const auto model = byte_model(16, DType::f64);
    const TokenSequence all = text_of("the first window and a few tokens after it");
    const double full = evaluate(*model, all, {.batch = 4}).loss;
    EXPECT_NEAR(evaluate(*model, all, {.batch = 1}).loss, full, 1e-12);
    EXPECT_NEAR(evaluate(*model, all, {.batch = 2}).loss, full, 1e-12);
}

/// A short conversation takes a short row, also beside a long one in another batch.
TEST(Evaluate, ExamplesOfDifferentLengthsHaveTheSameLossInAnyBatch) {
    const auto model = byte_model(64, DType::f64);
    std::vector<std::int32_t> ids;
    Examples examples;
    for (const int length : {3, 40, 5, 64, 2, 90, 7}) {
        for (int i = 0; i < length; ++i) {
            ids.push_back((7 * length + i * i) % 256);
            examples.is_target.push_back(i > 0 && i % 3 != 0);
        }
        examples.begins.push_back(std::ssize(ids));
    }
    for (const bool packed : {false, true}) {
        const Packing packing = packed ? Packing{{.kind = DocumentRule::Kind::examples}, 3} : Packing{};
        const TokenSequence tokens = TokenSequence::from_examples(ids, examples, "examples");
        const Evaluation full = evaluate(*model, tokens, {.batch = 20, .packing = packing});
        for (const std::int64_t batch : {1, 2, 3}) {
            const Evaluation parts = evaluate(*model, tokens, {.batch = batch, .packing = packing});
            EXPECT_EQ(parts.targets, full.targets);
            EXPECT_NEAR(parts.loss, full.loss, 1e-12) << batch << (packed ? " packed" : "");
        }
    }
}

}  // namespace
}  // namespace gradtile
