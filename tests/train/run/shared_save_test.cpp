// Saves to which several processes write their parts: kills of every rank, and a disk that is full for one
// rank.
#include <gradtile/train/run/shared_save.h>

#include <gmock/gmock.h>

#include <atomic>
#include <random>

#include <support/memory_file_system.h>
#include "../checkpoint/checkpoint_test_support.h"
#include "../parallel/forked_ranks.h"

namespace gradtile {
namespace {

using test::Exit;
using test::FaultyFileSystem;
using test::ForkedRanks;
using test::generated_checkpoint;
using test::part_of;
using test::TemporaryDirectory;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int kRanks = 3;
constexpr double kTimeout = 30.0;

/// A rank of a run that saves.
class SavingRank {
  public:
    SavingRank(ProcessGroup& group, const std::filesystem::path& directory, FileSystem& fs)
        : group_(group),
          writer_(CheckpointDirectory(directory, {.keep_last = 2, .keep_every = 50}, fs), ctx_),
          save_(group, writer_) {}

    void start(std::int64_t step) {
        const Checkpoint whole = generated_checkpoint(ctx_, step, /*width=*/40);
        save_.start(part_of(whole, 0, group_.rank(), group_.size()), test::without_tensors(whole),
                    test::infos_of(whole), step % 5 == 0);
    }
    SharedSave& shared() { return save_; }
    SnapshotWriter& writer() { return writer_; }
    /// Waits for the save. Returns its report in rank 0, and checks that the others have none.
    SaveReport finish() {
        save_.finish();
        const std::vector<SaveReport> reports = save_.poll();
        check(reports.size() == (group_.is_root() ? 1 : 0), reports.size(), " reports");
        return group_.is_root() ? reports.front() : SaveReport();
    }

  private:
    const Context ctx_{Device::cpu(), 1};
    ProcessGroup& group_;
    SnapshotWriter writer_;
    SharedSave save_;
};

std::vector<std::string> names_in(const std::filesystem::path& directory) {
    std::vector<std::string> names;
    FileSystem::posix().list(directory, names);
    return names;
}

void expect_success(const std::vector<Exit>& exits, int ranks = kRanks) {
    for (int rank = 0; rank < ranks; ++rank) {
        const Exit& exit = exits[static_cast<std::size_t>(rank)];
        EXPECT_EQ(exit.exit_code, 0) << "rank " << rank << ": " << exit.output;
    }
}

void expect_newest(const std::filesystem::path& directory, std::int64_t step) {
    const auto loaded = CheckpointDirectory(directory).load_newest();
    ASSERT_TRUE(loaded.checkpoint.has_value());
    EXPECT_THAT(loaded.damaged, IsEmpty());
    test::expect_same(*loaded.checkpoint, generated_checkpoint(Context(Device::cpu(), 1), step, 40));
}

TEST(SharedSave, IsOneCheckpointOnceAllRanksHaveWritten) {
    const TemporaryDirectory place;
    ForkedRanks ranks(kRanks, kTimeout);
    ranks.start_all([&](ProcessGroup& group) {
        SavingRank rank(group, place.path(), FileSystem::posix());
        for (std::int64_t step = 1; step <= 6; ++step) {
            rank.start(step);
            // As between steps; a save may end here or in finish().
            for (int polls = 0; polls < 3; ++polls) rank.shared().advance();
            if (step == 3) continue;  // the next start() waits
            rank.shared().finish();
            const std::vector<SaveReport> reports = rank.shared().poll();
            const std::size_t ended = !group.is_root() ? 0 : step == 4 ? 2 : 1;
            check(reports.size() == ended, "step ", step, ": ", reports.size(), " reports");
            for (const SaveReport& report : reports)
                check(report.saved && report.message.empty() &&
                          report.path == CheckpointDirectory(place.path()).path_of(report.step) &&
                          report.is_best == (report.step == 5),
                      "step ", step, ": ", report.message);
        }
        group.leave();
    });
    expect_success(ranks.exits());
    expect_newest(place.path(), 6);
    EXPECT_EQ(read_checkpoint(place / "best.h5").step, 5);
    EXPECT_EQ(names_in(place.path()).size(), 1u + 2 * (1 + kRanks));
}

/// A file system that cannot write while `full` is true.
FaultyFileSystem filling_disk(const std::atomic<bool>& full) {
    return FaultyFileSystem(FileSystem::posix(),
                            [&full](FaultyFileSystem::Call call, std::size_t) -> std::int64_t {
                                return full && call == FaultyFileSystem::Call::write_at ? -ENOSPC : 0;
                            });
}

/// The disk of one rank is full in step 2.
TEST(SharedSave, FailsIfOnePartFailsAndLeavesTheOneBefore) {
    for (int failing = 0; failing < kRanks; ++failing) {
        const TemporaryDirectory place;
        ForkedRanks ranks(kRanks, kTimeout);
        ranks.start_all([&](ProcessGroup& group) {
            std::atomic<bool> full = false;
            FaultyFileSystem fs = filling_disk(full);
            SavingRank rank(group, place.path(), fs);
            for (std::int64_t step = 1; step <= 3; ++step) {
                full = step == 2 && group.rank() == failing;
                rank.start(step);
                const SaveReport report = rank.finish();
                group.broadcast("saved");
                const auto newest = CheckpointDirectory(place.path()).load_newest();
                check(newest.checkpoint->step == (step == 2 ? 1 : step), newest.checkpoint->step);
                check(newest.damaged.empty(), "damaged");
                if (!group.is_root()) continue;
                check(report.step == step && report.saved == (step != 2), report.message);
                if (step == 2) {
                    EXPECT_THAT(report.message,
                                AllOf(HasSubstr(concat("rank ", failing, ": checkpoint ")),
                                      HasSubstr(concat("part-", failing, "-of-3-")),
                                      HasSubstr("No space left on device"), Not(HasSubstr("\n"))));
                    check(!testing::Test::HasFailure(), report.message);
                    check(names_in(place.path()).size() == 1 + kRanks, "files are left");
                }
            }
            group.leave();
        });
        expect_success(ranks.exits());
        expect_newest(place.path(), 3);
        EXPECT_EQ(names_in(place.path()).size(), 2u * (1 + kRanks));
    }
}

TEST(SharedSave, FailsIfTheMainFileFailsAndRemovesTheParts) {
    const TemporaryDirectory place;
    ForkedRanks ranks(kRanks, kTimeout);
    ranks.start_all([&](ProcessGroup& group) {
        std::atomic<bool> full = false;
        FaultyFileSystem fs = filling_disk(full);
        SavingRank rank(group, place.path(), fs);
        rank.start(1);
        rank.finish();
        rank.start(2);
        rank.writer().wait();  // the part is written
        full = true;
        const SaveReport report = rank.finish();
        group.leave();
        if (!group.is_root()) return;
        check(!report.saved && report.message.find("step_00000002.h5: cannot write") != std::string::npos,
              report.message);
    });
    expect_success(ranks.exits());
    expect_newest(place.path(), 1);
    EXPECT_EQ(names_in(place.path()).size(), 1u + kRanks);
}

/// Acts as a run with checkpoints: resumes, saves every step, and rank 0 reports each saved one in a file.
/// Ends when a rank is killed: `victim` at its file operation number `last_operation`.
void train(ProcessGroup& group, const std::filesystem::path& place, int victim, std::int64_t last_operation) {
    std::atomic<std::int64_t> operations = 0;
    FaultyFileSystem fs(FileSystem::posix(), [&](FaultyFileSystem::Call, std::size_t) -> std::int64_t {
        if (++operations == last_operation && group.rank() == victim) ::kill(::getpid(), SIGKILL);
        return 0;
    });
    const CheckpointDirectory directory(place / "checkpoints");
    std::int64_t step = 0;
    if (group.is_root()) {
        directory.remove_temporaries();
        const auto resumed = directory.load_newest({.training_state = false});
        step = resumed.checkpoint ? resumed.checkpoint->step : 0;
        for (const std::string& name : names_in(directory.path()))
            check(name.find(".part-") == std::string::npos || resumed.checkpoint, name, " is left");
    }
    step = std::stoll(group.broadcast(concat(step)));
    SavingRank rank(group, place / "checkpoints", fs);
    std::ofstream reported(place / "reported", std::ios::app);
    while (true) {
        rank.start(++step);
        for (int polls = 0; polls < 5; ++polls) rank.shared().advance();
        for (const SaveReport& report : rank.shared().poll()) {
            check(report.saved && report.message.empty(), report.message);
            reported << report.step << std::endl;
        }
    }
}

TEST(SharedSaveKill, OfAnyRankAtAnyMomentLosesNoReportedSave) {
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place / "checkpoints");
    std::mt19937_64 random(std::random_device{}());
    int with_unfinished = 0;
    std::int64_t reported = 0, reported_best = 0;
    const int rounds = test::test_rounds(8) * kRanks;
    for (int round = 0; round < rounds; ++round) {
        const int victim = round % kRanks;
        const bool at_operation = round / kRanks % 2 == 0;
        const std::int64_t last_operation = at_operation ? static_cast<std::int64_t>(1 + random() % 120) : -1;
        ForkedRanks ranks(kRanks, kTimeout);
        ranks.start_all([&](ProcessGroup& group) { train(group, place.path(), victim, last_operation); });
        if (!at_operation) {
            ranks.wait_for_mark_of_all("connected");
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 200'000));
            ranks.send(victim, SIGKILL);
        }
        const std::vector<Exit> exits = ranks.exits();
        for (int rank = 0; rank < kRanks; ++rank) {
            const Exit& exit = exits[static_cast<std::size_t>(rank)];
            EXPECT_EQ(rank == victim ? exit.signal : exit.exit_code, rank == victim ? SIGKILL : 3)
                << "rank " << rank << ": " << exit.output;
        }
        std::ifstream lines(place / "reported");
        for (std::int64_t step = 0; lines >> step;) {
            reported = std::max(reported, step);
            if (step % 5 == 0) reported_best = std::max(reported_best, step);
        }

        const auto loaded = directory.load_newest();
        const std::int64_t found = loaded.checkpoint ? loaded.checkpoint->step : 0;
        ASSERT_GE(found, reported) << "round " << round;
        ASSERT_THAT(loaded.damaged, IsEmpty());
        if (found > 0) expect_newest(directory.path(), found);
        if (reported_best > 0) {
            EXPECT_GE(read_checkpoint(directory.best_path()).step, reported_best);
        }
        // The next run keeps the parts that the newest two, every 50th and the best checkpoint list.
        const std::size_t before = names_in(directory.path()).size();
        directory.remove_temporaries();
        with_unfinished += names_in(directory.path()).size() < before;
        test::expect_same(directory.load_newest().checkpoint.value_or(Checkpoint()),
                          found > 0 ? *loaded.checkpoint : Checkpoint());
        ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round;
    }
    // If no save was interrupted, all kills were between saves, and the test proved nothing.
    EXPECT_GT(with_unfinished, 0);
    EXPECT_GT(reported, 0);
    std::cout << "  " << rounds << " kills, " << with_unfinished << " of them inside a save; step "
              << reported << '\n';
}

TEST(SharedDirectory, IsRefusedIfARankDoesNotSeeIt) {
    const TemporaryDirectory place;
    ForkedRanks ranks(kRanks, kTimeout);
    ranks.start_all([&](ProcessGroup& group) {
        require_shared_directory(group, place / "all");
        const std::string refusal = test::error_of(
            [&] { require_shared_directory(group, place / (group.rank() == 2 ? "other" : "all")); });
        group.leave();
        throw Error(refusal);
    });
    const std::vector<Exit> exits = ranks.exits();
    for (int rank = 0; rank < kRanks; ++rank) {
        const Exit& exit = exits[static_cast<std::size_t>(rank)];
        EXPECT_EQ(exit.exit_code, 1);
        EXPECT_THAT(exit.output,
                    AllOf(testing::StartsWith(concat("checkpoint-parts: rank 2 does not see ",
                                                     (place / "other" / "shared.tmp-").string())),
                          HasSubstr("expected a directory that all ranks share")));
    }
    EXPECT_THAT(names_in(place / "all"), IsEmpty());
}

}  // namespace
}  // namespace gradtile
