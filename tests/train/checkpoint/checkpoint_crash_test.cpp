// A run's checkpoints after a power cut or a disk failure. The tests assume that a file system guarantees
// only data that was fsynced.
#include <gmock/gmock.h>

#include <random>

#include <gradtile/train/checkpoint/checkpoint_directory.h>

#include <support/memory_file_system.h>
#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::FaultyFileSystem;
using test::generated_checkpoint;
using test::MemoryFileSystem;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Kind = MemoryFileSystem::Operation::Kind;

const RetentionPolicy kRetention{.keep_last = 2, .keep_every = 3};

// Two directory levels, so that the entries in both directories must be durable, too.
const char* const kDirectory = "run/checkpoints";

bool is_best(std::int64_t step) {
    return step == 2 || step == 4;
}

// Writes a checkpoint to one file, or to one file for each of several ranks and a main file.
CheckpointDirectory::Saved save_to(const CheckpointDirectory& directory, const Checkpoint& checkpoint,
                                   std::int64_t ranks = 0) {
    const bool best = is_best(checkpoint.step);
    const auto save = static_cast<std::uint64_t>(checkpoint.step);
    return ranks == 0 ? directory.save(checkpoint, best)
                      : test::save_in_parts(directory, checkpoint, save, ranks, best);
}

// Saves all checkpoints, and adds a marker with the step to the log after each save() has returned.
void save_steps(MemoryFileSystem& memory, FileSystem& fs, const std::vector<Checkpoint>& checkpoints,
                std::int64_t ranks = 0) {
    const CheckpointDirectory directory(kDirectory, kRetention, fs);
    for (const Checkpoint& checkpoint : checkpoints) {
        ASSERT_EQ(save_to(directory, checkpoint, ranks).problem, "");
        memory.mark(static_cast<std::uint64_t>(checkpoint.step));
    }
}

std::vector<Checkpoint> checkpoints_to_save(std::int64_t steps) {
    const Context ctx(Device::cpu(), 1);
    std::vector<Checkpoint> checkpoints;
    for (std::int64_t step = 1; step <= steps; ++step) {
        checkpoints.push_back(generated_checkpoint(ctx, step));
        // The tensor is so large that it is written separately from libhdf5's structures.
        checkpoints.back().params["large"] =
            randn(ctx, {150, 300}, DType::f32, Seed{static_cast<std::uint64_t>(step)});
    }
    return checkpoints;
}

bool same_params(const Checkpoint& a, const Checkpoint& b) {
    return a.step == b.step &&
           std::equal(a.params.begin(), a.params.end(), b.params.begin(), b.params.end(),
                      [](const auto& x, const auto& y) {
                          return x.first == y.first &&
                                 test::row_major_bytes(x.second) == test::row_major_bytes(y.second);
                      });
}

// Returns what a crash after the log's first `count` operations breaks in the run; "" if no reported save is
// lost.
std::string loss_after(const std::vector<MemoryFileSystem::Operation>& log, std::size_t count,
                       const std::vector<Checkpoint>& checkpoints,
                       const std::function<bool(std::size_t)>& happened) {
    std::int64_t reported = 0;
    std::int64_t reported_best = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (log[i].kind != Kind::marker) continue;
        reported = static_cast<std::int64_t>(log[i].offset);
        if (is_best(reported)) reported_best = reported;
    }
    const auto left = MemoryFileSystem::after_crash(log, count, happened);
    const CheckpointDirectory directory(kDirectory, kRetention, *left);
    const auto loaded = directory.load_newest();
    const std::int64_t found = loaded.checkpoint ? loaded.checkpoint->step : 0;
    if (found < reported) return concat("step ", reported, " was reported, step ", found, " is left");
    if (found > 0 && !same_params(*loaded.checkpoint, checkpoints.at(static_cast<std::size_t>(found - 1)))) {
        return concat("step ", found, " is not what was saved");
    }
    if (reported_best > 0) {
        try {
            const std::int64_t best = read_checkpoint(directory.best_path(), {}, *left).step;
            if (best < reported_best)
                return concat("best.h5 holds step ", best, ", ", reported_best, " was reported");
        } catch (const Error& error) {
            return error.what();
        }
    }
    return {};
}

// Replays every log prefix under different assumptions about data that was not fsynced. Returns the first
// loss.
std::string first_loss(const std::vector<MemoryFileSystem::Operation>& log,
                       const std::vector<Checkpoint>& checkpoints, int random_outcomes) {
    std::mt19937 random(1);
    for (std::size_t count = 0; count <= log.size(); ++count) {
        std::vector<std::function<bool(std::size_t)>> fates = {
            [](std::size_t) { return false; },  // no data was written
            [](std::size_t) { return true; },   // all data was written
            // Either names were written and data was not, or data was written and names were not: file
            // systems write them in any order.
            [&](std::size_t i) { return log[i].kind != Kind::write && log[i].kind != Kind::truncate; },
            [&](std::size_t i) { return log[i].kind == Kind::write || log[i].kind == Kind::truncate; },
        };
        for (int i = 0; i < random_outcomes; ++i)
            fates.push_back([&](std::size_t) { return random() % 2 == 0; });
        for (const auto& happened : fates) {
            const std::string loss = loss_after(log, count, checkpoints, happened);
            if (!loss.empty()) return concat("crash after ", count, " operations: ", loss);
        }
    }
    return {};
}

TEST(CheckpointCrash, AtEveryOperationLeavesTheNewestReportedSave) {
    const auto checkpoints = checkpoints_to_save(6);
    MemoryFileSystem memory;
    save_steps(memory, memory, checkpoints);
    EXPECT_GT(memory.operations().size(), 60u);
    EXPECT_EQ(first_loss(memory.operations(), checkpoints, test::test_rounds(4)), "");
}

// A crash at an operation on any rank's part. Alternating with whole files, because a run may be resumed with
// other settings.
TEST(CheckpointCrash, AtEveryOperationOnEveryPartLeavesTheNewestReportedSave) {
    const auto checkpoints = checkpoints_to_save(6);
    for (const bool alternating : {false, true}) {
        MemoryFileSystem memory;
        const CheckpointDirectory directory(kDirectory, kRetention, memory);
        for (const Checkpoint& checkpoint : checkpoints) {
            const std::int64_t ranks = alternating && checkpoint.step % 2 == 0 ? 0 : 3;
            ASSERT_EQ(save_to(directory, checkpoint, ranks).problem, "");
            memory.mark(static_cast<std::uint64_t>(checkpoint.step));
        }
        EXPECT_GT(memory.operations().size(), 60u);
        EXPECT_EQ(first_loss(memory.operations(), checkpoints, test::test_rounds(4)), "");
    }
}

// The replay must be able to detect lost data. This test omits the file fsyncs, and then the directory
// fsyncs, and the replay must detect the loss in both cases.
TEST(CheckpointCrash, WouldLoseSavesWithoutTheSyncs) {
    const auto checkpoints = checkpoints_to_save(2);
    for (const auto& omitted : {std::pair{false, 0}, {true, 0}, {false, 2}, {true, 2}}) {
        const bool directories = omitted.first;
        const std::int64_t ranks = omitted.second;
        MemoryFileSystem memory;
        save_steps(memory, memory, checkpoints, ranks);
        auto log = memory.operations();
        std::map<int, bool> written;
        for (const auto& operation : log) {
            if (operation.kind == Kind::write) written[operation.node] = true;
        }
        std::erase_if(log, [&](const auto& operation) {
            return operation.kind == Kind::sync && written[operation.node] != directories;
        });
        EXPECT_NE(first_loss(log, checkpoints, 4), "") << (directories ? "directory" : "file");
    }
}

TEST(CheckpointCrash, ANameWithoutItsDataIsRefused) {
    const auto checkpoints = checkpoints_to_save(2);
    MemoryFileSystem memory;
    save_steps(memory, memory, checkpoints);
    auto log = memory.operations();
    for (std::size_t i = 1; i < log.size(); ++i) {
        if (log[i].kind == Kind::rename && log[i - 1].kind == Kind::sync) std::swap(log[i], log[i - 1]);
    }
    // On a file system without ordering, a crash between the two operations leaves a partial file under the
    // final name.
    EXPECT_EQ(first_loss(log, checkpoints, 4), "");
}

struct Outcome {
    bool saved = false;
    std::string message;
};

Outcome try_save(const CheckpointDirectory& directory, const Checkpoint& checkpoint, std::int64_t ranks = 0) {
    try {
        return {true, save_to(directory, checkpoint, ranks).problem};
    } catch (const Error& error) {
        return {false, error.what()};
    }
}

// Saves step 1 without faults and step 2 with one, then checks the directory. Returns the number of calls.
std::size_t save_under(
    const std::vector<Checkpoint>& checkpoints, const std::string& description,
    const std::function<std::int64_t(std::size_t call, FaultyFileSystem::Call, std::size_t)>& fault,
    std::int64_t ranks = 0) {
    MemoryFileSystem memory;
    const CheckpointDirectory sound(kDirectory, kRetention, memory);
    EXPECT_TRUE(try_save(sound, checkpoints[0], ranks).saved);

    std::size_t calls = 0;
    FaultyFileSystem faulty(
        memory, [&](FaultyFileSystem::Call call, std::size_t bytes) { return fault(calls++, call, bytes); });
    const Outcome outcome =
        try_save(CheckpointDirectory(kDirectory, kRetention, faulty), checkpoints[1], ranks);
    EXPECT_THAT(outcome.message, Not(HasSubstr("\n"))) << description;
    if (!outcome.saved) {
        EXPECT_THAT(outcome.message, StartsWith("checkpoint")) << description;
        sound.remove_unlisted_parts();
    }

    const auto loaded = sound.load_newest();
    EXPECT_TRUE(loaded.checkpoint.has_value()) << description;
    if (loaded.checkpoint) {
        // A save may fail in the last step, the directory's fsync. The file then has its final name and is
        // complete, but its durability was not promised.
        const std::int64_t step = loaded.checkpoint->step;
        EXPECT_TRUE(step == 2 || (step == 1 && !outcome.saved)) << description << ": " << step;
        EXPECT_TRUE(same_params(*loaded.checkpoint, checkpoints[static_cast<std::size_t>(step - 1)]))
            << description;
    }
    EXPECT_TRUE(loaded.damaged.empty()) << description;
    EXPECT_TRUE(same_params(read_checkpoint(sound.path_of(1), {}, memory), checkpoints[0])) << description;

    // Training continues: once the disk works again, the next save succeeds.
    EXPECT_EQ(try_save(sound, checkpoints[2], ranks).message, "") << description;
    EXPECT_TRUE(same_params(*sound.load_newest().checkpoint, checkpoints[2])) << description;
    return calls;
}

bool leaves_temporary(const std::vector<Checkpoint>& checkpoints, std::size_t failing, std::int64_t code,
                      bool permanently) {
    MemoryFileSystem memory;
    std::size_t calls = 0;
    bool can_remove = true;
    FaultyFileSystem faulty(memory, [&](FaultyFileSystem::Call call, std::size_t) -> std::int64_t {
        const std::size_t index = calls++;
        const bool fails = index == failing || (permanently && index > failing);
        if (fails && call == FaultyFileSystem::Call::remove) can_remove = false;
        return fails ? code : 0;
    });
    try_save(CheckpointDirectory(kDirectory, kRetention, faulty), checkpoints[1]);
    std::vector<std::string> names;
    memory.list(kDirectory, names);
    for (const std::string& name : names) {
        if (name.find(".tmp-") != std::string::npos && can_remove) return true;
    }
    return false;
}

TEST(CheckpointFaults, AFailureOfAnyCallFailsOnlyTheRunningSave) {
    const auto checkpoints = checkpoints_to_save(3);
    const std::size_t calls =
        save_under(checkpoints, "no fault", [](std::size_t, auto, std::size_t) { return 0; });
    EXPECT_GT(calls, 25u);
    for (const std::int64_t code : {-ENOSPC, -EIO, -EDQUOT}) {
        for (std::size_t failing = 0; failing < calls; ++failing) {
            save_under(checkpoints, concat("call ", failing, ": ", describe_errno(code)),
                       [&](std::size_t call, auto, std::size_t) { return call == failing ? code : 0; });
            save_under(checkpoints, concat("calls from ", failing, " on: ", describe_errno(code)),
                       [&](std::size_t call, FaultyFileSystem::Call kind, std::size_t) {
                           // After writes fail permanently, files can still be read and removed.
                           const bool spared = kind == FaultyFileSystem::Call::read_at ||
                                               kind == FaultyFileSystem::Call::remove;
                           return call >= failing && !spared ? code : 0;
                       });
            EXPECT_FALSE(leaves_temporary(checkpoints, failing, code, false)) << failing;
        }
    }
}

TEST(CheckpointFaults, AFailureOfAnyCallOnAnyPartFailsOnlyTheRunningSave) {
    const auto checkpoints = checkpoints_to_save(3);
    constexpr std::int64_t ranks = 2;
    const std::size_t calls = save_under(
        checkpoints, "no fault", [](std::size_t, auto, std::size_t) { return 0; }, ranks);
    EXPECT_GT(calls, 50u);
    for (std::size_t failing = 0; failing < calls; ++failing) {
        save_under(
            checkpoints, concat("call ", failing),
            [&](std::size_t call, auto, std::size_t) { return call == failing ? -ENOSPC : 0; }, ranks);
        save_under(
            checkpoints, concat("calls from ", failing, " on"),
            [&](std::size_t call, FaultyFileSystem::Call kind, std::size_t) {
                const bool spared =
                    kind == FaultyFileSystem::Call::read_at || kind == FaultyFileSystem::Call::remove;
                return call >= failing && !spared ? -EIO : 0;
            },
            ranks);
    }
}

TEST(CheckpointFaults, AFailedWriteIsReportedWithTheFileSystemsMessage) {
    const auto checkpoints = checkpoints_to_save(2);
    MemoryFileSystem memory;
    FaultyFileSystem full(memory, [](FaultyFileSystem::Call call, std::size_t) -> std::int64_t {
        return call == FaultyFileSystem::Call::write_at ? -ENOSPC : 0;
    });
    const Outcome outcome = try_save(CheckpointDirectory(kDirectory, kRetention, full), checkpoints[0]);
    EXPECT_EQ(outcome.message,
              "checkpoint run/checkpoints/step_00000001.h5: cannot write: No space left on device");
}

TEST(CheckpointFaults, ShortAndInterruptedWritesAreContinued) {
    const auto checkpoints = checkpoints_to_save(3);
    for (const std::size_t most : {std::size_t{1000}, std::size_t{65'537}}) {
        bool interrupted = false;
        const auto fault = [&](std::size_t, FaultyFileSystem::Call kind, std::size_t bytes) -> std::int64_t {
            if (kind != FaultyFileSystem::Call::write_at && kind != FaultyFileSystem::Call::read_at) return 0;
            interrupted = !interrupted;
            if (interrupted) return -EINTR;
            return static_cast<std::int64_t>(std::min(bytes, most));
        };
        MemoryFileSystem memory;
        FaultyFileSystem faulty(
            memory, [&](FaultyFileSystem::Call kind, std::size_t bytes) { return fault(0, kind, bytes); });
        const CheckpointDirectory directory(kDirectory, kRetention, faulty);
        ASSERT_TRUE(try_save(directory, checkpoints[0]).saved);
        EXPECT_TRUE(same_params(*directory.load_newest().checkpoint, checkpoints[0]));
    }
}

// A save reads its file back before the rename. The file has many tensors, because libhdf5 1.10 crashes on a
// read error in a group with more than eight tensors.
TEST(CheckpointFaults, AReadErrorWhileASaveIsVerifiedFailsThatSaveOnly) {
    auto checkpoints = checkpoints_to_save(3);
    const Context ctx(Device::cpu(), 1);
    for (Checkpoint& checkpoint : checkpoints)
        for (std::uint64_t i = 0; i < 12; ++i)
            checkpoint.params[concat("more.", i)] = randn(ctx, {9, 5}, DType::f32, Seed{i});
    std::size_t reads = 0;
    save_under(checkpoints, "no fault", [&](std::size_t, FaultyFileSystem::Call kind, std::size_t) {
        reads += kind == FaultyFileSystem::Call::read_at ? 1 : 0;
        return 0;
    });
    ASSERT_GE(reads, 3u);
    for (const std::int64_t code :
         {std::int64_t{-EIO}, std::int64_t{-ESTALE}, FaultyFileSystem::end_of_file}) {
        for (std::size_t failing = 0; failing < reads; ++failing) {
            for (const bool permanently : {false, true}) {
                if (permanently && code != -EIO) continue;
                std::size_t read = 0;
                save_under(checkpoints, concat("read ", failing, ": ", code),
                           [&](std::size_t, FaultyFileSystem::Call kind, std::size_t) -> std::int64_t {
                               if (kind != FaultyFileSystem::Call::read_at) return 0;
                               const std::size_t index = read++;
                               return index == failing || (permanently && index > failing) ? code : 0;
                           });
            }
        }
    }
}

TEST(CheckpointFaults, CorruptedBytesAreDetectedBeforeTheRename) {
    const auto checkpoints = checkpoints_to_save(1);
    // The memory flips a bit in the n-th write.
    class Flipping final : public FileSystem {
      public:
        Flipping(MemoryFileSystem& base, int bad) : base_(base), bad_(bad) {}
        int open(const std::filesystem::path& path, int flags, int mode) override {
            return base_.open(path, flags, mode);
        }
        int close(int file) override { return base_.close(file); }
        std::int64_t read_at(int file, std::byte* data, std::size_t bytes, std::uint64_t offset) override {
            return base_.read_at(file, data, bytes, offset);
        }
        std::int64_t write_at(int file, const std::byte* data, std::size_t bytes,
                              std::uint64_t offset) override {
            std::vector<std::byte> copy(data, data + bytes);
            if (writes++ == bad_) copy[bytes / 2] ^= std::byte{1};
            return base_.write_at(file, copy.data(), bytes, offset);
        }
        std::int64_t size(int file) override { return base_.size(file); }
        int reserve(int file, std::uint64_t bytes) override { return base_.reserve(file, bytes); }
        int truncate(int file, std::uint64_t bytes) override { return base_.truncate(file, bytes); }
        int start_writeback(int, std::uint64_t, std::uint64_t) override { return 0; }
        int sync(int file) override { return base_.sync(file); }
        int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
            return base_.rename(from, to);
        }
        int remove(const std::filesystem::path& path) override { return base_.remove(path); }
        int lock(int file) override { return base_.lock(file); }
        bool has_name(int file, const std::filesystem::path& path) override {
            return base_.has_name(file, path);
        }
        int list(const std::filesystem::path& path, std::vector<std::string>& names) override {
            return base_.list(path, names);
        }
        int writes = 0;

      private:
        MemoryFileSystem& base_;
        int bad_;
    };
    for (int bad = 0, writes = 1; bad < writes; ++bad) {
        MemoryFileSystem memory;
        Flipping flipping(memory, bad);
        std::string message;
        try {
            write_checkpoint("a.h5", checkpoints[0], flipping);
        } catch (const Error& error) {
            message = error.what();
        }
        EXPECT_THAT(message, HasSubstr("checkpoint a.h5: ")) << "write " << bad;
        EXPECT_FALSE(memory.exists("a.h5")) << "write " << bad;
        writes = flipping.writes;
        EXPECT_GE(writes, 3);
    }
}

}  // namespace
}  // namespace gradtile
