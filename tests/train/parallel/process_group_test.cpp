#include <gradtile/train/parallel/process_group.h>

#include <atomic>
#include <random>

#include <gmock/gmock.h>

#include "forked_ranks.h"

#include <gradtile/train/parallel/internal/authentication.h>
#include <gradtile/train/parallel/internal/control_message.h>
#include <gradtile/train/run/shared_start.h>

namespace gradtile::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// docs/multi_node.md promises it.
constexpr double killed_seconds = 5.0;

void sleep_forever() {
    std::this_thread::sleep_for(seconds(100));
}

int random_rank(int size) {
    static std::mt19937 random(std::random_device{}());
    return static_cast<int>(random() % static_cast<unsigned>(size));
}

TEST(ProcessGroup, SingleProcessExchangesWithItself) {
    ProcessGroup group;
    EXPECT_EQ(group.rank(), 0);
    EXPECT_EQ(group.size(), 1);
    EXPECT_EQ(group.broadcast("a"), "a");
    EXPECT_EQ(group.all_gather("b"), std::vector<std::string>{"b"});
    group.require_equal("config", "{}");
    group.report_step(1);
    { const auto waiting = group.waiting("nothing"); }
    {
        const auto inspection = group.inspect([] { return std::optional<std::string>("never called"); });
    }
    EXPECT_TRUE(group.fail("an error"));
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
    for (const Exit& exit : ranks.exits()) {
        EXPECT_EQ(exit.output, "");
    }
}

/// Each rank is lost in turn. The others throw RankLost with its rank from the exchange in which they wait,
/// and exchange texts with the process that takes its place.
TEST(ProcessGroup, SurvivorsRegroupWithANewProcess) {
    for (int lost_rank = 0; lost_rank < 3; ++lost_rank) {
        ForkedRanks ranks(3, 60.0);
        const int next_port = free_port();
        ranks.set_key(random_key());
        const auto next_environment = [&](int rank) {
            RankEnvironment environment = ranks.environment(rank);
            environment.port = next_port;
            return environment;
        };
        const auto exchange = [](ProcessGroup& group) {
            const std::vector<std::string> all = group.all_gather(concat("new ", group.rank()));
            check(all == std::vector<std::string>{"new 0", "new 1", "new 2"}, "all_gather after the loss");
            group.leave();
        };
        for (int rank = 0; rank < 3; ++rank) {
            ranks.set_next_environment([=](const RankLost& loss, std::int64_t step) {
                check(loss.rank() == lost_rank, "lost rank ", loss.rank(), ", not ", lost_rank);
                check(step == 7, "step ", step, ", not 7");
                return next_environment(rank);
            });
            ranks.start(rank, [&](ProcessGroup& group) {
                const auto survival = group.survive_losses();
                group.report_step(7);
                ranks.set_mark(group.rank(), "ready");
                try {
                    for (;;) group.all_gather("old");
                } catch (const RankLost& loss) {
                    group.regroup(loss);
                }
                exchange(group);
            });
        }
        ranks.wait_for_mark_of_all("ready");
        ranks.send(lost_rank, SIGKILL);
        ranks.start(next_environment(lost_rank), 3, exchange);
        const std::vector<Exit> exits = ranks.exits();
        for (int place = 0; place < 4; ++place) {
            const Exit& exit = exits[static_cast<std::size_t>(place)];
            EXPECT_EQ(exit.exit_code, place == lost_rank ? -1 : 0) << exit.output;
        }
    }
}

/// The main thread waits for something that only an interrupt ends, as for a GPU's exchange with a lost
/// process.
TEST(ProcessGroup, SurvivorsAreInterrupted) {
    const auto finds_nothing = [] { return std::optional<std::string>(); };
    for (const int signal : {SIGKILL, SIGSTOP}) {
        ForkedRanks ranks(3, signal == SIGSTOP ? 4.0 : 60.0);
        ranks.set_next_environment([](const RankLost&, std::int64_t) { return RankEnvironment{}; });
        ranks.start_all([&](ProcessGroup& group) {
            std::atomic<int> interrupts = 0;
            const auto survival = group.survive_losses();
            const auto without = group.inspect(finds_nothing);
            const auto inspection = group.inspect(finds_nothing, [&] {
                ++interrupts;
                interrupts.notify_all();
            });
            {
                const auto waiting = group.waiting("a sum");
                ranks.set_mark(group.rank(), "ready");
                interrupts.wait(0);
            }
            try {
                group.throw_loss();
            } catch (const RankLost& loss) {
                check(loss.rank() == 1 && interrupts == 1, "rank ", loss.rank(), ", ", interrupts.load(),
                      " interrupts");
            }
        });
        ranks.wait_for_mark_of_all("ready");
        ranks.send(1, signal);
        const std::vector<Exit> exits = ranks.exits(/*except=*/signal == SIGSTOP ? 1 : -1);
        for (const std::size_t rank : {0, 2}) EXPECT_EQ(exits[rank].exit_code, 0) << exits[rank].output;
    }
}

/// An error is not a loss: it ends processes that survive losses, too.
TEST(ProcessGroup, SurvivorsEndWithTheErrorOfAnother) {
    ForkedRanks ranks(3, 60.0);
    ranks.set_next_environment([](const RankLost&, std::int64_t) { return RankEnvironment{}; });
    ranks.start_all([](ProcessGroup& group) {
        const auto survival = group.survive_losses();
        if (group.rank() == 1) {
            group.fail("a full disk");
            throw Error("a full disk");
        }
        group.all_gather("x");
    });
    const std::vector<Exit> exits = ranks.exits();
    for (const int rank : {0, 2}) {
        EXPECT_EQ(exits[static_cast<std::size_t>(rank)].exit_code, 3);
        EXPECT_THAT(exits[static_cast<std::size_t>(rank)].output, HasSubstr("rank 1 failed"));
    }
}

TEST(ProcessGroup, AStartMayHaveATokenizerLongerThanAMessage) {
    ForkedRanks ranks(2, 60.0);
    ranks.start_all([](ProcessGroup& group) {
        const std::string tokenizer = '"' + std::string(5 * max_exchanged_bytes / 2, 'x') + '"';
        const Start start = shared_start(group, [&] {
            return Start{
                "c.h5", Checkpoint{.step = 3, .meta = JsonValue::object({{"a", 1}}), .tokenizer = tokenizer}};
        });
        check(start.source == "c.h5" && start.checkpoint && start.checkpoint->step == 3, "the start");
        check(start.checkpoint->meta["a"] == 1 && start.checkpoint->tokenizer == tokenizer, "its texts");
        group.leave();
    });
    for (const Exit& exit : ranks.exits()) EXPECT_EQ(exit.output, "");
}

TEST(ProcessGroup, RefusesATextAboveTheLimit) {
    ForkedRanks ranks(2, 60.0);
    ranks.start_all([](ProcessGroup& group) { group.broadcast(std::string(max_exchanged_bytes + 1, 'x')); });
    EXPECT_EQ(ranks.exits()[0].output, "process group: a text of 1048577 bytes; expected at most 1048576");
}

/// Ends a process with an error that all processes throw. The process leaves the group first, so that no
/// process is reported as lost.
template <class Body>
void fail_collectively(ProcessGroup& group, Body&& body) {
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
        fail_collectively(group, [&] { group.require_equal("settings", texts[group.rank()]); });
    });
    const std::vector<Exit> exits = ranks.exits();
    for (std::size_t rank = 0; rank < 3; ++rank)
        EXPECT_EQ(exits[rank].output,
                  "settings differs between ranks: batch is 12 on rank 0 and 16 on rank 2");
}

TEST(ProcessGroup, NamesMissingMembersAndDifferentTexts) {
    ForkedRanks ranks(2, 60.0);
    ranks.start_all([](ProcessGroup& group) {
        try {
            group.require_equal("config", group.is_root() ? R"({"a": 1})" : R"({"a": 1, "b": "x"})");
        } catch (const Error& error) {
            check(error.what() == std::string("config differs between ranks: b is missing on rank 0 and "
                                              "\"x\" on rank 1"),
                  error.what());
        }
        fail_collectively(group, [&] { group.require_equal("version", group.is_root() ? "1" : "2"); });
    });
    EXPECT_EQ(ranks.exits()[1].output, "version differs between ranks: '1' on rank 0 and '2' on rank 1");
}

TEST(ProcessGroup, DifferenceMessageIsShort) {
    ForkedRanks ranks(2, 60.0);
    ranks.start_all([](ProcessGroup& group) {
        const std::string text(700'000, group.is_root() ? 'a' : 'b');
        fail_collectively(group, [&] { group.require_equal("settings", "{\"data\": \"" + text + "\"}"); });
    });
    const std::string output = ranks.exits()[1].output;
    EXPECT_THAT(output, StartsWith("settings differs between ranks: data is \"aaa"));
    EXPECT_LT(output.size(), 500u);
}

TEST(ProcessGroup, ProcessesMayLeaveInAnyOrder) {
    ForkedRanks ranks(4, 60.0);
    ranks.start_all([](ProcessGroup& group) {
        std::this_thread::sleep_for(milliseconds(50 * ((group.rank() + 2) % 4)));
        group.leave();
        std::this_thread::sleep_for(milliseconds(50 * group.rank()));
    });
    const std::vector<Exit> exits = ranks.exits();
    for (std::size_t rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(exits[rank].exit_code, 0);
        EXPECT_EQ(exits[rank].output, "");
    }
}

// ---- Faults ----

/// Simulates a main thread that is stuck in a collective.
void wait_forever(const ForkedRanks& ranks, ProcessGroup& group) {
    group.report_step(41);
    const auto waiting = group.waiting("the all-reduce of the gradients");
    ranks.set_mark(group.rank(), "stuck");
    sleep_forever();
}

void expect_notified(const std::vector<Exit>& exits, int size, int victim, const std::string& line,
                     double within) {
    for (int rank = 0; rank < size; ++rank) {
        if (rank == victim) continue;
        const Exit& exit = exits[static_cast<std::size_t>(rank)];
        EXPECT_EQ(exit.exit_code, 3) << "rank " << rank << ": " << exit.output;
        EXPECT_EQ(exit.output,
                  concat(line, "; rank ", rank, " waited for it in the all-reduce of the gradients"));
        EXPECT_LT(exit.seconds, within);
    }
}

TEST(ProcessGroup, NotifiesAllOfAKilledProcess) {
    for (int round = 0; round < fault_rounds(); ++round) {
        for (const int victim : {0, 1 + random_rank(3)}) {
            ForkedRanks ranks(4, 60.0);
            ranks.start_all([&](ProcessGroup& group) { wait_forever(ranks, group); });
            ranks.wait_for_mark_of_all("stuck");
            ranks.send(victim, SIGKILL);
            expect_notified(ranks.exits(), 4, victim,
                            concat("rank ", victim, " was lost at step 41 (its connection closed)"),
                            killed_seconds);
        }
    }
}

TEST(ProcessGroup, NotifiesAllOfAStoppedProcess) {
    const double timeout = 2.0;
    for (int round = 0; round < fault_rounds(); ++round) {
        for (const int victim : {0, 1 + random_rank(3)}) {
            ForkedRanks ranks(4, timeout);
            ranks.start_all([&](ProcessGroup& group) { wait_forever(ranks, group); });
            ranks.wait_for_mark_of_all("stuck");
            ranks.send(victim, SIGSTOP);
            const std::vector<Exit> exits = ranks.exits(/*except=*/victim);
            for (int rank = 0; rank < 4; ++rank) {
                if (rank == victim) continue;
                const Exit& exit = exits[static_cast<std::size_t>(rank)];
                EXPECT_EQ(exit.exit_code, 3) << exit.output;
                EXPECT_THAT(exit.output,
                            AllOf(StartsWith(concat("rank ", victim, " was lost at step 41 (")),
                                  HasSubstr(concat("; rank ", rank,
                                                   " waited for it in the all-reduce of the gradients"))));
                EXPECT_LT(exit.seconds, timeout + slack_seconds);
            }
        }
    }
}

/// mpirun continues a stopped rank 0 when another process has ended. Rank 0 then finds that this other
/// process is gone, but must report that rank 0 was lost.
TEST(ProcessGroup, NamesRankZeroAfterItWasStoppedAndContinued) {
    ForkedRanks ranks(3, 3.0);
    ranks.start(0, [&](ProcessGroup& group) { wait_forever(ranks, group); });
    ranks.start(2, [&](ProcessGroup& group) { wait_forever(ranks, group); });
    ranks.set_timeout(60.0);  // only rank 0 can tell rank 1 about the loss
    ranks.start(1, [&](ProcessGroup& group) { wait_forever(ranks, group); });
    ranks.wait_for_mark_of_all("stuck");
    ranks.send(0, SIGSTOP);
    ranks.wait_for_mark(2, "rank");
    std::this_thread::sleep_for(milliseconds(200));  // rank 2's connection closes
    ranks.send(0, SIGCONT);
    const std::vector<Exit> exits = ranks.exits();
    for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(exits[rank].exit_code, 3);
        EXPECT_THAT(exits[rank].output, StartsWith("rank 0 was lost at step 41 ("));
    }
}

TEST(ProcessGroup, ToleratesAShortStop) {
    ForkedRanks ranks(3, 30.0);
    ranks.start_all([&](ProcessGroup& group) {
        for (int i = 0; i < 20; ++i) {
            group.all_gather("x");
            ranks.set_mark(group.rank(), "begun");
            std::this_thread::sleep_for(milliseconds(20));
        }
        group.leave();
    });
    ranks.wait_for_mark_of_all("begun");
    for (const int rank : {0, 1}) {
        ranks.send(rank, SIGSTOP);
        std::this_thread::sleep_for(milliseconds(300));
        ranks.send(rank, SIGCONT);
    }
    const std::vector<Exit> exits = ranks.exits();
    for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(exits[rank].exit_code, 0) << exits[rank].output;
}

TEST(ProcessGroup, NamesTheRankThatMissesACollective) {
    for (const int victim : {0, 2}) {
        ForkedRanks ranks(3, 1.0);
        ranks.start_all([&](ProcessGroup& group) {
            group.report_step(7);
            if (group.rank() == victim) sleep_forever();  // alive, but never enters the collective
            const auto waiting = group.waiting("the all-reduce of the gradients");
            sleep_forever();
        });
        const std::vector<Exit> exits = ranks.exits();
        expect_notified(exits, 3, victim,
                        concat("rank ", victim, " was lost at step 7 (the others waited for 1 s)"),
                        1.0 + slack_seconds);
        // The process that hangs is notified as well.
        EXPECT_EQ(exits[static_cast<std::size_t>(victim)].exit_code, 3);
        EXPECT_EQ(exits[static_cast<std::size_t>(victim)].output,
                  concat("rank ", victim, " was lost at step 7 (the others waited for 1 s)"));
    }
}

TEST(ProcessGroup, NamesRanksThatAreAStepBehind) {
    ForkedRanks ranks(4, 1.0);
    ranks.start_all([&](ProcessGroup& group) {
        group.report_step(group.rank() % 2 == 1 ? 7 : 8);
        const auto waiting = group.waiting("the all-reduce of the gradients");
        sleep_forever();
    });
    EXPECT_THAT(ranks.exits()[0].output,
                StartsWith("ranks 1 and 3 were lost at step 7 (the others waited for 1 s)"));
}

TEST(ProcessGroup, ReportsThatAllRanksWait) {
    ForkedRanks ranks(2, 1.0);
    ranks.start_all([&](ProcessGroup& group) { wait_forever(ranks, group); });
    for (const Exit& exit : {ranks.exits()[1]}) {
        EXPECT_EQ(exit.exit_code, 3);
        EXPECT_EQ(exit.output,
                  "all ranks have waited for 1 s, and none is behind; rank 1 waited in the all-reduce of the "
                  "gradients");
    }
}

TEST(ProcessGroup, TimesOutInAnExchange) {
    ForkedRanks ranks(2, 1.0);
    ranks.start_all([&](ProcessGroup& group) {
        if (group.is_root()) sleep_forever();
        group.broadcast("");
    });
    EXPECT_EQ(ranks.exits()[1].output,
              "rank 0 was lost before the first step (the others waited for 1 s); rank 1 waited for it in an "
              "exchange of settings");
}

TEST(ProcessGroup, NotifiesAllOfAnErrorMessage) {
    for (const int victim : {0, 2}) {
        ForkedRanks ranks(4, 60.0);
        ranks.start_all([&](ProcessGroup& group) {
            if (group.rank() != victim) wait_forever(ranks, group);
            group.report_step(42);
            group.fail("no space left on device");
            throw Error("its own line");
        });
        const std::vector<Exit> exits = ranks.exits();
        expect_notified(exits, 4, victim,
                        concat("rank ", victim, " failed at step 42: no space left on device"),
                        killed_seconds);
        EXPECT_EQ(exits[static_cast<std::size_t>(victim)].exit_code, 1);
        EXPECT_EQ(exits[static_cast<std::size_t>(victim)].output, "its own line");
    }
}

/// The interrupt does not end the main thread's wait. So the process ends, as without survivors.
TEST(ProcessGroup, SurvivorsEndIfAnInterruptDoesNotHelp) {
    ForkedRanks ranks(2, 4.0);
    ranks.set_next_environment([](const RankLost&, std::int64_t) { return RankEnvironment{}; });
    ranks.start_all([&](ProcessGroup& group) {
        const auto survival = group.survive_losses();
        const auto inspection = group.inspect([] { return std::optional<std::string>(); }, [] {});
        wait_forever(ranks, group);
    });
    ranks.wait_for_mark_of_all("stuck");
    ranks.send(1, SIGKILL);
    const std::vector<Exit> exits = ranks.exits();
    EXPECT_EQ(exits[0].exit_code, 3);
    EXPECT_THAT(exits[0].output, HasSubstr("rank 1 was lost at step 41"));
    EXPECT_THAT(exits[0].output, HasSubstr("; the main thread's wait could not be ended"));
}

/// Simulates a broken network: every process is alive, and all main threads wait forever.
TEST(ProcessGroup, FaultFoundByAProbeEndsAllProcesses) {
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
            wait_forever(ranks, group);
        });
        const std::vector<Exit> exits = ranks.exits();
        const std::string line = concat("rank ", victim, " failed at step 41: the link broke");
        expect_notified(exits, 4, victim, line, killed_seconds);
        EXPECT_EQ(exits[static_cast<std::size_t>(victim)].exit_code, 3);
        EXPECT_EQ(exits[static_cast<std::size_t>(victim)].output, line);
    }
}

TEST(ProcessGroup, CommonErrorIsPrintedOnce) {
    ForkedRanks ranks(3, 60.0);
    ranks.start_all([&](ProcessGroup& group) {
        const bool prints = group.fail("the loss is not finite");
        throw Error(prints ? "the loss is not finite" : "");
    });
    const std::vector<Exit> exits = ranks.exits();
    std::string output;  // exactly one process prints the error
    for (std::size_t rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(exits[rank].exit_code, 1);
        output += exits[rank].output;
    }
    EXPECT_EQ(output, "the loss is not finite");
}

TEST(ProcessGroup, NamesTheDeadRankNotAFailureThatItCaused) {
    ForkedRanks ranks(3, 60.0);
    ranks.start_all([&](ProcessGroup& group) {
        if (group.rank() == 1) {
            std::this_thread::sleep_for(milliseconds(200));
            raise(SIGKILL);
        }
        if (group.rank() == 2) group.fail("a collective was broken off");
        wait_forever(ranks, group);
    });
    const std::vector<Exit> exits = ranks.exits();
    for (const std::size_t rank : {0u, 2u}) {
        EXPECT_EQ(exits[rank].exit_code, 3);
        EXPECT_THAT(exits[rank].output, StartsWith("rank 1 was lost"));
    }
}

TEST(ProcessGroup, ProcessThatEndsWithoutLeavingIsLost) {
    ForkedRanks ranks(2, 60.0);
    ranks.start_all([&](ProcessGroup& group) {
        if (group.rank() == 1) return;
        group.leave();
    });
    // How the line continues depends on whether rank 0 has called leave() by then.
    EXPECT_THAT(ranks.exits()[0].output,
                StartsWith("rank 1 was lost before the first step (its connection closed)"));
}

}  // namespace
}  // namespace gradtile::test
