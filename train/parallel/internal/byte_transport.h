#pragma once
/// ByteTransport: moves bytes between processes on CPUs, for the Communicator, which computes the sums. MPI
/// moves them if mpirun or srun started the processes; otherwise TCP connections do.
#include <cstddef>
#include <memory>
#include <vector>

#include <gradtile/train/parallel/process_group.h>

namespace gradtile::cpu {

/// One part of a buffer for each process, in bytes.
struct ByteParts {
    std::vector<int> sizes, offsets;
};

/// Every process makes the same calls in the same order. A call returns when this process's bytes are moved,
/// and throws Error when a process is lost.
class ByteTransport {
  public:
    virtual ~ByteTransport() = default;
    virtual void barrier() = 0;
    virtual void broadcast(std::byte* data, int bytes, int root) = 0;
    /// Sends the r-th part of `sent` to each process r, and receives its part into the r-th of `received`.
    virtual void all_to_all(const std::byte* sent, const ByteParts& sent_parts, std::byte* received,
                            const ByteParts& received_parts) = 0;
    /// Each process r contributes the r-th part; every process receives all parts in place.
    virtual void all_gather(std::byte* data, const ByteParts& parts) = 0;
    /// Starts to send to process `to` and to receive as many bytes from process `from`. The memory belongs to
    /// the transport until finish_transfers() returns.
    virtual void start_transfer(const std::byte* sent, int to, std::byte* received, int from, int bytes) = 0;
    virtual void finish_transfers() = 0;
    /// See Communicator.
    virtual bool can_reconnect() const { return false; }
    virtual void reconnect() {}
};

/// Starts MPI. Throws Error unless its ranks are the group's.
std::unique_ptr<ByteTransport> make_mpi_transport(ProcessGroup& group);
/// Collective: connects all processes with each other. The group must outlive the transport.
std::unique_ptr<ByteTransport> make_socket_transport(ProcessGroup& group);

}  // namespace gradtile::cpu
