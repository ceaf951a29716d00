#include <gradtile/core/context.h>

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/start_thread.h>

#include <support/error_message.h>
#include <support/no_new_threads.h>

namespace gradtile {
namespace {

/// Stops a thread, like a scheduler that preempts it, with a signal handler that blocks.
class HeldThread {
  public:
    explicit HeldThread(pthread_t thread) {
        EXPECT_EQ(pipe(held_), 0);
        EXPECT_EQ(pipe(released_), 0);
        struct sigaction action = {};
        action.sa_handler = [](int) { hold(); };
        sigaction(SIGUSR2, &action, &before_);
        pthread_kill(thread, SIGUSR2);
        char byte;
        EXPECT_EQ(read(held_[0], &byte, 1), 1);
    }
    ~HeldThread() {
        release();
        char byte;
        EXPECT_EQ(read(held_[0], &byte, 1), 1);  // the handler no longer uses the pipes
        sigaction(SIGUSR2, &before_, nullptr);
        for (const int end : {held_[0], held_[1], released_[0], released_[1]}) close(end);
    }
    HeldThread(const HeldThread&) = delete;
    HeldThread& operator=(const HeldThread&) = delete;

    void release() {
        if (is_released_.exchange(true)) return;
        EXPECT_EQ(write(released_[1], "r", 1), 1);
    }

  private:
    static void hold() {
        const int error = errno;
        char byte = 'h';
        while (write(held_[1], &byte, 1) < 0) {
        }
        while (read(released_[0], &byte, 1) < 0) {
        }
        while (write(held_[1], &byte, 1) < 0) {
        }
        errno = error;
    }
    static inline int held_[2], released_[2];
    struct sigaction before_ = {};
    std::atomic<bool> is_released_{false};
};

/// Runs one block on each of the pool's two threads and returns the thread that is not the caller's.
pthread_t other_thread_of(ThreadPool& pool) {
    pthread_t threads[2];
    std::atomic<int> started{0};
    pool.run(2, [&](std::int64_t block) {
        threads[block] = pthread_self();
        ++started;
        while (started.load() < 2) std::this_thread::yield();
    });
    return pthread_equal(threads[0], pthread_self()) != 0 ? threads[1] : threads[0];
}

TEST(ThreadPool, DoesNotWaitForAThreadThatGetsNoTimeToRun) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer delays a signal until the thread calls one of its own functions";
#endif
    ThreadPool pool(2);
    HeldThread held(other_thread_of(pool));
    std::atomic<bool> finished{false};
    bool was_held = true;
    std::thread rescue([&] {  // releases the thread after 5 s, so that a pool that waits for it fails the
                              // test and does not hang
        for (int i = 0; i < 500 && !finished.load(); ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        was_held = finished.load();
        held.release();
    });
    std::int64_t sum = 0;
    for (int job = 0; job < 100; ++job) {
        std::int64_t parts[3] = {};
        pool.run(3, [&](std::int64_t block) { parts[block] = job; });
        sum += parts[0] + parts[1] + parts[2];
    }
    finished.store(true);
    rescue.join();
    EXPECT_TRUE(was_held) << "the caller waited for a thread that had no block";
    EXPECT_EQ(sum, 3 * (99 * 100 / 2));
    other_thread_of(pool);  // returns only if the thread that missed a hundred jobs works on the next one
}

TEST(ThreadPool, ALateThreadDoesNotAccessAFinishedJob) {
    // More threads than most machines have cores: some wake long after their job has ended.
    ThreadPool pool(8);
    std::int64_t sum = 0;
    for (int job = 0; job < 3000; ++job) {
        // The memory is freed after each round and allocated again in the next. A sanitizer detects a late
        // read or call, and the sum detects a late write.
        auto parts = std::make_unique<std::int64_t[]>(2);
        const auto body = std::make_unique<std::function<void(std::int64_t)>>(
            [&parts, job](std::int64_t block) { parts[static_cast<std::size_t>(block)] += job; });
        pool.run(2, *body);
        sum += parts[0] + parts[1];
    }
    EXPECT_EQ(sum, 2 * (std::int64_t{2999} * 3000 / 2));
}

TEST(ThreadPool, RethrowsOnlyWhenRunningBlocksHaveEnded) {
    ThreadPool pool(2);
    for (int round = 0; round < 20; ++round) {
        std::atomic<int> started{0};
        std::atomic<bool> ended{false};
        EXPECT_THROW(pool.run(1000,
                              [&](std::int64_t block) {
                                  ++started;
                                  while (started.load() < 2) std::this_thread::yield();
                                  if (block == 0) throw std::runtime_error("block 0");
                                  std::this_thread::sleep_for(std::chrono::milliseconds(1));
                                  ended.store(true);
                              }),
                     std::runtime_error);
        EXPECT_TRUE(ended.load());
    }
}

TEST(ThreadPool, RefusesANegativeNumberOfThreads) {
    EXPECT_THROW(ThreadPool(-1), Error);
    EXPECT_THROW(Context(Device::cpu(), -4), Error);
}

TEST(ThreadPool, RunsEveryBlockOnce) {
    for (const int threads : {1, 2, 3, 7}) {
        ThreadPool pool(threads);
        EXPECT_EQ(pool.size(), threads);
        for (const std::int64_t blocks : {0, 1, 2, 3, 1000}) {
            std::vector<int> runs(static_cast<std::size_t>(blocks), 0);  // each block writes its own element
            pool.run(blocks, [&](std::int64_t block) { ++runs[static_cast<std::size_t>(block)]; });
            EXPECT_THAT(runs, testing::Each(1)) << threads << " threads, " << blocks << " blocks";
        }
    }
}

TEST(ThreadPool, WritesOfBlocksAreVisibleToTheCaller) {
    ThreadPool pool(3);
    std::int64_t sum = 0;
    for (int round = 0; round < 2000; ++round) {
        std::int64_t parts[4] = {};  // not atomic: the pool itself must order the accesses
        pool.run(4, [&](std::int64_t block) { parts[block] = block + round; });
        sum += std::accumulate(std::begin(parts), std::end(parts), std::int64_t{0});
    }
    EXPECT_EQ(sum, 2000 * 6 + 4 * (1999 * 2000 / 2));
}

TEST(ThreadPool, StartsBlocksInOrderSoThatABlockMayWaitForALowerOne) {
    ThreadPool pool(3);
    std::atomic<std::int64_t> done{0};
    pool.run(200, [&](std::int64_t block) {
        while (done.load() < block)
            std::this_thread::yield();  // waits forever if a higher block prevents a lower one from starting
        ++done;
    });
    EXPECT_EQ(done.load(), 200);
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
    for (const int threads : {1, 2, 4}) {
        ThreadPool pool(threads);
        for (int round = 0; round < 50; ++round) {
            std::atomic<int> started{0};
            const auto failing = [&](std::int64_t block) {
                ++started;
                if (block == 5) throw std::runtime_error("block 5");
                if (block > 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            };
            EXPECT_THROW(pool.run(100000, failing), std::runtime_error);
            EXPECT_LT(started.load(), 100000) << "the blocks after the failure are not started";
            int after = 0;
            pool.run(1, [&](std::int64_t) { ++after; });
            std::atomic<int> runs{0};
            pool.run(10, [&](std::int64_t) { ++runs; });
            EXPECT_EQ(runs.load() + after, 11);
        }
    }
}

TEST(ThreadPool, NestedCallsRunSeriallyOnTheSameThreadEvenAfterAnException) {
    ThreadPool pool(3);
    std::atomic<int> inner_runs{0};
    pool.run(6, [&](std::int64_t) {
        const auto self = std::this_thread::get_id();
        EXPECT_THROW(pool.run(4, [](std::int64_t) { throw std::runtime_error("inner"); }),
                     std::runtime_error);
        std::int64_t expected = 0;
        pool.run(4, [&](std::int64_t block) {
            EXPECT_EQ(std::this_thread::get_id(), self);
            EXPECT_EQ(block, expected++);
            ++inner_runs;
        });
    });
    EXPECT_EQ(inner_runs.load(), 24);
}

TEST(ThreadPool, RunsTenThousandTinyJobs) {
    ThreadPool pool(2);
    std::int64_t sum = 0;
    for (int job = 0; job < 10000; ++job) {
        std::int64_t parts[2];
        pool.run(2, [&](std::int64_t block) { parts[block] = job * (block + 1); });
        sum += parts[0] + parts[1];
    }
    EXPECT_EQ(sum, 3 * (std::int64_t{9999} * 10000 / 2));
}

TEST(ThreadPool, TwoThreadsMayShareIt) {
    ThreadPool pool(3);
    std::atomic<int> runs{0};
    const auto user = [&] {
        for (int job = 0; job < 300; ++job) pool.run(5, [&](std::int64_t) { ++runs; });
    };
    std::thread other(user);
    user();
    other.join();
    EXPECT_EQ(runs.load(), 2 * 300 * 5);
}

TEST(ThreadPool, WorksWithManyMoreThreadsThanCores) {
    ThreadPool pool(32);
    std::atomic<int> runs{0};
    for (int job = 0; job < 20; ++job) pool.run(64, [&](std::int64_t) { ++runs; });
    EXPECT_EQ(runs.load(), 20 * 64);
}

TEST(ThreadPool, CanBeCreatedAndDestroyedWithoutWork) {
    for (int i = 0; i < 50; ++i) ThreadPool pool(4);
}

TEST(StartThread, NamesThePurposeWhenTheSystemGivesNoThread) {
    {
        const test::NoNewThreads limit;
        EXPECT_THAT(test::message_of([] { start_thread("a test", [] {}).join(); }),
                    testing::StartsWith("threads: the system gives none for a test: "));
        EXPECT_THAT(test::message_of([] { ThreadPool(3); }),
                    testing::StartsWith("threads: the system gives 1 of 3: "));
    }
    bool ran = false;
    start_thread("a test", [&] { ran = true; }).join();
    EXPECT_TRUE(ran);
}

TEST(ParallelRanges, CoverEveryElementOnceInBlocksOfTheGrain) {
    const Context ctx(Device::cpu(), 3);
    std::vector<int> seen(1003, 0);
    parallel_ranges(ctx, 1003, 10, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_EQ(begin % 10, 0);
        EXPECT_EQ(end, std::min<std::int64_t>(begin + 10, 1003));
        for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
    });
    EXPECT_THAT(seen, testing::Each(1));
}

TEST(ParallelRanges, RefuseAGrainBelowOneAndAcceptTheLargest) {
    const Context ctx(Device::cpu(), 2);
    for (const std::int64_t grain : {0, -1})
        for (const std::int64_t n : {0, 10})
            EXPECT_THAT(
                test::message_of([&] { parallel_ranges(ctx, n, grain, [](std::int64_t, std::int64_t) {}); }),
                testing::HasSubstr(concat("parallel_ranges: ranges of ", grain, " elements")));
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
    parallel_ranges(ctx, 10, std::numeric_limits<std::int64_t>::max(),
                    [&](std::int64_t begin, std::int64_t end) {
                        ranges.push_back({begin, end});
                    });
    EXPECT_THAT(ranges, testing::ElementsAre(std::pair<std::int64_t, std::int64_t>{0, 10}));
}

/// Runs `child` in a forked process, whose exit code must be 0 within 20 seconds.
template <class Child>
void expect_success_of_child(Child&& child) {
    const pid_t process = fork();
    ASSERT_GE(process, 0);
    if (process == 0) {
        alarm(20);  // ends a process that hangs
        _exit(child());
    }
    int status = 0;
    ASSERT_EQ(waitpid(process, &status, 0), process);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

/// Returns when each thread of the context runs. A thread that is starting holds locks of AddressSanitizer,
/// which would stay locked in a forked child.
void wait_for_every_thread(const Context& ctx) {
    const int threads = ctx.threads().size();
    std::atomic<int> waiting{0};
    parallel_for(ctx, threads, [&](std::int64_t) {
        ++waiting;
        while (waiting < threads) std::this_thread::yield();
    });
}

/// The child has copies of the parent's contexts, but not their threads.
TEST(ForkedChild, DestroysAndUsesAContextOfTheParentWithoutItsThreads) {
    auto ctx = std::make_unique<Context>(Device::cpu(), 4);
    std::atomic<int> runs{0};
    const auto run = [&] { parallel_for(*ctx, 8, [&](std::int64_t) { ++runs; }); };
    wait_for_every_thread(*ctx);
    run();
    expect_success_of_child([&] {
        ctx.reset();
        return 0;
    });
    expect_success_of_child([&] {
        run();
        ctx.reset();
        Context own(Device::cpu(), 4);
        parallel_for(own, 8, [&](std::int64_t) { ++runs; });
        return runs == 24 ? 0 : 1;
    });
    run();
    EXPECT_EQ(runs, 16);
}

/// At the fork, another thread of the parent holds the pool's lock and works on its blocks.
TEST(ForkedChild, UsesAContextThatTheParentWasUsing) {
    const Context ctx(Device::cpu(), 2);
    std::atomic<int> inside{0};
    std::atomic<bool> may_end{false};
    std::thread other([&] {
        parallel_for(ctx, 2, [&](std::int64_t) {
            ++inside;
            while (!may_end) std::this_thread::yield();
        });
    });
    while (inside < 2) std::this_thread::yield();
    expect_success_of_child([&] {
        std::atomic<int> runs{0};
        parallel_for(ctx, 5, [&](std::int64_t) { ++runs; });
        return runs == 5 ? 0 : 1;
    });
    may_end = true;
    other.join();
}

}  // namespace
}  // namespace gradtile
