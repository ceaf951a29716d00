// Collectives between processes that mpirun starts; communicator_process.cpp is one of them.
#include <cstdlib>

#include <gtest/gtest.h>

#include <gradtile/train/parallel/mpi.h>

namespace gradtile::test {
namespace {

class Collectives : public testing::TestWithParam<int> {};

TEST_P(Collectives, AgreeWithWhatEachProcessWorksOut) {
    if (!mpi::is_built_in()) GTEST_SKIP() << "this build has no MPI";
    if (std::system("command -v mpirun >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no mpirun in PATH";
    // As root and with more processes than cores, which Open MPI would refuse.
    const std::string command =
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
        "mpirun -np " +
        std::to_string(GetParam()) + " " GRADTILE_COMMUNICATOR_PROCESS " cpu 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Collectives, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace gradtile::test
