#include <gradtile/train/run/run_lock.h>

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include <support/signal_process.h>

#include "checkpoint/checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::error_of;
using test::TemporaryDirectory;
using testing::HasSubstr;

TEST(RunLock, RefusesADirectoryThatAnotherProcessHoldsAndNamesBoth) {
    const TemporaryDirectory directory;
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t holder = ::fork();
    ASSERT_GE(holder, 0);
    if (holder == 0) {
        const RunLock lock(directory.path());
        if (::write(ready[1], "x", 1) != 1) ::_exit(1);
        while (true) ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    const std::string message = error_of([&] { RunLock{directory.path()}; });
    EXPECT_THAT(message, HasSubstr(directory.path().string()));
    EXPECT_THAT(message, HasSubstr("in use by process " + std::to_string(holder)));

    // The kernel releases the lock, no matter how its holder ends.
    test::signal_process(holder, SIGKILL);
    ::waitpid(holder, nullptr, 0);
    const RunLock lock(directory.path());
    ::close(ready[0]);
    ::close(ready[1]);
}

TEST(RunLock, IsReleasedOnDestruction) {
    const TemporaryDirectory directory;
    std::optional<RunLock> lock(directory.path());
    EXPECT_THAT(error_of([&] { RunLock{directory.path()}; }), HasSubstr("in use by process"));
    lock.reset();
    lock.emplace(directory.path());
}

TEST(RunLock, NeedsNoRoomOnTheDisk) {
    const TemporaryDirectory directory;
    rlimit old{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
    const rlimit full{.rlim_cur = 0, .rlim_max = old.rlim_max};
    const auto old_action = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &full), 0);
    std::optional<RunLock> lock;
    EXPECT_NO_THROW(lock.emplace(directory.path()));
    ::setrlimit(RLIMIT_FSIZE, &old);
    std::signal(SIGXFSZ, old_action);
    EXPECT_THAT(error_of([&] { RunLock{directory.path()}; }), HasSubstr("in use by another process"));
}

TEST(RunLock, NamesADirectoryItCannotWriteTo) {
    EXPECT_THAT(error_of([] { RunLock{"/proc"}; }), HasSubstr("lock /proc/.lock: cannot create"));
}

}  // namespace
}  // namespace gradtile
