// Runs that start with the weights of a checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tiny_run.h"

#include <gradtile/train/trainer.h>

#include <support/error_message.h>

namespace gradtile {
namespace {

using test::message_of;
using test::TinyRun;
using testing::HasSubstr;

TEST(InitFrom, TakesWeightsAndANewOptimizer) {
    TinyRun run;
    { Trainer(run.config, run.on_message).run(); }
    TrainConfig next = run.config;
    next.init_from = run.config.out;
    next.out = (run.directory / "next").string();
    next.dtype = TrainDType::bf16;
    const Trainer tuned(next, run.on_message);
    EXPECT_EQ(tuned.step(), 0);
    const auto model = load_model(run.config.out);
    EXPECT_EQ(to_host(tuned.model().ctx, tuned.model().parameters.master()),
              to_host(model->ctx, model->parameters.values()));
    for (const StateTensor& part : tuned.optimizer().state())
        for (const double value : to_host(tuned.model().ctx, part.tensor)) ASSERT_EQ(value, 0.0);
}

TEST(InitFrom, RefusesTextForAModelWithoutATokenizer) {
    TinyRun run;
    std::string ids;  // uint16, little-endian
    for (int i = 0; i < 2000; ++i) ids += {static_cast<char>(i * i % 250), '\0'};
    TrainConfig first = run.config;
    first.data = run.directory.write("train.bin", ids);
    first.model.vocabulary = 256;
    { Trainer(first, run.on_message).run(); }
    TrainConfig next = run.config;
    next.model.vocabulary = 256;
    next.init_from = first.out;
    next.out = (run.directory / "next").string();
    EXPECT_EQ(message_of([&] { Trainer(next, run.on_message); }),
              next.data + ": is text, but the model was trained on token files and has no tokenizer");
    EXPECT_FALSE(exists(run.directory / "next"));
    // A tokenizer that the user chooses gives the ids their text.
    next.tokenizer = "bytes";
    EXPECT_EQ(Trainer(next, run.on_message).model().tokenizer->kind(), TokenizerKind::bytes);
    next.tokenizer = "characters";
    next.data = first.data;
    EXPECT_FALSE(Trainer(next, run.on_message).model().tokenizer.has_value());
}

TEST(InitFrom, RecordsTheCheckpointsTokenizer) {
    TinyRun run;
    run.config.tokenizer = "bytes";
    { Trainer(run.config, run.on_message).run(); }
    TrainConfig next = run.config;
    next.model.vocabulary = 256;
    next.init_from = run.config.out;
    next.out = (run.directory / "next").string();
    next.tokenizer = TrainConfig().tokenizer;
    EXPECT_EQ(Trainer(next, run.on_message).config().tokenizer, "bytes");
    EXPECT_THAT(run.messages,
                testing::ElementsAre("the checkpoint's tokenizer is used: bytes, not characters"));
    next.tokenizer = "bytes";
    EXPECT_EQ(Trainer(next, run.on_message).config().tokenizer, "bytes");
}

TEST(InitFrom, NamesTheFirstParameterThatDiffers) {
    TinyRun run;
    { Trainer(run.config, run.on_message).run(); }
    TrainConfig wider = run.config;
    wider.init_from = run.config.out;
    wider.out = (run.directory / "wider").string();
    wider.model.width = 64;
    EXPECT_THAT(message_of([&] { Trainer(wider, run.on_message); }),
                HasSubstr("parameter 'wte.weight' is ["));
    TrainConfig deeper = wider;
    deeper.model = run.config.model;
    deeper.model.layers = 3;
    EXPECT_THAT(message_of([&] { Trainer(deeper, run.on_message); }), HasSubstr("has no parameter 'h.2."));
    EXPECT_FALSE(exists(run.directory / "wider"));
}

}  // namespace
}  // namespace gradtile
