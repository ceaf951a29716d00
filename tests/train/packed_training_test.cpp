// Training on packed documents.
#include <gradtile/train/trainer.h>

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tiny_run.h"

#include <gradtile/core/tensor_ops.h>
#include <gradtile/tools/evaluation/evaluate.h>
#include <gradtile/train/data/token_file.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using test::TinyRun;
using testing::HasSubstr;

/// Each line of the text is a document. The run's first window contains several documents. The first step's
/// loss must equal the loss computed for the documents one by one.
TEST(Trainer, PackedTrainsOnDocumentsAsIfEachWereAlone) {
    TinyRun run;
    run.config.out = "";
    run.config.packed = true;
    run.config.document_token = 0;
    run.config.model.context = 48;
    run.config.steps = 1;
    Trainer trainer(run.config, run.on_message);
    const LanguageModel& model = trainer.model();
    // The same batch as the trainer's first one, from another loader.
    const std::vector<std::int32_t> ids = model.tokenizer->encode(test::some_text(2000), "text");
    const auto kept = static_cast<std::size_t>(0.9 * static_cast<double>(ids.size()));
    const Packing packing = packing_of(trainer.config(), model.tokenizer);
    DataLoader loader(TokenSequence({ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept)}, "text"),
                      {.context = 48, .seed = {run.config.seed}, .packing = packing});
    const Context ctx(Device::cpu(), 1);
    const Batch batch = empty_batch(ctx, 4, 48, packing);
    const auto counted = static_cast<double>(loader.next(batch));
    const auto* const offsets = batch.documents.offsets.data<std::int32_t>();
    const Tensor tokens = batch.tokens.reshape({4 * 48}), targets = batch.targets.reshape({4 * 48});
    double loss = 0;
    int documents = 0;
    for (std::int64_t d = 0; d + 1 < batch.documents.offsets.size(0); ++d) {
        const std::int64_t length = offsets[d + 1] - offsets[d];
        if (length == 0) continue;
        const auto part = [&](const Tensor& x) {
            return x.slice(0, offsets[d], length).reshape({1, length});
        };
        loss += item(ctx, model.transformer.evaluate(ctx, part(tokens), part(targets)).slice(0, 0, 1));
        ++documents;
    }
    EXPECT_GT(documents, 8);
    std::optional<StepReport> first;
    trainer.on_step([&](const StepReport& report) { first = report; });
    trainer.run();
    // The two losses differ by well below 1e3 roundings.
    const double bound = 1e3 * std::numeric_limits<float>::epsilon();
    EXPECT_NEAR(first->loss, loss / counted, bound * loss / counted);
}

TEST(Trainer, PackedNeedsToKnowWhereDocumentsBegin) {
    TinyRun run;
    run.config.out = "";
    run.config.packed = true;
    write_token_file((run.directory / "tokens.bin").string(), TokenFormat::headerless,
                     std::vector<std::int32_t>(500, 3));
    run.config.data = (run.directory / "tokens.bin").string();
    EXPECT_THAT(message_of([&] { Trainer(run.config, run.on_message); }),
                HasSubstr("packed: it is not known where documents begin"));
    run.config.document_token = 3;
    EXPECT_EQ(message_of([&] { Trainer(run.config, run.on_message); }), "no error");
}

/// A shard's format tells which token begins a document; the run records this token.
TEST(Trainer, PackedTakesTheSeparatorOfShards) {
    TinyRun run;
    run.config.out = "";
    run.config.packed = true;
    run.config.data = (run.directory / "shard.bin").string();
    write_token_file(run.config.data, TokenFormat::gpt2_shard, std::vector<std::int32_t>(500, 3));
    EXPECT_EQ(Trainer(run.config, run.on_message).config().document_token, 50256);
}

TEST(Trainer, PackedSaysWhenNoTokenBeginsADocument) {
    TinyRun run;
    run.config.out = "";
    run.config.packed = true;
    run.config.data = (run.directory / "shard.bin").string();
    std::vector<std::int32_t> tokens(500, 3);
    const auto messages = [&] {
        write_token_file(run.config.data, TokenFormat::gpt2_shard, tokens);
        std::string all;
        Trainer(run.config, [&](const std::string& line) { all += line + "\n"; });
        return all;
    };
    EXPECT_THAT(messages(),
                HasSubstr("packed: documents begin at token 50256; the first 450 training tokens, "
                          "29 windows, are one document"));
    tokens[7] = 50256;
    EXPECT_THAT(messages(), testing::Not(HasSubstr("documents begin")));
}

/// Shards that `gradtile tokenize` wrote with a small tokenizer have another separator than GPT-2's 50256.
TEST(Trainer, RefusesIdsThatNoTokenHas) {
    TinyRun run;
    run.config.out = "";
    run.config.data = (run.directory / "shard.bin").string();
    run.config.model.vocabulary = 400;
    write_token_file(run.config.data, TokenFormat::gpt2_shard, std::vector<std::int32_t>(500, 3));
    const auto message = [&] { return message_of([&] { Trainer(run.config, run.on_message); }); };
    EXPECT_EQ(message(), "no error");
    run.config.packed = true;
    EXPECT_THAT(message(), HasSubstr("packed: documents would begin at token 50256, which the vocabulary of "
                                     "400 does not have"));
    run.config.document_token = 400;
    EXPECT_THAT(message(), HasSubstr("token 400"));
    run.config.document_token = 399;
    EXPECT_EQ(message(), "no error");
    run.config.ignore_token = 400;
    EXPECT_THAT(message(), HasSubstr("ignore-token: 400; expected -1 or an id"));
}

/// `gradtile eval` divides the text into documents at blank lines, as training does.
TEST(Trainer, PackedEvaluatesAsItTrains) {
    TinyRun run;
    std::string text;
    for (int i = 0; i < 150; ++i) text += "the cat sat\n\non the mat. a dog\n ran\n\n\nthe end. ";
    run.config.data = run.directory.write("blank.txt", text);
    run.config.packed = true;
    run.config.steps = 10;
    Trainer trainer(run.config, run.on_message);
    const RunSummary summary = trainer.run();
    const auto model = load_model(summary.checkpoint);
    EXPECT_EQ(model->packing.rule.kind, DocumentRule::Kind::blank_lines);
    const std::vector<std::int32_t> ids = model->tokenizer->encode(text, "text");
    const auto kept = static_cast<std::ptrdiff_t>(0.9 * static_cast<double>(ids.size()));
    const TokenSequence validation({ids.begin() + kept, ids.end()}, "text");
    const double packed = evaluate(*model, validation, {.packing = model->packing}).loss;
    ASSERT_TRUE(summary.val_loss);
    EXPECT_NEAR(packed, *summary.val_loss, 1e-5 * packed);
    EXPECT_GT(std::abs(evaluate(*model, validation).loss - packed), 1e-3);
}

}  // namespace
}  // namespace gradtile
