// Training with several processes equals training with one process: the same losses, the same data order, and
// checkpoints that any number of processes can resume.
#include <cmath>

#include <gtest/gtest.h>

#include "program.h"

#include <tiny_run.h>

#include <gradtile/core/allocator.h>
#include <gradtile/train/parallel/internal/mpi.h>

namespace gradtile::test {
namespace {

class DataParallelTraining : public testing::Test {
  protected:
    void SetUp() override {
        if (!mpi::is_available()) GTEST_SKIP() << "no MPI here";
        if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not in PATH";
        stories_ = write_stories(place_, 6'000);  // 50 steps are more than an epoch
    }
    /// The variables let Open MPI run as root and start more processes than cores.
    static ProcessOptions processes(int ranks) {
        ProcessOptions options;
        options.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                               {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                               {"OMPI_MCA_rmaps_base_oversubscribe", "1"}};
        if (ranks > 1) options.prefix = {"mpirun", "-np", std::to_string(ranks)};
        return options;
    }
    Arguments training(const std::filesystem::path& out) const {
        return tiny_training(stories_, out) + Arguments{"--batch", "8", "--steps", "50", "--quiet"};
    }
    std::filesystem::path train(int ranks, const Arguments& flags = {}) {
        const std::filesystem::path out = place_ / concat("run", runs_++);
        const Outcome outcome = run(training(out) + flags, processes(ranks));
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        return out;
    }
    /// `bound` is relative. Over 200 steps a float32 curve deviates 4e-7 from a float64 curve.
    static void expect_same_curve(const std::filesystem::path& a, const std::filesystem::path& b,
                                  double bound = 5e-6) {
        const auto a_steps = steps_of(a), b_steps = steps_of(b);
        ASSERT_EQ(a_steps.size(), 50u);
        ASSERT_EQ(b_steps.size(), 50u);
        for (std::size_t i = 0; i < a_steps.size(); ++i)
            for (const char* key : {"loss", "val_loss"}) {
                ASSERT_EQ(a_steps[i].contains(key), b_steps[i].contains(key));
                if (!a_steps[i].contains(key)) continue;
                const double x = a_steps[i][key].get<double>(), y = b_steps[i][key].get<double>();
                EXPECT_LE(std::abs(x - y), bound * std::abs(x)) << key << " of step " << i + 1;
            }
    }

    TemporaryDirectory place_;
    std::string stories_;
    int runs_ = 0;
};

/// Processes and micro-batches have different target counts.
TEST_F(DataParallelTraining, ConversationsHaveTheLossCurveOfOneProcess) {
    stories_ = place_.write("c.jsonl", some_conversations(70));
    const auto one_process = train(1);
    expect_same_curve(one_process, train(2));
    expect_same_curve(one_process, train(4, {"--micro-batch", "1"}));
    const Arguments packed{"--packed", "--context", "96", "--chat-template", "chatml"};
    expect_same_curve(train(1, packed), train(2, packed));
}

TEST_F(DataParallelTraining, PromptsHaveTheLossCurveOfOneProcess) {
    stories_ = place_.write("prompts.jsonl", some_shared_prompts(70));
    const Arguments prefix{"--prefix", "--context", "40"}, packed{"--packed", "--context", "64"};
    const auto one_process = train(1, prefix);
    expect_same_curve(one_process, train(2, prefix));
    expect_same_curve(one_process, train(4, prefix + Arguments{"--micro-batch", "1"}));
    expect_same_curve(train(1, packed), train(2, packed));
}

/// 50 steps are several epochs. Resumes begin inside blocks.
TEST_F(DataParallelTraining, AStreamHasTheLossCurveOfOneProcess) {
    const Arguments stream{"--data",          folder_of_rows((place_ / "rows").string(), some_rows(3'000)),
                           "--val-data",      stories_,
                           "--tokenizer",     "bytes",
                           "--stream-buffer", "20"};
    const auto one_process = train(1, stream);
    EXPECT_EQ(tensors_of(one_process), tensors_of(train(1, stream)));
    const auto two_processes = train(2, stream);
    expect_same_curve(one_process, two_processes);
    const auto out = train(2, stream + Arguments{"--stop-after", "23"});
    const Outcome resumed = run({"train", "--resume", out.string(), "--quiet"}, processes(2));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(tensors_of(out), tensors_of(two_processes)) << "to the bit";
    EXPECT_EQ(steps_of(out), steps_of(two_processes));
    const auto other = train(4, stream + Arguments{"--micro-batch", "1", "--stop-after", "31"});
    const Outcome with_one = run({"train", "--resume", other.string(), "--quiet"}, processes(1));
    EXPECT_EQ(with_one.exit_code, 0) << with_one.err;
    expect_same_curve(one_process, other);
}

TEST_F(DataParallelTraining, HasTheLossCurveOfOneProcess) {
    const auto one_process = train(1, {"--dropout", "0.1"});
    for (const int ranks : {2, 4}) expect_same_curve(one_process, train(ranks, {"--dropout", "0.1"}));
}

/// The processes begin with one sequence each, and resume with another number of processes in between.
TEST_F(DataParallelTraining, HasTheLossCurveOfOneProcessWhileTheBatchGrows) {
    const Arguments growing{"--batch-start",   "2",  "--batch-warmup", "30", "--window-start", "3",
                            "--window-warmup", "20", "--dropout",      "0.1"};
    const auto one_process = train(1, growing);
    const auto out = train(2, growing + Arguments{"--micro-batch", "2", "--stop-after", "20"});
    const Outcome resumed = run({"train", "--resume", out.string(), "--quiet"}, processes(1));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    expect_same_curve(one_process, out);
    EXPECT_EQ(steps_of(out).back()["tokens"], steps_of(one_process).back()["tokens"]);
}

/// The processes sum only the adapters' gradients. The base is broadcast at a start and at a resume.
TEST_F(DataParallelTraining, LoraHasTheLossCurveOfOneProcess) {
    const auto base = train(1);
    const Arguments lora = Arguments{"--init-from", base.string(), "--lora-rank", "4"} +
                           Arguments{"--lr", "1e-2", "--dropout", "0.1", "--frozen-dtype", "nf4"};
    const auto one_process = train(1, lora);
    expect_same_curve(one_process, train(2, lora));
    const auto out = train(4, lora + Arguments{"--micro-batch", "1", "--stop-after", "20"});
    const Outcome resumed = run({"train", "--resume", out.string(), "--quiet"}, processes(2));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    expect_same_curve(one_process, out);
    for (const char* zero : {"1", "2", "3"})
        expect_refused(
            run({"train", "--resume", out.string(), "--steps", "60", "--zero", zero}, processes(1)),
            {concat("zero: ", zero, " with lora-rank 4")});
}

TEST_F(DataParallelTraining, PackedHasTheLossCurveOfOneProcess) {
    const Arguments packed = {"--packed", "--document-token", "10", "--tokenizer", "bytes"};
    const auto one_process = train(1, packed);
    for (const int ranks : {2, 4}) expect_same_curve(one_process, train(ranks, packed));
    const Arguments with_dropout = packed + Arguments{"--attention-dropout", "0.2"};
    expect_same_curve(train(1, with_dropout), train(2, with_dropout + Arguments{"--micro-batch", "2"}));
}

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

/// The same sums reach the same owners, one bucket after the other. Clipping is off, because other shards sum
/// the norm in another order; with one micro-step no order of gradients' sums differs.
TEST_F(DataParallelTraining, ShardedGradientsAreBitIdenticalToWholeOnes) {
    const Arguments tied = {"--tied-head"}, untied = {"--no-tied-head", "--vocabulary", "71"};
    const Arguments records = {"--x0-lambdas", "--value-embeddings", "--attention-gate", "--embedding-norm"};
    const Arguments narrow = {"--dtype", "bf16", "--masters", "split", "--moment-dtype", "int8"};
    const Arguments recomputed = {"--recompute", "block", "--dropout", "0.1"};
    const Arguments packed = {"--packed", "--document-token", "10", "--tokenizer", "bytes"};
    const Arguments shared = {"--context-parallel", "2", "--positions", "rope"};
    for (const auto& [ranks, optimizer, variant] : {std::tuple{2, "adamw", tied},
                                                    {4, "adamw", untied},
                                                    {3, "adamw", records},
                                                    {2, "lion", narrow},
                                                    {4, "muon", records},
                                                    {3, "muon", narrow},
                                                    {2, "muon", recomputed},
                                                    {4, "lion", packed},
                                                    {4, "adamw", shared}}) {
        SCOPED_TRACE(concat(optimizer, " with ", variant.front(), ", ", ranks, " processes"));
        const Arguments flags = Arguments{"--optimizer", optimizer, "--clip", "0", "--batch", "12"} +
                                Arguments{"--stop-after", "12", "--layers", "3"} + variant;
        const auto one = train(ranks, flags + Arguments{"--zero", "1"}),
                   two = train(ranks, flags + Arguments{"--zero", "2"});
        ASSERT_EQ(steps_of(two).size(), 12u);
        for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(steps_of(one)[i]["loss"], steps_of(two)[i]["loss"]);
        EXPECT_EQ(tensors_of(one), tensors_of(two));
    }
}

/// ZeRO-3 gathers the values that ZeRO-2 has, and sums gradients in the same order, also over micro-steps and
/// with clipping. Evaluations in the middle, samples and saves leave the values as they were.
TEST_F(DataParallelTraining, ShardedValuesAreBitIdenticalToWholeOnes) {
    const Arguments tied = {"--tied-head", "--sample-every", "5", "--tokenizer", "bytes"},
                    untied = {"--no-tied-head", "--vocabulary", "71", "--micro-batch", "1"};
    const Arguments records = {"--x0-lambdas",
                               "--value-embeddings",
                               "--attention-gate",
                               "--embedding-norm",
                               "--sinks",
                               "--recompute",
                               "block",
                               "--micro-batch",
                               "1"};
    const Arguments llama = {"--positions", "rope",    "--norm",    "rms",         "--qk-norm",  "--kv-heads",
                             "1",           "--sinks", "--no-bias", "--recompute", "activations"};
    const Arguments narrow = {"--dtype", "bf16", "--masters", "split", "--moment-dtype", "int8"};
    const Arguments bf16 = {"--dtype", "bf16", "--moment-dtype", "bf16", "--sinks", "--micro-batch", "2"};
    const Arguments rounded = {"--dropout", "0.1", "--moment-dtype", "int8", "--micro-batch", "2"};
    const Arguments packed = {"--packed", "--document-token", "10", "--tokenizer", "bytes"};
    const Arguments shared = {"--context-parallel", "2", "--positions", "rope"};
    for (const auto& [ranks, optimizer, variant] : {std::tuple{2, "adamw", tied},
                                                    {4, "adamw", untied},
                                                    {3, "adamw", records},
                                                    {2, "adamw", llama},
                                                    {2, "lion", narrow},
                                                    {3, "adamw", bf16},
                                                    {4, "muon", records},
                                                    {3, "muon", narrow},
                                                    {2, "muon", rounded},
                                                    {2, "adamw", rounded},
                                                    {4, "lion", packed},
                                                    {4, "adamw", shared}}) {
        SCOPED_TRACE(concat(optimizer, " with ", variant.front(), ", ", ranks, " processes"));
        const Arguments flags = Arguments{"--optimizer", optimizer, "--batch", "12", "--eval-every", "4"} +
                                Arguments{"--save-every", "5", "--stop-after", "12", "--layers", "3"} +
                                variant;
        const auto two = train(ranks, flags + Arguments{"--zero", "2"}),
                   three = train(ranks, flags + Arguments{"--zero", "3"});
        ASSERT_EQ(steps_of(three).size(), 12u);
        EXPECT_EQ(steps_of(two), steps_of(three));
        EXPECT_EQ(tensors_of(two), tensors_of(three));
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
            EXPECT_EQ(run({"train", "--resume", sharded.string(), "--quiet"}, processes(ranks)).exit_code, 0);
            for (std::size_t i = 0; i < 12; ++i)
                EXPECT_EQ(steps_of(full)[i]["loss"], steps_of(sharded)[i]["loss"]) << "step " << i + 1;
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
        for (const auto& [zero, stop_after] : {std::pair{"0", "20"}, {"3", "30"}, {"1", "40"}, {"3", "50"}}) {
            const Outcome outcome = run(
                {"train", "--resume", out.string(), "--zero", zero, "--stop-after", stop_after, "--quiet"},
                processes(2));
            EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        }
        EXPECT_EQ(tensors_of(out), tensors_of(uninterrupted));
        for (std::size_t i = 0; i < 50; ++i)
            EXPECT_EQ(steps_of(out)[i]["loss"], steps_of(uninterrupted)[i]["loss"]) << "step " << i + 1;
    }
}

/// Ranks share sequences, alone and in groups that have different sequences. A merge of partial results
/// rounds as often as one more block of keys, so the bound is that of other sums in another order.
TEST_F(DataParallelTraining, SharedSequencesHaveTheLossCurveOfOneProcess) {
    const Arguments llama = {"--positions", "rope",      "--norm", "rms",     "--qk-norm", "--kv-heads",
                             "1",           "--softcap", "20",     "--sinks", "--no-bias"};
    const Arguments blocks = {"--recompute", "block", "--x0-lambdas", "--attention-gate",
                              "--value-embeddings"};
    for (const Arguments& model : {Arguments(), llama, blocks}) {
        const auto one_process = train(1, model);
        expect_same_curve(one_process, train(2, model + Arguments{"--context-parallel", "2"}));
        expect_same_curve(one_process,
                          train(4, model + Arguments{"--context-parallel", "2", "--micro-batch", "2"}));
        expect_same_curve(one_process, train(4, model + Arguments{"--context-parallel", "4", "--zero", "1"}));
        expect_same_curve(one_process, train(4, model + Arguments{"--context-parallel", "2", "--zero", "3",
                                                                  "--micro-batch", "1"}));
    }
    const Arguments bf16 = {"--dtype", "bf16"};
    expect_same_curve(train(1, bf16), train(2, bf16 + Arguments{"--context-parallel", "2"}), 2e-3);
}

/// Rows end with ignored targets, so that the ranks of a group have different numbers of targets.
TEST_F(DataParallelTraining, SharedConversationsHaveTheLossCurveOfOneProcess) {
    stories_ = place_.write("c.jsonl", some_conversations(70));
    const auto one_process = train(1);
    expect_same_curve(one_process, train(2, {"--context-parallel", "2"}));
    expect_same_curve(one_process, train(4, {"--context-parallel", "2", "--micro-batch", "1"}));
}

TEST_F(DataParallelTraining, SharedPackedSequencesHaveTheLossCurveOfOneProcess) {
    const Arguments packed = {"--packed", "--document-token", "10", "--tokenizer", "bytes"};
    const auto one_process = train(1, packed);
    expect_same_curve(one_process, train(2, packed + Arguments{"--context-parallel", "2"}));
    expect_same_curve(one_process, train(4, packed + Arguments{"--context-parallel", "2", "--micro-batch",
                                                               "2", "--zero", "1"}));
    stories_ = place_.write("c.jsonl", some_conversations(70));
    const Arguments conversations{"--packed", "--context",   "96",  "--chat-template",
                                  "chatml",   "--positions", "rope"};
    expect_same_curve(train(1, conversations),
                      train(4, conversations + Arguments{"--context-parallel", "4"}));
}

TEST_F(DataParallelTraining, ResumesWithSequencesSharedByOtherNumbersOfProcesses) {
    const auto uninterrupted = train(1);
    const auto out = train(4, {"--context-parallel", "2", "--stop-after", "10"});
    for (const auto& [ranks, shared_by, stop_after] :
         {std::tuple{2, "2", "20"}, {1, "1", "30"}, {4, "4", "40"}, {2, "1", "50"}}) {
        const Outcome outcome = run({"train", "--resume", out.string(), "--context-parallel", shared_by,
                                     "--stop-after", stop_after, "--quiet"},
                                    processes(ranks));
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    }
    expect_same_curve(uninterrupted, out);
    for (std::size_t i = 0; i < 50; ++i)
        EXPECT_EQ(steps_of(out)[i]["tokens"], steps_of(uninterrupted)[i]["tokens"]);
}

TEST_F(DataParallelTraining, SharedSequencesAreReproducible) {
    const Arguments flags = {"--context-parallel", "2", "--zero", "1"};
    const auto once = train(4, flags), again = train(4, flags);
    EXPECT_EQ(steps_of(once), steps_of(again));
    EXPECT_EQ(tensors_of(once), tensors_of(again));
}

TEST_F(DataParallelTraining, RefusesSequencesThatCannotBeShared) {
    const auto refused = [&](int ranks, const Arguments& flags, const std::string& message) {
        const Outcome outcome = run(training(place_ / "run") + flags, processes(ranks));
        EXPECT_NE(outcome.exit_code, 0);
        EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
        EXPECT_FALSE(exists(place_ / "run"));
    };
    refused(1, {"--context-parallel", "2"}, "context-parallel: 2 does not divide the number of processes, 1");
    refused(2, {"--context-parallel", "2", "--context", "18"}, "context: 18 with context-parallel 2");
    refused(2, {"--context-parallel", "2", "--dropout", "0.1"}, "context-parallel: 2 with dropout");
    stories_ = place_.write("prompts.jsonl", some_shared_prompts(70));
    refused(2, {"--context-parallel", "2", "--context", "64"},
            "context-parallel: 2 with completions that share a prompt");
}

/// Which probabilities are dropped depends on the sample's index in the step's batch, so the same ones are
/// dropped with any number of processes. Other masks would change the losses by far more than the bound.
TEST_F(DataParallelTraining, HasTheLossCurveOfOneProcessWithTheOptionsOfAttention) {
    const Arguments options = {
        "--attention-dropout", "0.2", "--sinks", "--positions", "alibi", "--window", "5", "--softcap", "20"};
    const auto one_process = train(1, options);
    expect_same_curve(one_process, train(2, options));
    expect_same_curve(one_process, train(4, options + Arguments{"--zero", "1"}));
    const auto other_masks = train(1, options + Arguments{"--attention-dropout", "0.1"});
    EXPECT_NEAR(steps_of(one_process)[0]["loss"], steps_of(other_masks)[0]["loss"], 0.1);
    EXPECT_GT(std::abs(steps_of(one_process)[0]["loss"].get<double>() -
                       steps_of(other_masks)[0]["loss"].get<double>()),
              1e-4);
}

/// A block's gradients are complete in another order with sums of streams, gates and value embeddings.
TEST_F(DataParallelTraining, HasTheLossCurveOfOneProcessWithTheOptionsOfTheRecords) {
    const Arguments options = {"--x0-lambdas", "--value-embeddings", "--attention-gate"};
    const auto one_process = train(1, options);
    expect_same_curve(one_process, train(2, options));
    expect_same_curve(one_process, train(2, options + Arguments{"--zero", "1"}));
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
        const auto full_steps = steps_of(full), sharded_steps = steps_of(sharded);
        ASSERT_EQ(full_steps.size(), 12u);
        ASSERT_EQ(sharded_steps.size(), 12u);
        for (std::size_t i = 0; i < 12; ++i)
            EXPECT_EQ(full_steps[i]["loss"], sharded_steps[i]["loss"]) << "step " << i + 1;
        EXPECT_EQ(tensors_of(full), tensors_of(sharded)) << dtype << ", " << ranks << " processes";
    }
}

/// A save gathers the state in the gradients' memory, and a resume distributes it. Neither may leave
/// anything in the gradients' padding, which the gradient norm and blocks of moments include.
TEST_F(DataParallelTraining, SavesAndResumesOfAShardedStateChangeNoLaterStep) {
    const Arguments rounded = {"--moment-dtype", "bf16"}, in_8_bits = {"--moment-dtype", "int8"},
                    split = {"--dtype", "bf16", "--masters", "split"};
    for (const auto& [optimizer, zero, variant] : {std::tuple{"adamw", "1", Arguments()},
                                                   {"adamw", "1", rounded},
                                                   {"adamw", "1", in_8_bits + split},
                                                   {"lion", "1", in_8_bits},
                                                   {"muon", "1", in_8_bits},
                                                   {"adamw", "2", in_8_bits + split},
                                                   {"lion", "2", Arguments()},
                                                   {"muon", "2", in_8_bits},
                                                   {"adamw", "3", in_8_bits + split},
                                                   {"lion", "3", Arguments()},
                                                   {"muon", "3", in_8_bits}}) {
        const Arguments flags =
            Arguments{"--optimizer", optimizer, "--zero", zero, "--steps", "7", "--eval-every", "0"} +
            variant;
        const auto unsaved = train(2, flags + Arguments{"--save-every", "0"}),
                   saved = train(2, flags + Arguments{"--save-every", "2"}),
                   resumed = train(2, flags + Arguments{"--save-every", "0", "--stop-after", "3"});
        EXPECT_EQ(run({"train", "--resume", resumed.string(), "--quiet"}, processes(2)).exit_code, 0);
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
        for (const auto& [ranks, stop_after] : {std::pair{2, "30"}, {1, "50"}}) {
            const Outcome outcome = run(
                {"train", "--resume", out.string(), "--stop-after", stop_after, "--quiet"}, processes(ranks));
            EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        }
        expect_same_curve(uninterrupted, out, 2e-3);
    }
}

/// The processes end after one step, at the rates of one clock. A replay by one process has the same rates.
TEST_F(DataParallelTraining, ProcessesFollowTheClockOfRankZero) {
    const auto train_clocked = [&](int ranks, const Arguments& flags) {
        const std::filesystem::path out = place_ / concat("run", runs_++);
        Arguments arguments = tiny_training(stories_, out);
        const auto steps = std::ranges::find(arguments, "--steps");
        arguments.erase(steps, steps + 2);
        const Outcome outcome =
            run(arguments + Arguments{"--batch", "8", "--quiet", "--time-budget", "3s"} + flags,
                processes(ranks));
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        return out;
    };
    const auto clocked = train_clocked(2, {});
    const auto steps = steps_of(clocked),
               replayed = steps_of(train_clocked(1, {"--replay-clock", clocked.string()}));
    ASSERT_GT(steps.size(), 1u);
    ASSERT_EQ(steps.size(), replayed.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
        EXPECT_EQ(steps[i]["lr"], replayed[i]["lr"]);
        EXPECT_EQ(steps[i]["budget_used"], replayed[i]["budget_used"]);
        if (i >= 50) continue;  // the bound of expect_same_curve() is for 50 steps
        const double loss = steps[i]["loss"];
        EXPECT_NEAR(loss, replayed[i]["loss"], 5e-6 * loss) << "step " << i + 1;
    }
}

TEST_F(DataParallelTraining, IsReproducible) {
    for (const char* zero : {"1", "2", "3"}) {
        const Arguments flags = {"--zero", zero, "--dropout", "0.1", "--batch", "12", "--micro-batch", "2"};
        const auto once = train(3, flags), again = train(3, flags);
        EXPECT_EQ(steps_of(once), steps_of(again));
        EXPECT_EQ(tensors_of(once), tensors_of(again));
    }
}

TEST_F(DataParallelTraining, ResumesWithAnotherNumberOfProcesses) {
    const auto uninterrupted = train(1, {"--dropout", "0.1"});
    for (const char* zero : {"0", "1", "2", "3"}) {
        const auto out = train(4, {"--dropout", "0.1", "--zero", zero, "--stop-after", "15"});
        for (const auto& [ranks, stop_after] : {std::pair{2, "30"}, {1, "50"}}) {
            const Outcome outcome = run(
                {"train", "--resume", out.string(), "--stop-after", stop_after, "--quiet"}, processes(ranks));
            EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        }
        expect_same_curve(uninterrupted, out);
    }
}

TEST_F(DataParallelTraining, CheckpointsAreRestoredBitIdentically) {
    for (const auto& [dtype, optimizer] : {std::pair{"f32", "adamw"},
                                           {"bf16", "adamw"},
                                           {"f32", "lion"},
                                           {"bf16", "muon"},
                                           {"f32", "normuon"}}) {
        const Arguments chosen = std::string(optimizer) == "normuon"
                                     ? Arguments{"muon", "--muon-split", "--muon-beta2", "0.9"}
                                     : Arguments{optimizer};
        std::vector<Arguments> formats = {
            Arguments(), {"--moment-dtype", "bf16"}, {"--moment-dtype", "int8"}};
        if (std::string(dtype) == "bf16") formats.push_back({"--masters", "split"});
        for (const Arguments& format : formats) {
            const auto out =
                train(1, Arguments{"--dtype", dtype, "--stop-after", "5", "--optimizer"} + chosen + format);
            const std::string checkpoint = (out / "checkpoints" / "step_00000005.h5").string();
            for (const int ranks : {1, 2, 3, 4})
                for (const char* zero : {"0", "1", "2", "3"}) {
                    // Three shards of a format have every kind of border: within a block, and padding at the
                    // end.
                    if (!format.empty() && (ranks != 3 || *zero == '0')) continue;
                    ProcessOptions options = processes(ranks);
                    options.program = GRADTILE_REPLICA_PROCESS;
                    const Outcome outcome = run({checkpoint, "cpu", zero}, options);
                    EXPECT_EQ(outcome.exit_code, 0)
                        << ranks << " processes, zero " << zero << ": " << outcome.out << outcome.err;
                }
        }
    }
}

/// One process has no shards.
TEST_F(DataParallelTraining, OneProcessTrainsWithEveryZeroLevel) {
    const auto plain = train(1);
    for (const char* zero : {"1", "2", "3"})
        EXPECT_EQ(tensors_of(train(1, {"--zero", zero})), tensors_of(plain)) << zero;
}

/// The same with one process per GPU, over NCCL.
class DataParallelOnGpus : public DataParallelTraining {
  protected:
    void SetUp() override {
        if (cuda_device_count() < 2) GTEST_SKIP() << "fewer than two usable CUDA devices on this machine";
        stories_ = write_stories(place_, 6'000);
    }
    static void run_on_gpus(int gpus, const Arguments& arguments) {
        const Outcome outcome =
            run(arguments + Arguments{"--gpus", std::to_string(gpus)}, {.without_gpu = false});
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    }
    std::filesystem::path train_on_gpus(int gpus, const Arguments& flags) {
        const std::filesystem::path out = place_ / concat("run", runs_++);
        run_on_gpus(gpus, training(out) + Arguments{"--device", "cuda"} + flags);
        return out;
    }
};

/// The bound for curves in bfloat16, in which Newton-Schulz multiplies:
/// MuonResumesWithAnotherNumberOfProcesses.
TEST_F(DataParallelOnGpus, ShardedOptimizersHaveTheLossCurveOfOneGpu) {
    for (const char* optimizer : {"adamw", "muon", "lion"})
        for (const char* dtype : {"f32", "bf16"}) {
            SCOPED_TRACE(concat(optimizer, " in ", dtype));
            const Arguments flags = {"--optimizer", optimizer, "--dtype", dtype};
            const auto one = train_on_gpus(1, flags);
            expect_same_curve(one, train_on_gpus(2, flags), 2e-3);
            for (const char* zero : {"1", "2", "3"})
                expect_same_curve(one, train_on_gpus(2, flags + Arguments{"--zero", zero}), 2e-3);
            for (const char* zero : {"2", "3"})
                expect_same_curve(
                    one, train_on_gpus(2, flags + Arguments{"--zero", zero, "--micro-batch", "1"}), 2e-3);
        }
}

/// Values are gathered on another stream while kernels read those of other slots.
TEST_F(DataParallelOnGpus, ShardedValuesAreBitIdenticalToWholeOnes) {
    const Arguments records = {"--x0-lambdas",
                               "--value-embeddings",
                               "--attention-gate",
                               "--embedding-norm",
                               "--sinks",
                               "--recompute",
                               "block"};
    for (const Arguments& variant : {Arguments{"--dtype", "bf16"},
                                     {"--dtype", "f32", "--no-tied-head"},
                                     {"--dtype", "bf16", "--masters", "split", "--no-cuda-graph"},
                                     {"--dtype", "bf16", "--moment-dtype", "int8", "--optimizer", "muon"},
                                     records}) {
        SCOPED_TRACE(variant.back());
        const Arguments flags =
            variant + Arguments{"--deterministic", "--micro-batch", "1", "--layers", "4"} +
            Arguments{"--sample-every", "10", "--tokenizer", "bytes", "--eval-every", "7"};
        const auto two = train_on_gpus(2, flags + Arguments{"--zero", "2"}),
                   three = train_on_gpus(2, flags + Arguments{"--zero", "3", "--checkpoint-parts"});
        EXPECT_EQ(steps_of(two), steps_of(three));
        EXPECT_EQ(tensors_of(two), tensors_of(three));
    }
}

TEST_F(DataParallelOnGpus, SharedSequencesHaveTheLossCurveOfOneGpu) {
    for (const char* dtype : {"f32", "bf16"}) {
        const Arguments flags = {"--dtype", dtype, "--positions", "rope"};
        expect_same_curve(train_on_gpus(1, flags),
                          train_on_gpus(2, flags + Arguments{"--context-parallel", "2"}), 2e-3);
    }
}

TEST_F(DataParallelOnGpus, ShardedMuonIsReproducible) {
    for (const char* zero : {"1", "2", "3"}) {
        const Arguments flags = {"--optimizer", "muon", "--zero", zero, "--deterministic", "--dtype", "bf16"};
        const auto once = train_on_gpus(2, flags), again = train_on_gpus(2, flags);
        EXPECT_EQ(steps_of(once), steps_of(again));
        EXPECT_EQ(tensors_of(once), tensors_of(again));
    }
}

TEST_F(DataParallelOnGpus, MuonResumesWithAnotherNumberOfGpus) {
    const Arguments flags = {"--optimizer", "muon"};
    const auto uninterrupted = train_on_gpus(1, flags);
    for (const char* zero : {"1", "2", "3"}) {
        const auto out = train_on_gpus(2, flags + Arguments{"--zero", zero, "--stop-after", "15"});
        for (const auto& [gpus, stop_after] : {std::pair{1, "30"}, {2, "50"}})
            run_on_gpus(gpus, {"train", "--resume", out.string(), "--stop-after", stop_after, "--quiet"});
        expect_same_curve(uninterrupted, out, 2e-3);
    }
}

TEST_F(DataParallelTraining, RefusesABatchThatCannotBeDivided) {
    const Outcome outcome = run(training(place_ / "run") + Arguments{"--batch", "7"}, processes(2));
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_NE(outcome.err.find("batch: 7"), std::string::npos) << outcome.err;
    EXPECT_FALSE(exists(place_ / "run"));
}

}  // namespace
}  // namespace gradtile::test
