// How the processes of a group find each other, and how a start that fails ends.
#include <gmock/gmock.h>

#include "forked_ranks.h"

namespace gradtile::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

TEST(ProcessGroup, NamesRanksThatNeverStart) {
    const double timeout = 1.5;
    ForkedRanks ranks(4, timeout);
    for (const int rank : {0, 2}) ranks.start(rank, [](ProcessGroup&) {});
    const std::vector<Exit> exits = ranks.exits();
    for (const std::size_t rank : {0u, 2u}) {
        EXPECT_EQ(exits[rank].exit_code, 1);
        EXPECT_EQ(exits[rank].output, "start failed: ranks 1 and 3 of 4 did not connect within 1.5 s");
        EXPECT_LT(exits[rank].seconds, timeout + slack_seconds);
    }
}

TEST(ProcessGroup, NamesTheAddressWhenRankZeroIsMissing) {
    ForkedRanks ranks(2, 1.0);
    ranks.start(1, [](ProcessGroup&) {});
    const Exit exit = ranks.exits()[1];
    EXPECT_EQ(exit.exit_code, 1);
    EXPECT_EQ(exit.output,
              concat("rank 0 does not answer at 127.0.0.1 port ", ranks.port(), ": Connection refused"));
    EXPECT_LT(exit.seconds, 1.0 + slack_seconds);
}

TEST(ProcessGroup, ProcessMayConnectLate) {
    for (const int late_rank : {0, 1}) {
        ForkedRanks ranks(2, 60.0);
        const auto meet = [](ProcessGroup& group) { group.leave(); };
        ranks.start(1 - late_rank, meet);
        std::this_thread::sleep_for(milliseconds(300));
        ranks.start(late_rank, meet);
        const std::vector<Exit> exits = ranks.exits();
        for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(exits[rank].exit_code, 0) << exits[rank].output;
    }
}

TEST(ProcessGroup, NamesAPortInUse) {
    ForkedRanks ranks(2, 1.0);
    const Listener other = listen_at("127.0.0.1", ranks.port(), SteadyClock::now());
    ranks.start(0, [](ProcessGroup&) {});
    EXPECT_EQ(ranks.exits()[0].output,
              concat("rank 0 cannot listen at port ", ranks.port(), ": Address already in use"));
}

TEST(ProcessGroup, RefusesADuplicateRankAndAnotherWorldSize) {
    ForkedRanks ranks(2, 60.0);
    ranks.set_key(random_key());
    const auto end = [&](ProcessGroup& group) {
        ranks.wait_for_mark(2, "refused");
        group.leave();
    };
    ranks.start_all(end);
    ranks.wait_for_mark_of_all("connected");
    RankEnvironment other = ranks.environment(1);
    ranks.start(other, 2, end);
    other.size = 3;
    ranks.start(other, 3, end);
    std::this_thread::sleep_for(milliseconds(300));
    ranks.set_mark(2, "refused");
    const std::vector<Exit> exits = ranks.exits();
    EXPECT_EQ(exits[0].exit_code, 0) << exits[0].output;
    EXPECT_EQ(exits[1].exit_code, 0) << exits[1].output;
    EXPECT_EQ(exits[2].output, "rank 0 refused this process: another process is connected as rank 1 already");
    EXPECT_EQ(exits[3].output, "rank 0 refused this process: it expects 3 processes, rank 0 expects 2");
}

/// The KeyFile exists only until all processes are connected.
TEST(ProcessGroup, RefusesAProcessOfAnotherRun) {
    ForkedRanks ranks(3, 60.0);
    const auto meet = [](ProcessGroup& group) { group.leave(); };
    ranks.set_key(random_key());
    ranks.start(0, meet);
    ranks.start(1, meet);
    ranks.set_key(random_key());
    ranks.start(ranks.environment(2), 3, meet);  // wrong key
    std::this_thread::sleep_for(milliseconds(300));
    ranks.set_key("");
    ranks.start(ranks.environment(2), 4, meet);
    std::this_thread::sleep_for(milliseconds(300));
    for (const int place : {0, 1}) ranks.send(place, SIGKILL);
    const std::vector<Exit> exits = ranks.exits();
    EXPECT_EQ(exits[3].output,
              concat("rank 0 at 127.0.0.1 port ", ranks.port(),
                     " has another key than this process; expected the same GRADTILE_RUN_KEY "
                     "in every process, and no other run there"));
    EXPECT_THAT(exits[4].output,
                AllOf(StartsWith("/tmp/gradtile-"), HasSubstr("set GRADTILE_RUN_KEY to the same")));
}

TEST(ProcessGroup, RequiresAKeyBetweenHosts) {
    RankEnvironment environment{.rank = 1,
                                .size = 4,
                                .local_rank = 1,
                                .local_size = 2,
                                .launcher = "torchrun",
                                .address = "node0",
                                .port = 29500};
    try {
        ProcessGroup group(environment, {.timeout = 1.0});
        FAIL() << "no key was required";
    } catch (const Error& error) {
        EXPECT_EQ(
            error.what(),
            std::string("GRADTILE_RUN_KEY: not set, while rank 0 listens at node0; expected the same secret "
                        "for every process: export GRADTILE_RUN_KEY=$(openssl rand -hex 32)"));
    }
}

}  // namespace
}  // namespace gradtile::test
