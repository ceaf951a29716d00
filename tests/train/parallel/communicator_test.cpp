// Collectives between processes: communicator_process for each rank, started by mpirun, which connects the
// processes by MPI, or with torchrun's variables, so that TCP connects them.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "forked_ranks.h"

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/parallel/communicator.h>
#include <gradtile/train/parallel/internal/mpi.h>

namespace gradtile::test {
namespace {

TEST(MpiPlugin, LoadsWhereTheBuildFoundMpi) {
    EXPECT_EQ(mpi::is_available(), GRADTILE_HAVE_MPI);
}

/// Runs a program with mpirun. The variables let Open MPI run as root and start more processes than cores.
std::string mpi_command(int processes, const std::string& program) {
    return "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
           "mpirun -np " +
           std::to_string(processes) + " " + program + " 2>&1";
}
/// Returns the exit code.
int run_under_mpi(int processes, const std::string& program) {
    return std::system(mpi_command(processes, program).c_str());
}

template <class Base>
class UnderMpirun : public Base {
  protected:
    void SetUp() override {
        if (!mpi::is_available()) GTEST_SKIP() << "no MPI here";
        if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not in PATH";
    }
};
using Collectives = UnderMpirun<testing::TestWithParam<int>>;
using RingCollectives = UnderMpirun<testing::Test>;

TEST_P(Collectives, MatchLocallyComputedResults) {
    EXPECT_EQ(run_under_mpi(GetParam(), GRADTILE_COMMUNICATOR_PROCESS " cpu"), 0);
}

TEST_F(RingCollectives, NameANeighbourThatIsLost) {
    FILE* const output = popen(mpi_command(2, GRADTILE_COMMUNICATOR_PROCESS " lost").c_str(), "r");
    ASSERT_NE(output, nullptr);
    std::string text;
    for (int c; (c = std::fgetc(output)) != EOF;) text += static_cast<char>(c);
    EXPECT_NE(pclose(output), 0);
    // The operation is named unless the loss was noticed before rank 0 began to wait.
    EXPECT_THAT(text, testing::ContainsRegex("rank 1 was lost before the first step \\(its connection "
                                             "closed\\)(; rank 0 waited for it in a shift in a ring)?\n"));
}

#if GRADTILE_HAVE_MPI
TEST_P(Collectives, WorkInAProgramThatUsesMpiItself) {
    EXPECT_EQ(run_under_mpi(GetParam(), GRADTILE_OWN_MPI_PROCESS), 0);
}
#endif

INSTANTIATE_TEST_SUITE_P(Sizes, Collectives, testing::Values(1, 2, 3, 4));

/// Starts a program's ranks in one shell, which returns the first exit code that is not 0.
std::string socket_command(int processes, const std::string& program) {
    return concat("export WORLD_SIZE=", processes, " LOCAL_WORLD_SIZE=", processes,
                  " MASTER_ADDR=127.0.0.1 MASTER_PORT=", free_port(), "; started=; for r in $(seq 0 ",
                  processes - 1, "); do RANK=$r LOCAL_RANK=$r ", program,
                  R"( & started="$started $!"; done; code=0; )",
                  "for p in $started; do wait $p || code=$?; done; exit $code");
}

class SocketCollectives : public testing::TestWithParam<int> {};

TEST_P(SocketCollectives, MatchLocallyComputedResults) {
    EXPECT_EQ(std::system(socket_command(GetParam(), GRADTILE_COMMUNICATOR_PROCESS " cpu").c_str()), 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, SocketCollectives, testing::Values(1, 2, 3, 4, 8));

/// The addends cause rounding, so sums are equal to the bit only if they are added in the same order.
TEST(SocketSums, AreThoseOfMpiToTheBit) {
    if (!mpi::is_available() || std::system("command -v mpirun >/dev/null 2>&1") != 0)
        GTEST_SKIP() << "no MPI here";
    const auto output_of = [](const std::string& command) {
        FILE* const output = popen(command.c_str(), "r");
        std::string text;
        for (int c; (c = std::fgetc(output)) != EOF;) text += static_cast<char>(c);
        EXPECT_EQ(pclose(output), 0) << text;
        return text;
    };
    for (const int processes : {2, 3, 5}) {
        const std::string by_mpi = output_of(mpi_command(processes, GRADTILE_COMMUNICATOR_PROCESS " sums"));
        const std::string by_sockets =
            output_of(socket_command(processes, GRADTILE_COMMUNICATOR_PROCESS " sums"));
        EXPECT_GT(by_mpi.size(), 1000u);
        EXPECT_EQ(by_mpi, by_sockets);
    }
}

/// A process that waits for a lost one, in any collective, ends with the line that names it.
TEST(SocketLosses, AreNamedInEveryCollective) {
    const Context ctx(Device::cpu(), 1);
    for (const char* const what : {"all_reduce", "all_gather", "broadcast", "barrier", "ring"})
        for (const int lost_rank : {0, 1, 2}) {
            ForkedRanks ranks(3, /*timeout=*/60.0);
            ranks.start_all([&](ProcessGroup& group) {
                const auto communicator = make_communicator(ctx, group);
                const auto ring = communicator->ring(ctx, 3);
                const Tensor x = zeros(ctx, {3 << 20}, DType::f32), y = empty_like(ctx, x);
                ranks.set_mark(group.rank(), "ready");
                for (int call = 0;; ++call) {
                    const std::string name = what;
                    if (name == "all_reduce") communicator->all_reduce(ctx, x);
                    if (name == "all_gather")
                        communicator->all_gather(ctx, x.slice(0, group.rank() << 20, 1 << 20), x);
                    if (name == "broadcast") communicator->broadcast(ctx, x, call % 3);
                    if (name == "barrier") communicator->barrier(ctx);
                    if (name != "ring") continue;
                    ring->start_shift(ctx, x, y);
                    ring->finish_shifts(ctx);
                }
            });
            ranks.wait_for_mark_of_all("ready");
            ranks.send(lost_rank, SIGKILL);
            const std::vector<Exit> exits = ranks.exits();
            for (int rank = 0; rank < 3; ++rank) {
                const Exit& exit = exits[static_cast<std::size_t>(rank)];
                if (rank == lost_rank) continue;
                EXPECT_EQ(exit.exit_code, 3) << what;
                EXPECT_LT(exit.seconds, 5.0) << what;
                EXPECT_THAT(exit.output, testing::HasSubstr(concat("rank ", lost_rank, " was lost"))) << what;
            }
        }
}

/// A stopped process does not close its connections: the others wait in a collective until the timeout.
TEST(SocketLosses, AHangingProcessIsNamedAfterTheTimeout) {
    const Context ctx(Device::cpu(), 1);
    for (const int lost_rank : {0, 2}) {
        ForkedRanks ranks(3, /*timeout=*/3.0);
        ranks.start_all([&](ProcessGroup& group) {
            const auto communicator = make_communicator(ctx, group);
            const Tensor x = zeros(ctx, {1 << 16}, DType::f32);
            ranks.set_mark(group.rank(), "ready");
            for (;;) communicator->all_reduce(ctx, x);
        });
        ranks.wait_for_mark_of_all("ready");
        ranks.send(lost_rank, SIGSTOP);
        const std::vector<Exit> exits = ranks.exits(lost_rank);
        for (int rank = 0; rank < 3; ++rank) {
            if (rank == lost_rank) continue;
            const Exit& exit = exits[static_cast<std::size_t>(rank)];
            EXPECT_EQ(exit.exit_code, 3);
            EXPECT_LT(exit.seconds, 3.0 + 5.0);
            EXPECT_THAT(exit.output, testing::HasSubstr(concat("rank ", lost_rank, " was lost")));
        }
    }
}

}  // namespace
}  // namespace gradtile::test
