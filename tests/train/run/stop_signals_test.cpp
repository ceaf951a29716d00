#include <gradtile/train/run/stop_signals.h>

#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/check.h>

#include <support/error_message.h>
#include <support/no_new_threads.h>
#include <support/signal_process.h>

namespace gradtile {
namespace {

[[noreturn]] void run_as_child(const std::function<void()>& body) {
    test::reset_ignored_signals();
    body();
    _exit(0);
}

/// Runs `body` in a child and returns its exit code, or 1000 + the signal that ended it. The child has one
/// thread, like a program at its start.
int end_of_child(const std::function<void()>& body) {
    const pid_t child = fork();
    if (child == 0) run_as_child(body);
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) throw Error("no child");
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// In a child: exits with 90 if the condition is false.
void require(bool holds) {
    if (!holds) _exit(90);
}

void send_to_self(int number) {
    kill(getpid(), number);
}

bool becomes(int number, const StopSignals& signals) {
    for (int i = 0; i < 5000 && signals.signal() == 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return signals.signal() == number;
}

void pause_for_signals() {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

TEST(StopSignals, AreAsBeforeWhenTheSystemGivesNoThread) {
    {
        const test::NoNewThreads limit;
        EXPECT_THAT(test::message_of([] { StopSignals(); }), testing::HasSubstr("none for signals"));
    }
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    EXPECT_EQ(sigismember(&blocked, SIGTERM), 0);
    const StopSignals again;  // the failed one watches no more
}

TEST(StopSignals, StoreTheFirstSignalAfterTheFirstRequestedCall) {
    for (const int number : {SIGTERM, SIGUSR1, SIGINT, SIGHUP})
        EXPECT_EQ(end_of_child([number] {
                      const StopSignals signals;
                      require(!signals.requested());
                      send_to_self(number);
                      require(becomes(number, signals));
                      require(signals.requested());
                  }),
                  0)
            << number;
}

TEST(StopSignals, EndTheProcessAtOnceBeforeTheFirstRequestedCall) {
    for (const int number : {SIGTERM, SIGUSR1, SIGINT, SIGHUP})
        EXPECT_EQ(end_of_child([number] {
                      const StopSignals signals;
                      send_to_self(number);
                      std::this_thread::sleep_for(std::chrono::seconds(60));
                  }),
                  128 + number);
}

TEST(StopSignals, ASecondSignalEndsTheProcessAtOnce) {
    for (const int number : {SIGTERM, SIGUSR1, SIGINT, SIGHUP})
        EXPECT_EQ(end_of_child([number] {
                      const StopSignals signals;
                      static_cast<void>(signals.requested());
                      send_to_self(number);
                      require(becomes(number, signals));
                      send_to_self(number);
                      std::this_thread::sleep_for(std::chrono::seconds(60));
                  }),
                  128 + number);
}

TEST(StopSignals, ASignalOfAnotherKindIsTheSameRequest) {
    EXPECT_EQ(end_of_child([] {
                  const StopSignals signals;
                  static_cast<void>(signals.requested());
                  send_to_self(SIGTERM);
                  require(becomes(SIGTERM, signals));
                  send_to_self(SIGUSR1);
                  pause_for_signals();
                  require(signals.signal() == SIGTERM);
              }),
              0);
}

TEST(StopSignals, AThreadThatComputesIsNeverInterrupted) {
    EXPECT_EQ(end_of_child([] {
                  const StopSignals signals;
                  std::thread([&] {
                      sigset_t blocked;
                      pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
                      for (const int number : {SIGTERM, SIGUSR1, SIGINT, SIGHUP})
                          require(sigismember(&blocked, number) == 1);
                  }).join();
              }),
              0);
}

TEST(StopSignals, SignalsIgnoredByNohupStayIgnored) {
    EXPECT_EQ(end_of_child([] {
                  ::signal(SIGHUP, SIG_IGN);
                  ::signal(SIGINT, SIG_IGN);
                  const StopSignals signals;
                  send_to_self(SIGHUP);
                  send_to_self(SIGINT);
                  pause_for_signals();
                  require(!signals.requested());
              }),
              0);
}

TEST(StopSignals, RestoreMaskAndDispositions) {
    EXPECT_EQ(end_of_child([] {
                  {
                      const StopSignals signals;
                      struct sigaction now {};
                      sigaction(SIGPIPE, nullptr, &now);
                      require(now.sa_handler == SIG_IGN);
                  }
                  for (const int number : {SIGTERM, SIGUSR1, SIGPIPE, SIGXFSZ}) {
                      struct sigaction now {};
                      sigaction(number, nullptr, &now);
                      require(now.sa_handler == SIG_DFL);
                  }
                  sigset_t blocked;
                  pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
                  require(sigismember(&blocked, SIGTERM) == 0);
                  send_to_self(SIGTERM);  // the default action applies again
              }),
              1000 + SIGTERM);
}

TEST(StopSignals, OneAtATime) {
    const StopSignals first;
    EXPECT_THROW(StopSignals second, Error);
}

// ---- A terminal that hangs up ----

/// A process that has its own pseudo-terminal, like a shell in a terminal window, and the other end of this
/// terminal.
struct OnTerminal {
    int window = -1;
    pid_t process = -1;

    explicit OnTerminal(const std::function<void()>& body) {
        process = forkpty(&window, nullptr, nullptr, nullptr);
        if (process < 0) throw Error("no terminal");
        if (process == 0) run_as_child(body);
    }
    /// Waits until the process has written something.
    void wait_until_ready() const {
        char byte = 0;
        if (read(window, &byte, 1) != 1) throw Error("the process on the terminal has ended");
    }
    int end() const {
        int status = 0;
        waitpid(process, &status, 0);
        return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
    }
};

void report_ready() {
    require(write(STDOUT_FILENO, "r", 1) == 1);
}

/// The process is the terminal's session leader, to which the kernel sends the signal.
TEST(StopSignals, AHungUpTerminalIsNoRequest) {
    const OnTerminal child([] {
        const StopSignals signals;
        require(!signals.requested());
        report_ready();
        while (write(STDOUT_FILENO, "x", 1) == 1) usleep(1000);  // until the terminal hangs up
        pause_for_signals();
        require(!signals.requested());
        send_to_self(SIGHUP);  // a shell forwards SIGHUP after the terminal is gone
        pause_for_signals();
        require(!signals.requested());
        send_to_self(SIGTERM);
        require(becomes(SIGTERM, signals));
    });
    child.wait_until_ready();
    close(child.window);
    EXPECT_EQ(child.end(), 0);
}

TEST(StopSignals, SighupFromAPersonIsARequestOnATerminal) {
    const OnTerminal child([] {
        const StopSignals signals;
        require(!signals.requested());
        report_ready();
        require(becomes(SIGHUP, signals));
    });
    child.wait_until_ready();
    kill(child.process, SIGHUP);
    EXPECT_EQ(child.end(), 0);
    close(child.window);
}

/// The shell is the session leader, receives the hangup, sends SIGHUP to its job and ends.
TEST(StopSignals, ATerminalHangupThatAShellSendsOnIsNoRequest) {
    int end_of_job[2];
    ASSERT_EQ(pipe(end_of_job), 0);
    const OnTerminal shell([&] {
        sigset_t hangup;
        sigemptyset(&hangup);
        sigaddset(&hangup, SIGHUP);
        sigprocmask(SIG_BLOCK, &hangup, nullptr);
        const pid_t job = fork();
        require(job >= 0);
        if (job == 0) {
            setpgid(0, 0);
            const StopSignals signals;
            require(!signals.requested());
            report_ready();
            int blocks = 0;
            while (ioctl(STDIN_FILENO, TIOCGWINSZ, &blocks) == 0 && getppid() != 1) usleep(1000);
            std::this_thread::sleep_for(std::chrono::seconds(1));
            const char requested = signals.requested() ? 'y' : 'n';
            require(write(end_of_job[1], &requested, 1) == 1);
            _exit(0);
        }
        sigwaitinfo(&hangup, nullptr);
        kill(-job, SIGHUP);
    });
    close(end_of_job[1]);
    shell.wait_until_ready();
    close(shell.window);
    EXPECT_EQ(shell.end(), 0);
    char requested = '?';
    EXPECT_EQ(read(end_of_job[0], &requested, 1), 1);
    EXPECT_EQ(requested, 'n');
    close(end_of_job[0]);
}

}  // namespace
}  // namespace gradtile
