// A program that uses both MPI and gradtile; communicator_test.cpp starts it through mpirun, once for each
// rank. The exit code is 0 when both work, in either order.
#include <cstdlib>
#include <iostream>

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/parallel/communicator.h>

using namespace gradtile;

namespace {

/// Calls MPI directly, as a program that uses MPI itself does.
int sum_of_ranks(int rank) {
    int sum = 0;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

double sum_through_gradtile(int rank) {
    ProcessGroup group(read_rank_environment(), {.timeout = 60.0, .on_loss = [](const std::string& line) {
                                                     std::cerr << line << std::endl;
                                                     std::_Exit(101);
                                                 }});
    const Context ctx(Device::cpu(), 1);
    const auto communicator = make_communicator(ctx, group);
    const Tensor x = from_host(ctx, std::vector<float>{static_cast<float>(rank)}, {});
    communicator->all_reduce(ctx, x);
    group.leave();
    return item(ctx, x);
}

}  // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int rank = 0, size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const int expected = size * (size - 1) / 2;
    bool agrees = sum_of_ranks(rank) == expected;
    try {
        agrees = sum_through_gradtile(rank) == expected && agrees;
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 102;
    }
    agrees = sum_of_ranks(rank) == expected && agrees;
    MPI_Finalize();
    return agrees ? 0 : 1;
}
