#include <gradtile/train/checkpoint/snapshot_writer.h>

#include <gmock/gmock.h>

#include <atomic>
#include <cerrno>
#include <limits>

#include <support/memory_file_system.h>
#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::generated_checkpoint;
using test::TemporaryDirectory;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(SnapshotWriter, SavesTheStateBeforeLaterChanges) {
    const Context ctx;
    const TemporaryDirectory place;
    SnapshotWriter writer(CheckpointDirectory(place.path(), {.keep_last = 100}), ctx);
    const Checkpoint live = generated_checkpoint(ctx, 0);
    for (std::int64_t step = 1; step <= 20; ++step) {
        Checkpoint now = live;  // shares `live`'s tensors
        now.step = step;
        const auto overwrite = [&](const NamedTensors& tensors) {
            for (const auto& [name, x] : tensors) fill(ctx, x, static_cast<double>(step));
        };
        overwrite(now.params);
        overwrite(now.master);
        overwrite(now.optimizer);
        writer.save(now);
        for (const auto& [name, x] : now.params) fill(ctx, x, -1.0);
    }
    writer.wait();
    const auto reports = writer.poll();
    ASSERT_THAT(reports, SizeIs(20));
    for (const SaveReport& report : reports) {
        EXPECT_TRUE(report.saved) << report.message;
        EXPECT_EQ(report.message, "");
        const Checkpoint found = read_checkpoint(report.path);
        EXPECT_EQ(found.step, report.step);
        for (const auto& [name, x] : found.params) {
            EXPECT_EQ(item(ctx, x.reshape({-1}).slice(0, x.elements() - 1, 1)),
                      static_cast<double>(report.step));
        }
    }
    EXPECT_THAT(writer.poll(), IsEmpty());
}

TEST(SnapshotWriter, ReportsAFailedSaveAndContinues) {
    const Context ctx;
    const TemporaryDirectory place;
    SnapshotWriter writer(CheckpointDirectory(place.path()), ctx);
    writer.reserve(generated_checkpoint(ctx, 0));
    writer.save(generated_checkpoint(ctx, 1));
    Checkpoint bad = generated_checkpoint(ctx, 2);
    fill(ctx, bad.master.at("blocks.0.norm.weight"), std::numeric_limits<double>::quiet_NaN());
    writer.save(bad);
    writer.save(generated_checkpoint(ctx, 3), /*best=*/true);
    writer.wait();
    const auto reports = writer.poll();
    ASSERT_THAT(reports, SizeIs(3));
    EXPECT_TRUE(reports[0].saved);
    EXPECT_FALSE(reports[1].saved);
    EXPECT_THAT(reports[1].message, HasSubstr("master/blocks.0.norm.weight: holds an infinity or a NaN"));
    EXPECT_THAT(reports[1].message, testing::Not(HasSubstr("\n")));
    EXPECT_TRUE(reports[2].saved);
    EXPECT_EQ(writer.directory().load_newest().checkpoint->step, 3);
    EXPECT_TRUE(std::filesystem::exists(writer.directory().best_path()));
    EXPECT_FALSE(std::filesystem::exists(writer.directory().path_of(2)));
}

// libhdf5 crashes on a read error.
TEST(SnapshotWriter, AReadErrorWhileASaveIsVerifiedIsReportedAndTheNextSaveIsSound) {
    const Context ctx;
    test::MemoryFileSystem memory;
    std::atomic<bool> broken = false;
    test::FaultyFileSystem disk(memory, [&](test::FaultyFileSystem::Call call, std::size_t) -> std::int64_t {
        return broken && call == test::FaultyFileSystem::Call::read_at ? -EIO : 0;
    });
    SnapshotWriter writer(CheckpointDirectory("checkpoints", {}, disk), ctx);
    for (std::int64_t step = 1; step <= 3; ++step) {
        broken = step == 2;
        writer.save(generated_checkpoint(ctx, step));
        writer.wait();
    }
    const auto reports = writer.poll();
    ASSERT_THAT(reports, SizeIs(3));
    EXPECT_TRUE(reports[0].saved);
    EXPECT_EQ(reports[1].message, "checkpoint checkpoints/step_00000002.h5: cannot read: Input/output error");
    EXPECT_FALSE(reports[1].saved);
    EXPECT_TRUE(reports[2].saved);
    EXPECT_EQ(writer.directory().load_newest().checkpoint->step, 3);
    EXPECT_EQ(read_checkpoint(writer.directory().path_of(1), {}, memory).step, 1);
    EXPECT_FALSE(memory.exists("checkpoints/step_00000002.h5"));
}

TEST(SnapshotWriter, SavesStridedViewsAndGrowsItsMemory) {
    const Context ctx;
    const TemporaryDirectory place;
    SnapshotWriter writer(CheckpointDirectory(place.path(), {.keep_last = 9}), ctx);
    for (const std::int64_t size : {3, 40, 7}) {
        Checkpoint c = generated_checkpoint(ctx, size);
        c.params["view"] = randn(ctx, {size, 600, 17}, DType::f32, Seed{1}).transpose(0, 2).slice(1, 5, 500);
        writer.save(c);
        writer.wait();
        test::expect_same(read_checkpoint(writer.directory().path_of(size)), c);
    }
}

TEST(SnapshotWriter, SavesInPlaceWithoutACopy) {
    const Context ctx;
    const TemporaryDirectory place;
    SnapshotWriter writer(CheckpointDirectory(place.path(), {.keep_last = 2}), ctx);
    const Checkpoint first = generated_checkpoint(ctx, 1), second = generated_checkpoint(ctx, 2);
    writer.save_in_place(first);
    writer.save_in_place(second, /*best=*/true);  // waits for the previous save
    writer.wait();
    test::expect_same(read_checkpoint(writer.directory().path_of(1)), first);
    test::expect_same(read_checkpoint(writer.directory().best_path()), second);
    EXPECT_EQ(writer.poll().size(), 2u);
}

/// The writing thread changes tensors after the copy and before it writes: only a tensor that was not copied
/// has the new elements in the file.
TEST(SnapshotWriter, ReadsConstantParametersInPlace) {
    const Context ctx;
    Checkpoint live;
    live.params["constant"] = zeros(ctx, {70, 3}, DType::i32);
    live.params["changing"] = zeros(ctx, {70, 3}, DType::f32);
    live.master["constant"] = zeros(ctx, {5}, DType::f32);  // only the parameter is constant
    live.constant_params = {"constant"};
    test::MemoryFileSystem memory;
    std::atomic<bool> changed = false;
    test::FaultyFileSystem disk(memory, [&](test::FaultyFileSystem::Call, std::size_t) -> std::int64_t {
        const Context own(Device::cpu(), 1);
        if (!changed.exchange(true))
            for (const NamedTensors* tensors : {&live.params, &live.master})
                for (const auto& [name, x] : *tensors) fill(own, x, 7.0);
        return 0;
    });
    SnapshotWriter writer(CheckpointDirectory("checkpoints", {}, disk), ctx);
    ASSERT_FALSE(changed);
    writer.reserve(live);
    writer.save(live);
    writer.wait();
    const auto reports = writer.poll();
    ASSERT_TRUE(reports.at(0).saved) << reports.at(0).message;
    const Checkpoint found = read_checkpoint(reports.at(0).path, {}, memory);
    EXPECT_THAT(to_host(ctx, found.params.at("constant")), testing::Each(7.0));
    EXPECT_THAT(to_host(ctx, found.params.at("changing")), testing::Each(0.0));
    EXPECT_THAT(to_host(ctx, found.master.at("constant")), testing::Each(0.0));
    EXPECT_GE(reports.at(0).bytes, live.params["constant"].bytes() + live.params["changing"].bytes());
}

TEST(SnapshotWriter, FinishesTheRunningSaveOnDestruction) {
    const Context ctx;
    const TemporaryDirectory place;
    {
        SnapshotWriter writer(CheckpointDirectory(place.path()), ctx);
        writer.save(generated_checkpoint(ctx, 5, 200));
    }
    test::expect_same(read_checkpoint(CheckpointDirectory(place.path()).path_of(5)),
                      generated_checkpoint(ctx, 5, 200));
}

TEST(SnapshotWriter, AnEmptyCheckpointIsLegal) {
    const Context ctx;
    const TemporaryDirectory place;
    SnapshotWriter writer(CheckpointDirectory(place.path()), ctx);
    writer.save({});
    writer.wait();
    EXPECT_TRUE(writer.poll().at(0).saved);
}

}  // namespace
}  // namespace gradtile
