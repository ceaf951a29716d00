#include <gradtile/train/checkpoint/checkpoint_directory.h>

#include <gmock/gmock.h>

#include <atomic>
#include <set>
#include <thread>

#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::error_of;
using test::generated_checkpoint;
using test::TemporaryDirectory;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::int64_t> steps_in(const CheckpointDirectory& directory) {
    std::vector<std::int64_t> steps;
    for (const auto& entry : directory.list()) steps.push_back(entry.step);
    return steps;
}

void flip_a_bit(const std::filesystem::path& path) {
    auto bytes = test::file_bytes(path);
    bytes[bytes.size() / 2] ^= std::byte{4};
    test::write_bytes(path, bytes);
}

TEST(CheckpointDirectory, KeepsTheLastAndEveryKth) {
    const Context ctx;
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place / "run" / "checkpoints", {.keep_last = 2, .keep_every = 30});
    for (std::int64_t step = 10; step <= 100; step += 10)
        EXPECT_EQ(directory.save(generated_checkpoint(ctx, step)).problem, "");
    EXPECT_THAT(steps_in(directory), ElementsAre(100, 90, 60, 30));
    EXPECT_TRUE(std::filesystem::exists(place / "run" / "checkpoints" / "step_00000100.h5"));
}

TEST(CheckpointDirectory, LoadsTheNewestSoundOneAndNamesTheDamagedOnes) {
    const Context ctx;
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place.path(), {.keep_last = 5});
    for (const std::int64_t step : {1, 2, 3, 4}) directory.save(generated_checkpoint(ctx, step));
    flip_a_bit(directory.path_of(4));
    std::filesystem::resize_file(directory.path_of(3), 5000);
    const auto loaded = directory.load_newest();
    ASSERT_TRUE(loaded.checkpoint.has_value());
    test::expect_same(*loaded.checkpoint, generated_checkpoint(ctx, 2));
    EXPECT_EQ(loaded.path, directory.path_of(2));
    EXPECT_THAT(loaded.damaged, ElementsAre(HasSubstr("step_00000004.h5: damaged"),
                                            HasSubstr("step_00000003.h5: truncated")));
}

/// A run that keeps one checkpoint removes the file that another process has just listed.
TEST(CheckpointDirectory, IsReadWhileARunReplacesItsOnlyCheckpoint) {
    const Context ctx;
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place.path(), {.keep_last = 1});
    directory.save(generated_checkpoint(ctx, 1));
    std::atomic<bool> done = false;
    std::thread run([&] {
        for (std::int64_t step = 2; !done; ++step) directory.save(generated_checkpoint(ctx, step));
    });
    int missing = 0, damaged = 0;
    for (int i = 0; i < 100; ++i) {
        const auto loaded = directory.load_newest();
        missing += !loaded.checkpoint.has_value();
        damaged += !loaded.damaged.empty();
    }
    done = true;
    run.join();
    EXPECT_EQ(missing, 0);
    EXPECT_EQ(damaged, 0);
}

TEST(CheckpointDirectory, DoesNotTrustAFilesName) {
    const Context ctx;
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place.path(), {.keep_last = 5});
    directory.save(generated_checkpoint(ctx, 1));
    std::filesystem::copy(directory.path_of(1), directory.path_of(9));
    const auto loaded = directory.load_newest();
    EXPECT_EQ(loaded.path, directory.path_of(1));
    EXPECT_THAT(loaded.damaged, ElementsAre(HasSubstr("step_00000009.h5: holds step 1")));
}

TEST(CheckpointDirectory, EmptyOrAbsentHasNoCheckpoints) {
    const TemporaryDirectory place;
    for (const auto& path : {place.path(), place / "absent"}) {
        const auto loaded = CheckpointDirectory(path).load_newest();
        EXPECT_FALSE(loaded.checkpoint.has_value());
        EXPECT_THAT(loaded.damaged, IsEmpty());
    }
}

TEST(CheckpointDirectory, IgnoresForeignFiles) {
    const TemporaryDirectory place;
    for (const std::string name : {"step_1.h5", "step_0000000x.h5", "step_00000001.h5.tmp-12",
                                   "step_-0000001.h5", "step_99999999999999999999.h5", "notes.txt"}) {
        test::write_bytes(place / name, {});
    }
    EXPECT_THAT(CheckpointDirectory(place.path()).list(), IsEmpty());
}

TEST(CheckpointDirectory, KeepsTheBestAndTheNewest) {
    const Context ctx;
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place.path(), {.keep_last = 1});
    EXPECT_TRUE(directory.save(generated_checkpoint(ctx, 1), /*best=*/true).is_best);
    EXPECT_TRUE(directory.save(generated_checkpoint(ctx, 2), /*best=*/true).is_best);
    EXPECT_EQ(directory.save(generated_checkpoint(ctx, 3)).problem, "");
    EXPECT_THAT(steps_in(directory), ElementsAre(3));
    test::expect_same(read_checkpoint(directory.best_path()), generated_checkpoint(ctx, 2));
    EXPECT_EQ(directory.load_newest().checkpoint->step, 3);

    // Saves the same checkpoint twice: a rename() between two names for one file must not leave the temporary
    // name.
    EXPECT_TRUE(directory.save(generated_checkpoint(ctx, 3), true).is_best);
    std::set<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(place.path()))
        names.insert(file.path().filename());
    EXPECT_THAT(names, ElementsAre("best.h5", "step_00000003.h5"));
}

TEST(CheckpointDirectory, FallsBackToTheBestWhenNothingNewerIsSound) {
    const Context ctx;
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place.path(), {.keep_last = 1});
    directory.save(generated_checkpoint(ctx, 1), true);
    directory.save(generated_checkpoint(ctx, 2));
    flip_a_bit(directory.path_of(2));
    const auto loaded = directory.load_newest();
    EXPECT_EQ(loaded.path, directory.best_path());
    EXPECT_THAT(loaded.damaged, ElementsAre(HasSubstr("step_00000002.h5")));
}

TEST(CheckpointDirectory, RetentionKeepsANewCheckpointDespiteLaterDamagedOnes) {
    // The run was resumed from a step before a damaged file. The damaged file must not count as the newest.
    const Context ctx;
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place.path(), {.keep_last = 1});
    directory.save(generated_checkpoint(ctx, 8));
    flip_a_bit(directory.path_of(8));
    directory.save(generated_checkpoint(ctx, 6));
    directory.save(generated_checkpoint(ctx, 7));
    EXPECT_THAT(steps_in(directory), ElementsAre(8, 7));
    EXPECT_EQ(directory.load_newest().checkpoint->step, 7);
}

TEST(CheckpointDirectory, RemovesTheTemporariesOfAKilledProcess) {
    const TemporaryDirectory place;
    test::write_bytes(place / "step_00000001.h5.tmp-12", {});
    test::write_bytes(place / "best.h5.tmp-12", {});
    test::write_bytes(place / "other", {});
    CheckpointDirectory(place.path()).remove_temporaries();
    EXPECT_FALSE(std::filesystem::exists(place / "step_00000001.h5.tmp-12"));
    EXPECT_FALSE(std::filesystem::exists(place / "best.h5.tmp-12"));
    EXPECT_TRUE(std::filesystem::exists(place / "other"));
}

TEST(CheckpointDirectory, RefusesAPolicyThatKeepsNothing) {
    EXPECT_THAT(error_of([] { CheckpointDirectory("a", {.keep_last = 0}); }), HasSubstr("keep-last is 0"));
}

}  // namespace
}  // namespace gradtile
