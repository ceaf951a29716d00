#include <gradtile/core/check.h>
#include <gradtile/train/parallel/internal/byte_transport.h>
#include <gradtile/train/parallel/internal/mpi.h>

namespace gradtile::cpu {
namespace {

using mpi::mpi_check;

class MpiTransport final : public ByteTransport {
  public:
    void barrier() override { mpi_check(mpi::functions().barrier(), "barrier"); }
    void broadcast(std::byte* data, int bytes, int root) override {
        mpi_check(mpi::functions().broadcast(data, bytes, root), "broadcast");
    }
    void all_to_all(const std::byte* sent, const ByteParts& sent_parts, std::byte* received,
                    const ByteParts& received_parts) override {
        mpi_check(
            mpi::functions().all_to_all(sent, sent_parts.sizes.data(), sent_parts.offsets.data(), received,
                                        received_parts.sizes.data(), received_parts.offsets.data()),
            "all-to-all");
    }
    void all_gather(std::byte* data, const ByteParts& parts) override {
        mpi_check(mpi::functions().all_gather(data, parts.sizes.data(), parts.offsets.data()), "all-gather");
    }
    void start_transfer(const std::byte* sent, int to, std::byte* received, int from, int bytes) override {
        mpi_check(mpi::functions().start_transfer(sent, to, received, from, bytes), "start of a transfer");
    }
    void finish_transfers() override { mpi_check(mpi::functions().finish_transfers(), "transfer"); }
};

}  // namespace

std::unique_ptr<ByteTransport> make_mpi_transport(ProcessGroup& group) {
    const auto waiting = group.waiting("the start of MPI");
    const mpi::World world = mpi::start();
    check(world.size == group.size() && world.rank == group.rank(), "mpi: MPI reports rank ", world.rank,
          " of ", world.size, ", the process group rank ", group.rank(), " of ", group.size(),
          "; expected a start by mpirun (or srun with MPI support)");
    return std::make_unique<MpiTransport>();
}

}  // namespace gradtile::cpu
