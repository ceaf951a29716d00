// Training on several GPUs, one process each, over NCCL.
#include "data_parallel_training.h"

#include <gradtile/core/allocator.h>

namespace gradtile::test {
namespace {

/// The same with one process per GPU, over NCCL and in symmetric memory, which --on-loss continue would not
/// use.
class DataParallelOnGpus : public DataParallelTraining {
  protected:
    void SetUp() override {
        if (cuda_device_count() < 2) GTEST_SKIP() << "fewer than two usable CUDA devices on this machine";
        stories_ = write_stories(place_, 6'000);
    }
    static void run_on_gpus(int gpus, const Arguments& arguments) {
        const Outcome outcome =
            run(arguments + Arguments{"--gpus", std::to_string(gpus), "--on-loss", "stop"},
                {.without_gpu = false});
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

}  // namespace
}  // namespace gradtile::test
