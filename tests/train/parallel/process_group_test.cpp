#include <gradtile/train/parallel/process_group.h>

#include <atomic>
#include <random>

#include <gmock/gmock.h>

#include "forked_ranks.h"

#include <gradtile/train/parallel/internal/authentication.h>
#include <gradtile/train/parallel/internal/control_message.h>

namespace gradtile {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Ending;
using test::fault_rounds;
using test::ForkedRanks;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Promised: a killed process is known within 5 s, one that hangs within the timeout + 5 s. Sanitizers slow
// everything down, so only what would be a hang fails.
constexpr double killed_seconds = 5.0;
constexpr double slack_seconds = 5.0;

void sleep_for_ever() {
    std::this_thread::sleep_for(seconds(100));
}

int some_rank(int size) {
    static std::mt19937 random(std::random_device{}());
    return static_cast<int>(random() % static_cast<unsigned>(size));
}

TEST(ProcessGroup, AloneExchangesWithItself) {
    ProcessGroup group;
    EXPECT_EQ(group.rank(), 0);
    EXPECT_EQ(group.size(), 1);
    EXPECT_EQ(group.broadcast("a"), "a");
    EXPECT_EQ(group.all_gather("b"), std::vector<std::string>{"b"});
    group.require_equal("config", "{}");
    group.at_step(1);
    { const auto waiting = group.waiting("nothing"); }
    {
        const auto inspection = group.inspect([] { return std::optional<std::string>("nobody asks"); });
    }
    EXPECT_TRUE(group.fail("nobody hears it"));
    group.leave();
    EXPECT_TRUE(ProcessGroup(RankEnvironment{}, {}).is_alone());
}

TEST(ProcessGroup, ExchangesTexts) {
    ForkedRanks ranks(4, 60.0);
    ranks.start_all([](ProcessGroup& group) {
        const std::string binary("\0\xff\n", 3);
        for (int round = 0; round < 100; ++round) {
            const std::string text = concat("of rank ", group.rank(), binary, round);
            check(group.broadcast(text) == concat("of rank ", 0, binary, round), "broadcast, round ", round);
            const std::vector<std::string> all = group.all_gather(text);
            check(all.size() == 4, "all_gather: ", all.size(), " texts");
            for (int rank = 0; rank < 4; ++rank)
                check(all[static_cast<std::size_t>(rank)] == concat("of rank ", rank, binary, round),
                      "all_gather, round ", round);
        }
        const std::string longest(max_exchanged_bytes, 'x');
        check(group.all_gather(longest).back() == longest, "the longest text");
        group.leave();
    });
    for (const Ending& ending : ranks.endings()) {
        EXPECT_EQ(ending.said, "");
    }
}

TEST(ProcessGroup, RefusesATextThatIsTooLong) {
    ForkedRanks ranks(2, 60.0);
    ranks.start_all([](ProcessGroup& group) { group.broadcast(std::string(max_exchanged_bytes + 1, 'x')); });
    EXPECT_EQ(ranks.endings()[0].said, "process group: a text of 1048577 bytes; expected at most 1048576");
}

/// For what all processes throw alike: none ends before the others have come to it, and is taken for lost.
template <class Body>
void fail_together(ProcessGroup& group, Body&& body) {
    try {
        body();
    } catch (const Error&) {
        group.leave();
        throw;
    }
}

TEST(ProcessGroup, NamesTheFirstMemberThatDiffers) {
    ForkedRanks ranks(3, 60.0);
    ranks.start_all([](ProcessGroup& group) {
        group.require_equal("settings", R"({"batch": 12, "lr": 0.1})");
        const char* const texts[] = {R"({"batch": 12, "lr": 0.1})", R"({"batch": 12, "lr": 0.1})",
                                     R"({"batch": 16, "lr": 0.2})"};
        fail_together(group, [&] { group.require_equal("settings", texts[group.rank()]); });
    });
    const std::vector<Ending> endings = ranks.endings();
    for (std::size_t rank = 0; rank < 3; ++rank)
        EXPECT_EQ(endings[rank].said,
                  "settings differs between ranks: batch is 12 on rank 0 and 16 on rank 2");
}

TEST(ProcessGroup, NamesMembersAndTextsThatOnlySomeHave) {
    ForkedRanks ranks(2, 60.0);
    ranks.start_all([](ProcessGroup& group) {
        try {
            group.require_equal("config", group.is_root() ? R"({"a": 1})" : R"({"a": 1, "b": "x"})");
        } catch (const Error& error) {
            check(error.what() == std::string("config differs between ranks: b is not there on rank 0 and "
                                              "\"x\" on rank 1"),
                  error.what());
        }
        fail_together(group, [&] { group.require_equal("version", group.is_root() ? "1" : "2"); });
    });
    EXPECT_EQ(ranks.endings()[1].said, "version differs between ranks: '1' on rank 0 and '2' on rank 1");
}

TEST(ProcessGroup, ADifferenceIsNamedInAShortLine) {
    ForkedRanks ranks(2, 60.0);
    ranks.start_all([](ProcessGroup& group) {
        const std::string text(700'000, group.is_root() ? 'a' : 'b');
        fail_together(group, [&] { group.require_equal("settings", "{\"data\": \"" + text + "\"}"); });
    });
    const std::string said = ranks.endings()[1].said;
    EXPECT_THAT(said, StartsWith("settings differs between ranks: data is \"aaa"));
    EXPECT_LT(said.size(), 500u);
}

TEST(ProcessGroup, LeavesInAnyOrder) {
    ForkedRanks ranks(4, 60.0);
    ranks.start_all([](ProcessGroup& group) {
        std::this_thread::sleep_for(milliseconds(50 * ((group.rank() + 2) % 4)));
        group.leave();
        std::this_thread::sleep_for(milliseconds(50 * group.rank()));
    });
    const std::vector<Ending> endings = ranks.endings();
    for (std::size_t rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(endings[rank].exit_code, 0);
        EXPECT_EQ(endings[rank].said, "");
    }
}

// ---- Faults ----

/// Everybody's main thread is stuck in a collective that never ends.
void train_for_ever(const ForkedRanks& ranks, ProcessGroup& group) {
    group.at_step(41);
    const auto waiting = group.waiting("the all-reduce of the gradients");
    ranks.mark(group.rank(), "stuck");
    sleep_for_ever();
}

void expect_told(const std::vector<Ending>& endings, int size, int victim, const std::string& line,
                 double within) {
    for (int rank = 0; rank < size; ++rank) {
        if (rank == victim) continue;
        const Ending& ending = endings[static_cast<std::size_t>(rank)];
        EXPECT_EQ(ending.exit_code, 3) << "rank " << rank << ": " << ending.said;
        EXPECT_EQ(ending.said,
                  concat(line, "; rank ", rank, " waited for it in the all-reduce of the gradients"));
        EXPECT_LT(ending.seconds, within);
    }
}

TEST(ProcessGroup, EveryoneIsToldOfAProcessThatIsKilled) {
    for (int round = 0; round < fault_rounds(); ++round) {
        for (const int victim : {0, 1 + some_rank(3)}) {
            ForkedRanks ranks(4, 60.0);
            ranks.start_all([&](ProcessGroup& group) { train_for_ever(ranks, group); });
            ranks.await_all("stuck");
            ranks.send(victim, SIGKILL);
            expect_told(ranks.endings(), 4, victim,
                        concat("rank ", victim, " was lost at step 41 (its connection closed)"),
                        killed_seconds);
        }
    }
}

TEST(ProcessGroup, EveryoneIsToldOfAProcessThatIsStopped) {
    const double timeout = 2.0;
    for (int round = 0; round < fault_rounds(); ++round) {
        for (const int victim : {0, 1 + some_rank(3)}) {
            ForkedRanks ranks(4, timeout);
            ranks.start_all([&](ProcessGroup& group) { train_for_ever(ranks, group); });
            ranks.await_all("stuck");
            ranks.send(victim, SIGSTOP);
            const std::vector<Ending> endings = ranks.endings(/*but=*/victim);
            for (int rank = 0; rank < 4; ++rank) {
                if (rank == victim) continue;
                const Ending& ending = endings[static_cast<std::size_t>(rank)];
                EXPECT_EQ(ending.exit_code, 3) << ending.said;
                EXPECT_THAT(ending.said,
                            AllOf(StartsWith(concat("rank ", victim, " was lost at step 41 (")),
                                  HasSubstr(concat("; rank ", rank,
                                                   " waited for it in the all-reduce of the gradients"))));
                EXPECT_LT(ending.seconds, timeout + slack_seconds);
            }
        }
    }
}

/// As when mpirun wakes a stopped rank 0 because another one has given it up: rank 0 finds that one gone, and
/// what it tells the rest must not be that.
TEST(ProcessGroup, RankZeroStoppedAndWokenIsTheOneThatIsNamed) {
    ForkedRanks ranks(3, 3.0);
    ranks.start(0, [&](ProcessGroup& group) { train_for_ever(ranks, group); });
    ranks.start(2, [&](ProcessGroup& group) { train_for_ever(ranks, group); });
    ranks.set_timeout(60.0);  // it cannot find out by itself
    ranks.start(1, [&](ProcessGroup& group) { train_for_ever(ranks, group); });
    ranks.await_all("stuck");
    ranks.send(0, SIGSTOP);
    ranks.await(2, "rank");
    std::this_thread::sleep_for(milliseconds(200));  // its process ends, its connection closes
    ranks.send(0, SIGCONT);
    const std::vector<Ending> endings = ranks.endings();
    for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(endings[rank].exit_code, 3);
        EXPECT_THAT(endings[rank].said, StartsWith("rank 0 was lost at step 41 ("));
    }
}

TEST(ProcessGroup, AProcessThatWasStoppedForAShortWhileIsNotLost) {
    ForkedRanks ranks(3, 30.0);
    ranks.start_all([&](ProcessGroup& group) {
        for (int i = 0; i < 20; ++i) {
            group.all_gather("x");
            ranks.mark(group.rank(), "begun");
            std::this_thread::sleep_for(milliseconds(20));
        }
        group.leave();
    });
    ranks.await_all("begun");
    for (const int rank : {0, 1}) {
        ranks.send(rank, SIGSTOP);
        std::this_thread::sleep_for(milliseconds(300));
        ranks.send(rank, SIGCONT);
    }
    const std::vector<Ending> endings = ranks.endings();
    for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(endings[rank].exit_code, 0) << endings[rank].said;
}

TEST(ProcessGroup, WhoDoesNotComeIsNamed) {
    for (const int victim : {0, 2}) {
        ForkedRanks ranks(3, 1.0);
        ranks.start_all([&](ProcessGroup& group) {
            group.at_step(7);
            if (group.rank() == victim) sleep_for_ever();  // it lives, and never comes to the collective
            const auto waiting = group.waiting("the all-reduce of the gradients");
            sleep_for_ever();
        });
        const std::vector<Ending> endings = ranks.endings();
        expect_told(endings, 3, victim,
                    concat("rank ", victim, " was lost at step 7 (the others waited for 1 s)"),
                    1.0 + slack_seconds);
        // It hears so itself.
        EXPECT_EQ(endings[static_cast<std::size_t>(victim)].exit_code, 3);
        EXPECT_EQ(endings[static_cast<std::size_t>(victim)].said,
                  concat("rank ", victim, " was lost at step 7 (the others waited for 1 s)"));
    }
}

TEST(ProcessGroup, WhoIsAStepBehindIsNamed) {
    ForkedRanks ranks(4, 1.0);
    ranks.start_all([&](ProcessGroup& group) {
        group.at_step(group.rank() % 2 == 1 ? 7 : 8);
        const auto waiting = group.waiting("the all-reduce of the gradients");
        sleep_for_ever();
    });
    EXPECT_THAT(ranks.endings()[0].said,
                StartsWith("ranks 1 and 3 were lost at step 7 (the others waited for 1 s)"));
}

TEST(ProcessGroup, WhenNobodyIsBehindThatIsSaid) {
    ForkedRanks ranks(2, 1.0);
    ranks.start_all([&](ProcessGroup& group) { train_for_ever(ranks, group); });
    for (const Ending& ending : {ranks.endings()[1]}) {
        EXPECT_EQ(ending.exit_code, 3);
        EXPECT_EQ(ending.said,
                  "all ranks have waited for 1 s, and none is behind; rank 1 waited in the all-reduce of the "
                  "gradients");
    }
}

TEST(ProcessGroup, AnExchangeIsAWaitAsWell) {
    ForkedRanks ranks(2, 1.0);
    ranks.start_all([&](ProcessGroup& group) {
        if (group.is_root()) sleep_for_ever();
        group.broadcast("");
    });
    EXPECT_EQ(ranks.endings()[1].said,
              "rank 0 was lost before the first step (the others waited for 1 s); rank 1 waited for it in an "
              "exchange of settings");
}

TEST(ProcessGroup, WhatAProcessFailsWithIsQuotedToTheOthers) {
    for (const int victim : {0, 2}) {
        ForkedRanks ranks(4, 60.0);
        ranks.start_all([&](ProcessGroup& group) {
            if (group.rank() != victim) train_for_ever(ranks, group);
            group.at_step(42);
            group.fail("no space left on device");
            throw Error("its own line");
        });
        const std::vector<Ending> endings = ranks.endings();
        expect_told(endings, 4, victim,
                    concat("rank ", victim, " failed at step 42: no space left on device"), killed_seconds);
        EXPECT_EQ(endings[static_cast<std::size_t>(victim)].exit_code, 1);
        EXPECT_EQ(endings[static_cast<std::size_t>(victim)].said, "its own line");
    }
}

/// As a network that breaks leaves it: every process lives, and all main threads wait for ever.
TEST(ProcessGroup, WhatAnInspectionFindsEndsEverybody) {
    for (const int victim : {0, 2}) {
        ForkedRanks ranks(4, 60.0);
        ranks.start_all([&](ProcessGroup& group) {
            const auto finds_nothing = [] { return std::optional<std::string>(); };
            { const auto over = group.inspect(finds_nothing); }
            const auto another = group.inspect(finds_nothing);
            std::atomic<int> asked = 0;
            const auto inspection = group.inspect([&]() -> std::optional<std::string> {
                const bool broken = group.rank() == victim && ++asked == 2;
                return broken ? std::optional<std::string>("the link broke") : std::nullopt;
            });
            train_for_ever(ranks, group);
        });
        const std::vector<Ending> endings = ranks.endings();
        const std::string line = concat("rank ", victim, " failed at step 41: the link broke");
        expect_told(endings, 4, victim, line, killed_seconds);
        EXPECT_EQ(endings[static_cast<std::size_t>(victim)].exit_code, 3);
        EXPECT_EQ(endings[static_cast<std::size_t>(victim)].said, line);
    }
}

TEST(ProcessGroup, WhenAllFailWithTheSameEachEndsWithItsOwnError) {
    ForkedRanks ranks(3, 60.0);
    ranks.start_all([&](ProcessGroup& group) {
        const bool tells = group.fail("the loss is not finite");
        throw Error(tells ? "the loss is not finite" : "");
    });
    const std::vector<Ending> endings = ranks.endings();
    std::string said;  // by one of them
    for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(endings[rank].exit_code, 1);
        said += endings[rank].said;
    }
    EXPECT_EQ(said, "the loss is not finite");
}

TEST(ProcessGroup, AFailureThatAnothersDeathHasCausedIsNotTheCause) {
    ForkedRanks ranks(3, 60.0);
    ranks.start_all([&](ProcessGroup& group) {
        if (group.rank() == 1) {
            std::this_thread::sleep_for(milliseconds(200));
            raise(SIGKILL);
        }
        if (group.rank() == 2) group.fail("a collective was broken off");
        train_for_ever(ranks, group);
    });
    const std::vector<Ending> endings = ranks.endings();
    for (const std::size_t rank : {0u, 2u}) {
        EXPECT_EQ(endings[rank].exit_code, 3);
        EXPECT_THAT(endings[rank].said, StartsWith("rank 1 was lost"));
    }
}

TEST(ProcessGroup, AProcessThatEndsWithoutLeavingIsLost) {
    ForkedRanks ranks(2, 60.0);
    ranks.start_all([&](ProcessGroup& group) {
        if (group.rank() == 1) return;
        group.leave();
    });
    // Whether rank 0 has come to the end of the run by then is chance.
    EXPECT_THAT(ranks.endings()[0].said,
                StartsWith("rank 1 was lost before the first step (its connection closed)"));
}

// ---- Meeting ----

TEST(ProcessGroup, WhoNeverStartsIsNamedByAllWhoDid) {
    const double timeout = 1.5;
    ForkedRanks ranks(4, timeout);
    for (const int rank : {0, 2}) ranks.start(rank, [](ProcessGroup&) {});
    const std::vector<Ending> endings = ranks.endings();
    for (const std::size_t rank : {0u, 2u}) {
        EXPECT_EQ(endings[rank].exit_code, 1);
        EXPECT_EQ(endings[rank].said,
                  "the processes did not meet: ranks 1 and 3 of 4 did not come within 1.5 s");
        EXPECT_LT(endings[rank].seconds, timeout + slack_seconds);
    }
}

TEST(ProcessGroup, WithoutRankZeroItsAddressIsNamed) {
    ForkedRanks ranks(2, 1.0);
    ranks.start(1, [](ProcessGroup&) {});
    const Ending ending = ranks.endings()[1];
    EXPECT_EQ(ending.exit_code, 1);
    EXPECT_EQ(ending.said,
              concat("rank 0 does not answer at 127.0.0.1 port ", ranks.port(), ": Connection refused"));
    EXPECT_LT(ending.seconds, 1.0 + slack_seconds);
}

TEST(ProcessGroup, AProcessMayComeLater) {
    for (const int late : {0, 1}) {
        ForkedRanks ranks(2, 60.0);
        const auto meet = [](ProcessGroup& group) { group.leave(); };
        ranks.start(1 - late, meet);
        std::this_thread::sleep_for(milliseconds(300));
        ranks.start(late, meet);
        const std::vector<Ending> endings = ranks.endings();
        for (const std::size_t rank : {0u, 1u}) EXPECT_EQ(endings[rank].exit_code, 0) << endings[rank].said;
    }
}

TEST(ProcessGroup, APortInUseIsNamed) {
    ForkedRanks ranks(2, 1.0);
    const Listener other = listen_at("127.0.0.1", ranks.port(), SteadyClock::now());
    ranks.start(0, [](ProcessGroup&) {});
    EXPECT_EQ(ranks.endings()[0].said, concat("rank 0 cannot listen at port ", ranks.port(),
                                              " for the others: Address already in use"));
}

TEST(ProcessGroup, RefusesARankThatHasComeAlreadyAndAnotherWorld) {
    ForkedRanks ranks(2, 60.0);
    ranks.set_key(random_key());
    const auto end = [&](ProcessGroup& group) {
        ranks.await(2, "refused");
        group.leave();
    };
    ranks.start_all(end);
    ranks.await_all("met");
    RankEnvironment other = ranks.environment(1);
    ranks.start(other, 2, end);
    other.size = 3;
    ranks.start(other, 3, end);
    std::this_thread::sleep_for(milliseconds(300));
    ranks.mark(2, "refused");
    const std::vector<Ending> endings = ranks.endings();
    EXPECT_EQ(endings[0].exit_code, 0) << endings[0].said;
    EXPECT_EQ(endings[1].exit_code, 0) << endings[1].said;
    EXPECT_EQ(endings[2].said, "rank 0 refused this process: another process has come as rank 1 already");
    EXPECT_EQ(endings[3].said,
              "rank 0 refused this process: its world has 3 processes, that of rank 0 has 2");
}

/// Only this user's processes find the key that rank 0 leaves, and only until all have come.
TEST(ProcessGroup, AnotherRunsProcessIsRefused) {
    ForkedRanks ranks(3, 60.0);
    const auto meet = [](ProcessGroup& group) { group.leave(); };
    ranks.set_key(random_key());
    ranks.start(0, meet);
    ranks.start(1, meet);
    ranks.set_key(random_key());
    ranks.start(ranks.environment(2), 3, meet);  // before the real one
    std::this_thread::sleep_for(milliseconds(300));
    ranks.set_key("");
    ranks.start(ranks.environment(2), 4, meet);
    std::this_thread::sleep_for(milliseconds(300));
    for (const int place : {0, 1}) ranks.send(place, SIGKILL);
    const std::vector<Ending> endings = ranks.endings();
    EXPECT_EQ(endings[3].said,
              concat("rank 0 at 127.0.0.1 port ", ranks.port(),
                     " has another key than this process; expected the same GRADTILE_RUN_KEY "
                     "in every process, and no other run there"));
    EXPECT_THAT(endings[4].said,
                AllOf(StartsWith("/tmp/gradtile-"), HasSubstr("set GRADTILE_RUN_KEY to the same")));
}

TEST(ProcessGroup, BetweenHostsAKeyIsRequired) {
    RankEnvironment environment{.rank = 1,
                                .size = 4,
                                .local_rank = 1,
                                .local_size = 2,
                                .launcher = "torchrun",
                                .address = "node0",
                                .port = 29500};
    try {
        ProcessGroup group(environment, {.timeout = 1.0});
        FAIL() << "it went on without a key";
    } catch (const Error& error) {
        EXPECT_EQ(
            error.what(),
            std::string("GRADTILE_RUN_KEY: not set, while the processes meet at node0; expected the same "
                        "secret for every process: export GRADTILE_RUN_KEY=$(openssl rand -hex 32)"));
    }
}

}  // namespace
}  // namespace gradtile
