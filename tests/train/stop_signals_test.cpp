#include <gradtile/train/stop_signals.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

TEST(StopSignals, RemembersTheFirstSignal) {
    for (const int number : {SIGTERM, SIGUSR1}) {
        const StopSignals signals;
        EXPECT_FALSE(signals.requested());
        raise(number);
        EXPECT_TRUE(signals.requested());
        EXPECT_EQ(signals.signal(), number);
    }
}

TEST(StopSignals, ASecondSignalEndsTheProcessAtOnce) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const StopSignals signals;
        raise(SIGTERM);
        raise(SIGTERM);
        _exit(0);  // not reached
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + SIGTERM);
}

TEST(StopSignals, ASignalOfTheOtherKindIsTheSameRequest) {
    const StopSignals signals;
    raise(SIGTERM);
    raise(SIGUSR1);
    EXPECT_EQ(signals.signal(), SIGTERM);
}

TEST(StopSignals, GivesTheFormerHandlersBack) {
    { const StopSignals signals; }
    struct sigaction now {};
    sigaction(SIGTERM, nullptr, &now);
    EXPECT_EQ(now.sa_handler, SIG_DFL);
}

TEST(StopSignals, OneAtATime) {
    const StopSignals first;
    EXPECT_THROW(StopSignals second, Error);
}

}  // namespace
}  // namespace gradtile
