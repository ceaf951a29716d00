// Collectives between processes; mpirun starts communicator_process for each rank.
#include <cstdio>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace gradtile::test
