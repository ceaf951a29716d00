// Processes that are killed at any moment during a save, and real disks that are full.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include <gradtile/train/checkpoint/snapshot_writer.h>
#include <gradtile/train/run/run_lock.h>

#include <support/memory_file_system.h>
#include <support/signal_process.h>
#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::FaultyFileSystem;
using test::generated_checkpoint;
using test::TemporaryDirectory;
using testing::HasSubstr;

constexpr std::int64_t kWidth = 100;

// Acts as a trainer with checkpoints: resumes, saves every step, and reports each saved one through the pipe.
// Ends when it is killed, or at file operation `last_operation`.
[[noreturn]] void train(const std::filesystem::path& place, int pipe, std::int64_t last_operation) {
    try {
        const RunLock lock(place);
        std::int64_t operations = 0;
        FaultyFileSystem fs(FileSystem::posix(), [&](FaultyFileSystem::Call, std::size_t) -> std::int64_t {
            if (++operations == last_operation) ::kill(::getpid(), SIGKILL);
            return 0;
        });
        const Context ctx(Device::cpu(), 1);
        const CheckpointDirectory directory(place / "checkpoints", {.keep_last = 2, .keep_every = 50}, fs);
        directory.remove_temporaries();
        const auto resumed = directory.load_newest({.training_state = false});
        std::int64_t step = resumed.checkpoint ? resumed.checkpoint->step : 0;
        SnapshotWriter writer(directory, ctx);
        while (true) {
            ++step;
            writer.save(generated_checkpoint(ctx, step, kWidth), step % 5 == 0);
            for (const SaveReport& report : writer.poll()) {
                if (!report.saved || !report.message.empty()) ::_exit(2);
                if (::write(pipe, &report.step, sizeof report.step) != sizeof report.step) ::_exit(3);
            }
        }
    } catch (const std::exception&) {
        ::_exit(4);
    }
}

TEST(CheckpointKill, AtAnyMomentLosesNoReportedSave) {
    const Context ctx(Device::cpu(), 1);
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place / "checkpoints");
    std::mt19937_64 random(std::random_device{}());
    std::int64_t reported = 0;
    std::int64_t reported_best = 0;
    int killed_with_temporary = 0;
    const int rounds = test::test_rounds(40);
    for (int round = 0; round < rounds; ++round) {
        int ends[2];
        ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        // In every second round the process ends at a file operation, in the others after a delay.
        const std::int64_t last_operation =
            round % 2 == 0 ? static_cast<std::int64_t>(1 + random() % 200) : -1;
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) train(place.path(), ends[1], last_operation);
        ::close(ends[1]);
        if (last_operation < 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(random() % 120'000));
            test::signal_process(child, SIGKILL);
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFSIGNALED(status)) << "exit code " << WEXITSTATUS(status);
        for (std::int64_t step = 0; ::read(ends[0], &step, sizeof step) == sizeof step;) {
            reported = step;
            if (step % 5 == 0) reported_best = step;
        }
        ::close(ends[0]);

        std::vector<std::string> names;
        FileSystem::posix().list(directory.path(), names);
        for (const std::string& name : names)
            killed_with_temporary += name.find(".tmp-") != std::string::npos;
        const auto loaded = directory.load_newest();
        const std::int64_t found = loaded.checkpoint ? loaded.checkpoint->step : 0;
        ASSERT_GE(found, reported) << "round " << round;
        ASSERT_TRUE(loaded.damaged.empty()) << loaded.damaged.front();
        if (found > 0) test::expect_same(*loaded.checkpoint, generated_checkpoint(ctx, found, kWidth));
        if (reported_best > 0) {
            ASSERT_GE(read_checkpoint(directory.best_path()).step, reported_best);
        }
        ASSERT_FALSE(testing::Test::HasFailure()) << "round " << round;
    }
    // If no save was interrupted, all kills were between saves, and the test proved nothing.
    EXPECT_GT(killed_with_temporary, 0);
    EXPECT_GT(reported, 0);
    std::cout << "  " << rounds << " kills, " << killed_with_temporary << " of them inside a save; step "
              << reported << '\n';
}

// Runs `work` in a child process and returns its result as a message; "" is success.
std::string in_child(const std::function<std::string()>& work) {
    int ends[2];
    if (::pipe(ends) != 0) return "no pipe";
    const pid_t child = ::fork();
    if (child == 0) {
        std::string message;
        try {
            message = work();
        } catch (const std::exception& error) {
            message = std::string("threw: ") + error.what();
        }
        const auto ignored = ::write(ends[1], message.data(), message.size());
        ::_exit(ignored == static_cast<ssize_t>(message.size()) ? 0 : 1);
    }
    ::close(ends[1]);
    std::string message;
    char buffer[512];
    for (ssize_t n = 0; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;)
        message.append(buffer, static_cast<std::size_t>(n));
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status)) return concat("died of signal ", WTERMSIG(status), ' ', message);
    return message;
}

// Saves until the disk is full. Checks that every failure is reported with its reason and file, leaves no
// file behind and keeps the newest checkpoint, and that saves succeed after make_room(). Returns the first
// fault, or "".
std::string fill_disk(const std::filesystem::path& place, const std::string& expected_reason,
                      const std::function<void()>& make_room) {
    const Context ctx(Device::cpu(), 1);
    SnapshotWriter writer(CheckpointDirectory(place, {.keep_last = 100}), ctx);
    std::int64_t newest = 0;
    int failures = 0;
    for (std::int64_t step = 1; step <= 400 && failures < 3; ++step) {
        writer.save(generated_checkpoint(ctx, step, kWidth + step));
        writer.wait();
        for (const SaveReport& report : writer.poll()) {
            if (report.saved) newest = report.step;
            if (report.saved) continue;
            ++failures;
            if (report.message.find(expected_reason) == std::string::npos)
                return "unexpected: " + report.message;
            if (report.message.find(report.path.string()) == std::string::npos)
                return "unnamed: " + report.message;
            if (std::filesystem::exists(report.path)) return "left " + report.path.string();
            for (const auto& file : std::filesystem::directory_iterator(place)) {
                if (file.path().string().find(".tmp-") != std::string::npos)
                    return "left " + file.path().string();
            }
        }
        if (newest > 0 && writer.directory().load_newest().checkpoint->step != newest)
            return "lost the newest";
    }
    if (failures < 3) return "the disk never was full";
    if (newest == 0) return "nothing was ever saved";
    make_room();
    writer.save(generated_checkpoint(ctx, 1000, kWidth));
    writer.wait();
    const auto reports = writer.poll();
    return reports.at(0).saved ? "" : "after there was room: " + reports.at(0).message;
}

TEST(CheckpointDiskFull, AFileSizeLimitFailsOnlyTheSave) {
    const TemporaryDirectory place;
    EXPECT_EQ(
        in_child([&] {
            ::signal(
                SIGXFSZ,
                SIG_IGN);  // as in the trainer: exceeding the limit is an error and does not end the process
            const rlimit limit{900'000, RLIM_INFINITY};
            ::setrlimit(RLIMIT_FSIZE, &limit);
            return fill_disk(place.path(), "File too large", [] {});
        }),
        "");
}

TEST(CheckpointDiskFull, AFullFileSystemFailsOnlyTheSave) {
    const TemporaryDirectory place;
    // An 8 MB file system that is visible only to this child.
    const std::string result = in_child([&]() -> std::string {
        if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("tmpfs", place.path().c_str(), "tmpfs", 0, "size=8m") != 0) {
            return "no mount";
        }
        return fill_disk(place.path(), "No space left on device", [&] {
            for (std::int64_t step = 1; step <= 3; ++step) {
                std::filesystem::remove(CheckpointDirectory(place.path()).path_of(step));
            }
        });
    });
    if (result == "no mount")
        GTEST_SKIP() << "mounting a small tmpfs needs privileges this process does not have";
    EXPECT_EQ(result, "");
}

}  // namespace
}  // namespace gradtile
