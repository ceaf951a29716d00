// Processes that all write parts of checkpoints: resumes, kills, full disks and separate disks.
#include <thread>

#include "processes.h"

namespace gradtile::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class ProcessesWithParts : public Processes {
  protected:
    /// How many files the directory has for a step.
    static std::size_t files_of(const std::filesystem::path& out, const std::string& step) {
        std::size_t files = 0;
        for (const auto& entry : std::filesystem::directory_iterator(out / "checkpoints"))
            files += entry.path().filename().string().starts_with("step_000000" + step);
        return files;
    }
};

/// A run that is saved in parts and resumed by other numbers of processes at other levels, in turn, equals
/// the same run with whole files.
TEST_F(ProcessesWithParts, ResumedByOtherNumbersAtOtherLevelsEqualARunWithWholeFiles) {
    struct Stage {
        int ranks;
        const char *zero, *stop_after;
    };
    std::vector<Stage> stages = {{3, "1", "10"}, {2, "2", "18"}, {4, "3", "26"}, {1, "3", "30"},
                                 {2, "1", "38"}, {3, "0", "42"}, {3, "3", "50"}};
    if (gpus > 0) stages = {{gpus, "1", "10"}, {1, "1", "18"}, {gpus, "3", "26"}, {gpus, "2", "34"}};
    for (const Arguments& kind :
         {Arguments{"adamw", "--moment-dtype", "int8"}, {"muon", "--dtype", "bf16", "--masters", "split"}}) {
        std::vector<std::filesystem::path> runs;
        for (const bool in_parts : {false, true}) {
            const std::filesystem::path& out = runs.emplace_back(place_ / concat("run", counter_++));
            for (const auto& [ranks, zero, stop_after] : stages) {
                const bool has_parts = in_parts && *zero != '0';
                Arguments arguments = {"train", "--resume", out.string(), "--quiet"};
                if (!exists(out))
                    arguments = training(out) + Arguments{"--batch",      "12", "--steps",    "50",
                                                          "--save-every", "4",  "--optimizer"} +
                                kind;
                arguments = arguments + Arguments{"--zero", zero, "--stop-after", stop_after};
                arguments.push_back(has_parts ? "--checkpoint-parts" : "--no-checkpoint-parts");
                ranks_ = ranks;
                const Outcome outcome = start(arguments).wait();
                EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
                const std::size_t parts = has_parts && ranks > 1 ? static_cast<std::size_t>(ranks) : 0;
                EXPECT_EQ(files_of(out, stop_after), 1 + parts) << ranks << " processes, zero " << zero;
            }
        }
        EXPECT_EQ(tensors_of(runs[0]), tensors_of(runs[1]));
        EXPECT_EQ(steps_of(runs[0]), steps_of(runs[1]));
    }
}

/// Each rank in its turn, while all ranks write parts of checkpoints.
TEST_F(ProcessesWithParts, KilledWhileAllWritePartsAreResumable) {
    for (int round = 0; round < std::max(fault_rounds, ranks_); ++round) {
        extra_settings_ = {"--zero", std::to_string(1 + round % 3), "--checkpoint-parts", "--save-every",
                           "1"};
        const std::filesystem::path out = place_ / concat("run", round);
        Program program = start(training(out));
        wait_for_steps(program, out, 5 + random_below(30));
        std::this_thread::sleep_for(std::chrono::microseconds(random_below(50'000)));
        const int lost_rank = round % ranks_;
        signal_process(process_of(out, lost_rank), SIGKILL);
        const Outcome outcome = program.wait();
        EXPECT_NE(outcome.exit_code, 0);
        expect_victim_named(outcome, lost_rank);
        expect_resumable(out);
    }
}

/// The save that was under way ends, and the last step is saved.
TEST_F(ProcessesWithParts, StoppedWhileAllWritePartsAreResumable) {
    for (int round = 0; round < fault_rounds; ++round) {
        extra_settings_ = {"--zero", "3", "--checkpoint-parts", "--save-every", "1"};
        const std::filesystem::path out = place_ / concat("run", round);
        Program program = start(training(out));
        wait_for_steps(program, out, 5 + random_below(30));
        signal_process(process_of(out, random_below(ranks_)), SIGTERM);
        const Outcome outcome = program.wait();
        expect_success(outcome);
        const nlohmann::json newest = nlohmann::json::parse(run({"inspect", out.string(), "--json"}).out);
        EXPECT_EQ(newest.at("step"), std::ssize(steps_of(out)));
        expect_resumable(out);
    }
}

/// The saves of one rank fail: no save is reported, its parts are removed, and training continues.
TEST_F(ProcessesWithParts, FullDiskOfOneRankFailsSavesInParts) {
    if (gpus > 0) GTEST_SKIP() << "NCCL itself writes files that a limit on their size forbids";
    extra_settings_ = {"--zero", "2", "--checkpoint-parts"};
    const std::filesystem::path out = place_ / "run";
    EXPECT_EQ(start(training(out) + Arguments{"--stop-after", "40"}).wait().exit_code, 0);
    const auto files = [&] {
        return std::distance(std::filesystem::directory_iterator(out / "checkpoints"), {});
    };
    const auto before = files();
    ProcessOptions limited = options_;
    limited.environment.insert(limited.environment.end(),
                               {{"OMPI_MCA_btl", "tcp,self"}, {"PMIX_MCA_gds", "hash"}});
    limited.prefix = {
        "mpirun",
        "-np",
        std::to_string(ranks_),
        "sh",
        "-c",
        "if [ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} = 2 ]; then ulimit -f 4; fi; exec \"$0\" \"$@\""};
    const Outcome full =
        Program({"train", "--resume", out.string(), "--quiet", "--stop-after", "80"}, limited).wait();
    EXPECT_EQ(full.exit_code, 1);
    for (const char* step : {"060", "080"})
        EXPECT_THAT(full.err,
                    ContainsRegex(concat("rank 2: checkpoint .*step_00000", step,
                                         ".part-2-of-3-[0-9a-f]+.h5: cannot write: File too large")));
    EXPECT_THAT(full.err, Not(HasSubstr(" was lost ")));
    EXPECT_EQ(files(), before);
    EXPECT_EQ(steps_of(out).size(), 80u);
    expect_resumable(out);
}

/// A rank whose directory is on another disk is named before the first step.
TEST_F(ProcessesWithParts, PartsNeedADirectoryThatAllRanksShare) {
    if (gpus > 0) GTEST_SKIP() << "gradtile's own launcher has one working directory for all";
    const std::string stories = contents_of(stories_);
    write_data_per_rank("stories.txt", stories);
    extra_settings_ = {"--zero", "1", "--checkpoint-parts"};
    const Outcome outcome = start(training("run")).wait();
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("checkpoint-parts: rank 1 does not see "));
    EXPECT_THAT(outcome.err, HasSubstr("expected a directory that all ranks share"));
    EXPECT_FALSE(exists(place_ / "0" / "run"));
}

}  // namespace
}  // namespace gradtile::test
