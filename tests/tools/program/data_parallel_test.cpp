// Training with several processes equals training with one process: the same losses, the same data order, and
// checkpoints that any number of processes can resume.
#include "data_parallel_training.h"

#include <tiny_run.h>

namespace gradtile::test {
namespace {

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
    resume(out, 2);
    EXPECT_EQ(tensors_of(out), tensors_of(two_processes)) << "to the bit";
    EXPECT_EQ(steps_of(out), steps_of(two_processes));
    const auto other = train(4, stream + Arguments{"--micro-batch", "1", "--stop-after", "31"});
    resume(other, 1);
    expect_same_curve(one_process, other);
}

TEST_F(DataParallelTraining, HasTheLossCurveOfOneProcess) {
    const auto one_process = train(1, {"--dropout", "0.1"});
    for (const int ranks : {2, 4}) expect_same_curve(one_process, train(ranks, {"--dropout", "0.1"}));
}

/// Over MPI: sums and shards at every level, sequences that ranks share, and a resume with more processes.
TEST_F(DataParallelTraining, HasTheLossCurveOfOneProcessUnderMpirun) {
    if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
    const auto one_process = train(1);
    for (const char* zero : {"0", "1", "2", "3"})
        for (const int ranks : {2, 4})
            expect_same_curve(one_process, train_under_mpirun(ranks, {"--zero", zero}));
    for (const char* shared_by : {"2", "4"})
        expect_same_curve(one_process, train_under_mpirun(4, {"--context-parallel", shared_by}));
    const auto out = train_under_mpirun(2, {"--zero", "3", "--stop-after", "15", "--checkpoint-parts"});
    const Outcome resumed = run({"train", "--resume", out.string(), "--quiet"}, under_mpirun(4));
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    expect_same_curve(one_process, out);
}

/// The processes begin with one sequence each, and resume with another number of processes in between.
TEST_F(DataParallelTraining, HasTheLossCurveOfOneProcessWhileTheBatchGrows) {
    const Arguments growing{"--batch-start",   "2",  "--batch-warmup", "30", "--window-start", "3",
                            "--window-warmup", "20", "--dropout",      "0.1"};
    const auto one_process = train(1, growing);
    const auto out = train(2, growing + Arguments{"--micro-batch", "2", "--stop-after", "20"});
    resume(out, 1);
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
    resume(out, 2);
    expect_same_curve(one_process, out);
}

TEST_F(DataParallelTraining, PackedHasTheLossCurveOfOneProcess) {
    const Arguments packed = {"--packed", "--document-token", "10", "--tokenizer", "bytes"};
    const auto one_process = train(1, packed);
    for (const int ranks : {2, 4}) expect_same_curve(one_process, train(ranks, packed));
    const Arguments with_dropout = packed + Arguments{"--attention-dropout", "0.2"};
    expect_same_curve(train(1, with_dropout), train(2, with_dropout + Arguments{"--micro-batch", "2"}));
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
         {std::tuple{2, "2", "20"}, {1, "1", "30"}, {4, "4", "40"}, {2, "1", "50"}})
        resume(out, ranks, {"--context-parallel", shared_by, "--stop-after", stop_after});
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
        const Outcome outcome = run(training(place_ / "run") + flags + processes(ranks));
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

/// The processes end after one step, at the rates of one clock. A replay by one process has the same rates.
TEST_F(DataParallelTraining, ProcessesFollowTheClockOfRankZero) {
    const auto train_clocked = [&](int ranks, const Arguments& flags) {
        const std::filesystem::path out = place_ / concat("run", runs_++);
        Arguments arguments = tiny_training(stories_, out);
        const auto steps = std::ranges::find(arguments, "--steps");
        arguments.erase(steps, steps + 2);
        const Outcome outcome = run(arguments + Arguments{"--batch", "8", "--quiet", "--time-budget", "3s"} +
                                    flags + processes(ranks));
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
        for (const auto& [ranks, stop_after] : {std::pair{2, "30"}, {1, "50"}})
            resume(out, ranks, {"--stop-after", stop_after});
        expect_same_curve(uninterrupted, out);
    }
}

TEST_F(DataParallelTraining, CheckpointsAreRestoredBitIdentically) {
    if (!has_mpirun()) GTEST_SKIP() << "no mpirun here";
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
            for (const int ranks : {1, 2, 3, 4}) {
                // Three shards of a format have every kind of border: within a block, and padding at the end.
                if (!format.empty() && ranks != 3) continue;
                ProcessOptions options = ranks > 1 ? under_mpirun(ranks) : ProcessOptions{};
                options.program = GRADTILE_REPLICA_PROCESS;
                const Outcome outcome = run({checkpoint, "cpu", "0", "1", "2", "3"}, options);
                EXPECT_EQ(outcome.exit_code, 0) << ranks << " processes: " << outcome.out << outcome.err;
            }
        }
    }
}

TEST_F(DataParallelTraining, RefusesABatchThatCannotBeDivided) {
    const Outcome outcome = run(training(place_ / "run") + Arguments{"--batch", "7"} + processes(2));
    EXPECT_NE(outcome.exit_code, 0);
    EXPECT_NE(outcome.err.find("batch: 7"), std::string::npos) << outcome.err;
    EXPECT_FALSE(exists(place_ / "run"));
}

}  // namespace
}  // namespace gradtile::test
