// Collectives between processes; mpirun starts communicator_process for each rank.
#include <cstdlib>

#include <gtest/gtest.h>

#include <gradtile/train/parallel/internal/mpi.h>

namespace gradtile::test {
namespace {

TEST(MpiPlugin, LoadsWhereTheBuildFoundMpi) {
    EXPECT_EQ(mpi::is_available(), GRADTILE_HAVE_MPI);
}

/// Runs a program with mpirun and returns the exit code. The variables let Open MPI run as root and start
/// more processes than cores.
int run_under_mpi(int processes, const std::string& program) {
    const std::string command =
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
        "mpirun -np " +
        std::to_string(processes) + " " + program + " 2>&1";
    return std::system(command.c_str());
}

class Collectives : public testing::TestWithParam<int> {
  protected:
    void SetUp() override {
        if (!mpi::is_available()) GTEST_SKIP() << "no MPI here";
        if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "mpirun is not in PATH";
    }
};

TEST_P(Collectives, MatchLocallyComputedResults) {
    EXPECT_EQ(run_under_mpi(GetParam(), GRADTILE_COMMUNICATOR_PROCESS " cpu"), 0);
}

#if GRADTILE_HAVE_MPI
TEST_P(Collectives, WorkInAProgramThatUsesMpiItself) {
    EXPECT_EQ(run_under_mpi(GetParam(), GRADTILE_OWN_MPI_PROCESS), 0);
}
#endif

INSTANTIATE_TEST_SUITE_P(Sizes, Collectives, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace gradtile::test
