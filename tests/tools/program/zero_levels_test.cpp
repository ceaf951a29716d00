// ZeRO: processes that divide the optimizer's state, gradients and values train as processes that do not.
#include "data_parallel_training.h"

namespace gradtile::test {
namespace {

TEST_F(DataParallelTraining, ShardedHasTheLossCurveOfOneProcess) {
    const auto one_process = train(1);
    const auto bf16 = train(2, {"--dtype", "bf16"});
    for (const char* zero : {"1", "2", "3"}) {
        SCOPED_TRACE(concat("zero ", zero));
        for (const int ranks : {2, 4}) expect_same_curve(one_process, train(ranks, {"--zero", zero}));
        expect_same_curve(one_process, train(2, {"--zero", zero, "--micro-batch", "1"}));
        expect_same_curve(bf16, train(2, {"--dtype", "bf16", "--zero", zero}), 2e-3);
    }
}

struct ShardedRun {
    int ranks;
    const char* optimizer;
    Arguments settings;
};

/// Models and formats with different buckets, owners and orders in which gradients are complete.
std::vector<ShardedRun> sharded_runs() {
    const Arguments tied = {"--tied-head", "--sample-every", "5", "--tokenizer", "bytes"},
                    untied = {"--no-tied-head", "--vocabulary", "71"};
    const Arguments records = {"--x0-lambdas", "--value-embeddings", "--attention-gate", "--embedding-norm",
                               "--sinks"};
    const Arguments llama = {"--positions", "rope",    "--norm",    "rms",         "--qk-norm",  "--kv-heads",
                             "1",           "--sinks", "--no-bias", "--recompute", "activations"};
    const Arguments narrow = {"--dtype", "bf16", "--masters", "split", "--moment-dtype", "int8"};
    const Arguments recomputed = {"--recompute", "block", "--dropout", "0.1"};
    const Arguments rounded = {"--dtype", "bf16", "--dropout", "0.1", "--moment-dtype", "bf16"};
    const Arguments packed = {"--packed", "--document-token", "10", "--tokenizer", "bytes"};
    const Arguments shared = {"--context-parallel", "2", "--positions", "rope"};
    return {{2, "adamw", tied},    {4, "adamw", untied}, {3, "adamw", records}, {4, "muon", records},
            {2, "adamw", llama},   {2, "lion", narrow},  {3, "muon", narrow},   {2, "muon", recomputed},
            {3, "adamw", rounded}, {4, "lion", packed},  {4, "adamw", shared}};
}

TEST_F(DataParallelTraining, ZeroLevelsAreBitIdentical) {
    for (const auto& [ranks, optimizer, settings] : sharded_runs()) {
        SCOPED_TRACE(concat(optimizer, " with ", settings.front(), ", ", ranks, " processes"));
        const Arguments flags =
            Arguments{"--optimizer", optimizer, "--batch", "12", "--stop-after", "12", "--layers", "3"} +
            settings;
        // The same sums reach the same owners. Other shards sum the norm in another order, and with several
        // micro-steps the gradients.
        const Arguments plain = flags + Arguments{"--clip", "0"};
        const auto one = train(ranks, plain + Arguments{"--zero", "1"}),
                   two = train(ranks, plain + Arguments{"--zero", "2"});
        expect_equal_losses(one, two, 12);
        EXPECT_EQ(tensors_of(one), tensors_of(two));
        // ZeRO-3 gathers the values that ZeRO-2 has, and sums gradients in its order. Evaluations, samples
        // and saves leave the values as they were.
        const Arguments clipped =
            flags + Arguments{"--micro-batch", "1", "--eval-every", "4", "--save-every", "5"};
        const auto whole = train(ranks, clipped + Arguments{"--zero", "2"}),
                   gathered = train(ranks, clipped + Arguments{"--zero", "3"});
        ASSERT_EQ(steps_of(gathered).size(), 12u);
        EXPECT_EQ(steps_of(whole), steps_of(gathered));
        EXPECT_EQ(tensors_of(whole), tensors_of(gathered));
    }
}

/// Every level then sums each micro-step's slots in one order, and rounds an element with draws that depend
/// on its place alone.
TEST_F(DataParallelTraining, SumsInBfloat16AreBitIdenticalAtEveryZeroLevel) {
    const Arguments narrow = {"--dtype", "bf16", "--masters", "split", "--moment-dtype", "int8"};
    const Arguments records = {"--x0-lambdas", "--value-embeddings", "--dropout", "0.1"};
    for (const auto& [ranks, optimizer, micro_batch, variant] :
         {std::tuple{2, "adamw", "1", narrow}, {3, "muon", "2", records}, {4, "lion", "3", Arguments()}}) {
        SCOPED_TRACE(concat(optimizer, ", ", ranks, " processes"));
        const Arguments flags =
            Arguments{"--optimizer", optimizer, "--gradient-dtype", "bf16", "--clip", "0", "--batch", "12"} +
            Arguments{"--micro-batch", micro_batch, "--steps", "12", "--layers", "3", "--save-every", "4"} +
            variant;
        const auto full = train(ranks, flags);
        for (const char* zero : {"1", "2", "3"}) {
            const auto sharded = train(ranks, flags + Arguments{"--zero", zero, "--stop-after", "5"});
            resume(sharded, ranks);
            expect_equal_losses(full, sharded, 12);
            EXPECT_EQ(tensors_of(full), tensors_of(sharded)) << "zero " << zero;
        }
    }
}

/// Another number of processes divides a step's sequences into other micro-steps, whose sums are rounded.
TEST_F(DataParallelTraining, SumsInBfloat16HaveTheLossCurveOfOneProcess) {
    const Arguments flags = {"--gradient-dtype", "bf16"};
    const auto one_process = train(1, flags);
    for (const int ranks : {2, 4}) expect_same_curve(one_process, train(ranks, flags), 2e-3);
    expect_same_curve(one_process, train(1, flags + Arguments{"--micro-batch", "1"}), 2e-3);
    expect_same_curve(one_process, train(1), 2e-3);
}

/// Without clipping each level's step is that of the others to the bit, so the levels may take turns.
TEST_F(DataParallelTraining, ResumesWithAnotherZeroLevelToTheBit) {
    for (const Arguments& kind : {Arguments{"adamw"}, {"muon", "--dtype", "bf16", "--masters", "split"}}) {
        const Arguments flags = Arguments{"--clip", "0", "--optimizer"} + kind;
        const auto uninterrupted = train(2, flags);
        const auto out = train(2, flags + Arguments{"--zero", "2", "--stop-after", "10"});
        for (const auto& [zero, stop_after] : {std::pair{"0", "20"}, {"3", "30"}, {"1", "40"}, {"3", "50"}})
            resume(out, 2, {"--zero", zero, "--stop-after", stop_after});
        EXPECT_EQ(tensors_of(out), tensors_of(uninterrupted));
        expect_equal_losses(out, uninterrupted, 50);
    }
}

/// Each matrix is updated whole by its owner, with the same sums as in an unsharded run. Clipping is off,
/// because its norm is summed in another order.
TEST_F(DataParallelTraining, ShardedMuonIsBitIdenticalToUnsharded) {
    const Arguments normuon = {"--muon-split", "--muon-beta2", "0.9", "--cautious-decay"};
    const Arguments rounded = {"--moment-dtype", "bf16"}, in_8_bits = {"--moment-dtype", "int8"},
                    split = {"--masters", "split"};
    for (const auto& [dtype, ranks, variant] : {std::tuple{"f32", 3, Arguments()},
                                                {"bf16", 2, Arguments()},
                                                {"f32", 2, normuon},
                                                {"bf16", 3, rounded},
                                                {"f32", 3, in_8_bits},
                                                {"bf16", 3, split}}) {
        const Arguments flags = Arguments{"--optimizer",  "muon",
                                          "--clip",       "0",
                                          "--batch",      "12",
                                          "--dtype",      dtype,
                                          "--stop-after", "12",
                                          "--dropout",    "0.1",
                                          "--sinks",      "--attention-dropout",
                                          "0.1"} +
                                variant;
        const auto full = train(ranks, flags), sharded = train(ranks, flags + Arguments{"--zero", "1"});
        expect_equal_losses(full, sharded, 12);
        EXPECT_EQ(tensors_of(full), tensors_of(sharded)) << dtype << ", " << ranks << " processes";
    }
}

/// A save gathers the state in the gradients' memory, and a resume distributes it. Neither may leave
/// anything in the gradients' padding, which the gradient norm and blocks of moments include.
TEST_F(DataParallelTraining, SavesAndResumesOfAShardedStateChangeNoLaterStep) {
    const Arguments rounded = {"--moment-dtype", "bf16"}, in_8_bits = {"--moment-dtype", "int8"},
                    split = {"--dtype", "bf16", "--masters", "split"}, sums = {"--gradient-dtype", "bf16"};
    for (const auto& [optimizer, zero, variant] : {std::tuple{"adamw", "1", Arguments()},
                                                   {"adamw", "1", rounded},
                                                   {"adamw", "1", in_8_bits + split},
                                                   {"lion", "1", in_8_bits},
                                                   {"muon", "1", in_8_bits},
                                                   {"adamw", "2", in_8_bits + split},
                                                   {"lion", "2", Arguments()},
                                                   {"muon", "2", in_8_bits},
                                                   {"adamw", "1", split + sums},
                                                   {"adamw", "3", in_8_bits + split + sums},
                                                   {"adamw", "3", in_8_bits + split},
                                                   {"lion", "3", Arguments()},
                                                   {"muon", "3", in_8_bits}}) {
        const Arguments flags =
            Arguments{"--optimizer", optimizer, "--zero", zero, "--steps", "7", "--eval-every", "0"} +
            variant;
        const auto unsaved = train(2, flags + Arguments{"--save-every", "0"}),
                   saved = train(2, flags + Arguments{"--save-every", "2"}),
                   resumed = train(2, flags + Arguments{"--save-every", "0", "--stop-after", "3"});
        resume(resumed, 2);
        EXPECT_TRUE(tensors_of(saved) == tensors_of(unsaved)) << optimizer;
        EXPECT_TRUE(tensors_of(resumed) == tensors_of(unsaved)) << optimizer;
        const auto in_parts = train(2, flags + Arguments{"--save-every", "2", "--checkpoint-parts"});
        EXPECT_TRUE(tensors_of(in_parts) == tensors_of(unsaved)) << optimizer;
    }
}

/// Uses the bound for bfloat16 curves, because Newton-Schulz multiplies in bfloat16 on processors with such
/// instructions.
TEST_F(DataParallelTraining, MuonResumesWithAnotherNumberOfProcesses) {
    const Arguments muon = {"--optimizer", "muon", "--batch", "12"};
    const auto uninterrupted = train(1, muon);
    for (const char* zero : {"1", "2", "3"}) {
        const auto out = train(3, muon + Arguments{"--zero", zero, "--stop-after", "15"});
        for (const auto& [ranks, stop_after] : {std::pair{2, "30"}, {1, "50"}})
            resume(out, ranks, {"--stop-after", stop_after});
        expect_same_curve(uninterrupted, out, 2e-3);
    }
}

/// One process has no shards.
TEST_F(DataParallelTraining, OneProcessTrainsWithEveryZeroLevel) {
    const auto plain = train(1);
    for (const char* zero : {"1", "2", "3"})
        EXPECT_EQ(tensors_of(train(1, {"--zero", zero})), tensors_of(plain)) << zero;
}

}  // namespace
}  // namespace gradtile::test
