// Adapters with --zero: processes that divide the frozen weights, and the state of the adapters, train as
// processes that do not.
#include "data_parallel_training.h"

namespace gradtile::test {
namespace {

class ZeroWithAdapters : public DataParallelTraining {
  protected:
    void SetUp() override {
        DataParallelTraining::SetUp();
        base_ = train(1, shape_);
    }
    std::filesystem::path adapt(int ranks, const Arguments& flags) {
        return train(
            ranks,
            shape_ + Arguments{"--init-from", base_.string(), "--lora-rank", "4", "--lr", "1e-2"} + flags);
    }

    const Arguments shape_ = {"--layers", "3", "--tokenizer", "bytes", "--batch", "12"};
    std::filesystem::path base_;
};

struct AdaptedRun {
    int ranks;
    Arguments settings;
};

/// ZeRO-3 gathers the frozen weights that ZeRO-2 has. Evaluations, samples and saves leave them as they were.
TEST_F(ZeroWithAdapters, LevelsAreBitIdentical) {
    const Arguments narrow = {"--dtype", "bf16", "--masters", "split", "--frozen-dtype", "int8"};
    const Arguments muon = {"--optimizer", "muon", "--lora-on", "attn", "--recompute", "block"};
    const Arguments nf4 = {"--frozen-dtype", "nf4", "--moment-dtype", "int8", "--dropout", "0.1"};
    for (const auto& [ranks, settings] :
         std::initializer_list<AdaptedRun>{{2, {"--micro-batch", "2"}}, {3, narrow}, {3, muon}, {4, nf4}}) {
        SCOPED_TRACE(concat(ranks, " processes, ", settings.front(), ' ', settings.back()));
        const Arguments flags = settings + Arguments{"--stop-after", "12", "--eval-every",   "4",
                                                     "--save-every", "5",  "--sample-every", "5"};
        const auto two = adapt(ranks, flags + Arguments{"--zero", "2"}),
                   three = adapt(ranks, flags + Arguments{"--zero", "3"}),
                   parts = adapt(ranks, flags + Arguments{"--zero", "3", "--checkpoint-parts"});
        ASSERT_EQ(steps_of(three).size(), 12u);
        EXPECT_EQ(steps_of(two), steps_of(three));
        EXPECT_EQ(tensors_of(two), tensors_of(three));
        EXPECT_EQ(tensors_of(two), tensors_of(parts));
        // The norm of other shards is summed in another order.
        const Arguments unclipped = settings + Arguments{"--stop-after", "12", "--clip", "0"} +
                                    Arguments{"--micro-batch", concat(12 / ranks)};
        const auto zero = adapt(ranks, unclipped);
        for (const char* level : {"1", "3"}) {
            const auto sharded = adapt(ranks, unclipped + Arguments{"--zero", level, "--checkpoint-parts"});
            expect_equal_losses(zero, sharded, 12);
            EXPECT_EQ(tensors_of(zero), tensors_of(sharded)) << "zero " << level;
        }
    }
}

TEST_F(ZeroWithAdapters, ResumeAtAnotherLevelToTheBit) {
    for (const auto& [format, optimizer] : {std::pair{"same", "muon"}, {"nf4", "adamw"}}) {
        const Arguments flags = {"--clip",         "0",    "--dtype",     "bf16",
                                 "--frozen-dtype", format, "--optimizer", optimizer};
        const auto uninterrupted = adapt(2, flags);
        const auto out = adapt(2, flags + Arguments{"--zero", "3", "--stop-after", "10"});
        resume(out, 2, {"--zero", "0", "--stop-after", "20"});
        resume(out, 2, {"--zero", "3", "--stop-after", "30", "--checkpoint-parts"});
        resume(out, 2, {"--zero", "1", "--stop-after", "40"});
        resume(out, 2, {"--zero", "3", "--stop-after", "50"});
        EXPECT_EQ(tensors_of(out), tensors_of(uninterrupted));
        expect_equal_losses(out, uninterrupted, 50);
    }
}

TEST_F(ZeroWithAdapters, ResumeWithAnotherNumberOfProcesses) {
    for (const char* format : {"same", "nf4"}) {
        const Arguments flags = {"--frozen-dtype", format};
        const auto one_process = adapt(1, flags);
        const auto out = adapt(3, flags + Arguments{"--zero", "3", "--stop-after", "15"});
        resume(out, 4, {"--stop-after", "25", "--checkpoint-parts"});
        resume(out, 2, {"--stop-after", "35", "--zero", "2"});
        resume(out, 1, {"--zero", "0", "--no-checkpoint-parts"});
        expect_same_curve(one_process, out);
    }
}

/// A checkpoint in parts is merged, exported and sampled as a whole one.
TEST_F(ZeroWithAdapters, ExportsAndSamplesAreThoseOfAWholeCheckpoint) {
    for (const char* format : {"same", "int8"}) {
        const Arguments flags = {"--frozen-dtype", format, "--stop-after", "12", "--zero"};
        const auto whole = adapt(2, flags + Arguments{"2"}),
                   parts = adapt(2, flags + Arguments{"3", "--checkpoint-parts"});
        std::vector<std::string> samples, exports;
        for (const auto& out : {whole, parts}) {
            const Outcome sampled = run({"sample", out.string(), "--prompt", "The ", "--seed", "3"});
            EXPECT_EQ(sampled.exit_code, 0) << sampled.err;
            samples.push_back(sampled.out);
            const std::filesystem::path folder = out.string() + "-exported";
            EXPECT_EQ(run({"export", out.string(), "--out", folder.string()}).exit_code, 0);
            exports.push_back(contents_of(folder / "model.safetensors"));
        }
        EXPECT_FALSE(samples[0].empty());
        EXPECT_FALSE(exports[0].empty());
        EXPECT_EQ(samples[0], samples[1]);
        EXPECT_TRUE(exports[0] == exports[1]);
    }
}

/// One process has no shards.
TEST_F(ZeroWithAdapters, OneProcessTrainsWithEveryLevel) {
    const auto plain = adapt(1, {"--stop-after", "6"});
    for (const char* zero : {"1", "2", "3"})
        EXPECT_EQ(tensors_of(adapt(1, {"--stop-after", "6", "--zero", zero})), tensors_of(plain)) << zero;
}

TEST_F(ZeroWithAdapters, CopiesOfShardsAreRefused) {
    const Outcome outcome = run(
        training(place_ / "refused") + shape_ +
        Arguments{"--init-from", base_.string(), "--lora-rank", "4", "--zero", "3", "--shard-copies", "1"});
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_NE(outcome.err.find("shard-copies: 1 with lora-rank"), std::string::npos) << outcome.err;
    EXPECT_FALSE(exists(place_ / "refused"));
}

}  // namespace
}  // namespace gradtile::test
