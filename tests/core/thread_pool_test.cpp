#include <gradtile/core/thread_pool.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <gradtile/core/context.h>

namespace gradtile {
namespace {

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
        std::int64_t parts[4] = {};  // plain memory: the pool itself must order it
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
            std::this_thread::yield();  // deadlocks if a higher block kept a lower out
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

TEST(ThreadPool, TakesTenThousandTinyJobs) {
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

TEST(ThreadPool, ComesAndGoesWithoutWork) {
    for (int i = 0; i < 50; ++i) ThreadPool pool(4);
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

}  // namespace
}  // namespace gradtile
