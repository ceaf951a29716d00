#pragma once
/// Communicator: collectives on tensors over a group's processes. NCCL connects GPUs. MPI connects CPU
/// processes that mpirun or srun started, TCP all others. With one process every call returns at once.
///
/// Every process calls the same collectives in the same order with tensors that have the same shape and
/// dtype. Tensors are contiguous, with dtype float64, float32, bfloat16, float16 or int32. On a GPU a call is
/// enqueued on ctx's stream and can be captured in a graph; on the CPU a call blocks until the exchange is
/// complete. On the CPU values are added in rank order, so sums are identical in every run and in every
/// process. On GPUs the same holds with ctx.deterministic(), which fixes NCCL's algorithm.
#include <memory>
#include <span>

#include <gradtile/attention/ring_attention.h>
#include <gradtile/core/tensor.h>
#include <gradtile/train/parallel/process_group.h>

namespace gradtile {

class Communicator {
  public:
    virtual ~Communicator() = default;
    int rank() const { return rank_; }
    int size() const { return size_; }

    /// Replaces x by the sum of all processes' x.
    void all_reduce(const Context& ctx, const Tensor& x) const;
    /// Process r's `part` [n] becomes elements [r n, (r+1) n) of the sum of all processes' `full` [size n].
    /// `part` may be that slice of `full` itself; the other elements of `full` then may or may not be
    /// overwritten. Throws Error if `part` shares other memory with `full`.
    void reduce_scatter(const Context& ctx, const Tensor& full, const Tensor& part) const;
    /// `full` becomes all processes' `part`, concatenated in rank order. `part` may be this process's slice
    /// of `full`. Throws Error if `part` shares other memory with `full`.
    void all_gather(const Context& ctx, const Tensor& part, const Tensor& full) const;
    /// Replaces x by process `root`'s x.
    void broadcast(const Context& ctx, const Tensor& x, int root = 0) const;
    /// Returns when every process has called barrier() and this process's device has completed all enqueued
    /// work.
    void barrier(const Context& ctx) const;
    /// Replaces each value, on the host, by the sum of all processes' values.
    void sum(const Context& ctx, std::span<double> values) const;
    /// Call before the host uses what an exchange has written: waits for ctx's stream. Throws RankLost if
    /// another process is lost, because exchanges may then have ended early and written anything. On the CPU
    /// the exchange itself throws.
    virtual void synchronize(const Context&) const {}
    /// [1] float64 in memory that ctx's device reads, see ClipOptions::interruption; undefined if none is
    /// needed.
    virtual Tensor interruption() const { return {}; }

    /// The ring of this process: ranks 0 to processes - 1 are a ring, the next `processes` ranks another one,
    /// and so on. On a GPU a shift runs on the ring's own stream and can be captured; on the CPU
    /// the bytes move during calls, at the latest in finish_shifts(). The communicator must outlive the
    /// ring. Throws Error unless `processes` divides size().
    std::unique_ptr<attention::Ring> ring(const Context& ctx, int processes) const;

    /// Whether reconnect() is possible: the processes are on CPUs and connected by TCP, or on GPUs and their
    /// group replaces lost processes.
    virtual bool can_reconnect() const { return false; }
    /// Call after a RankLost, before ProcessGroup::regroup(): ends what the device still exchanges, and waits
    /// for the device. No graph with an exchange may exist.
    virtual void disconnect() {}
    /// Collective, after ProcessGroup::regroup(): connects the new group's processes. A process that replaces
    /// a lost one calls make_communicator() meanwhile. Exchanges that were under way are forgotten. Throws
    /// Error unless can_reconnect().
    virtual void reconnect();

    /// Allocator for tensors that are exchanged often. Between GPUs on one host, reductions on tensors in
    /// such memory occupy fewer multiprocessors, and gathers occupy none. Every process allocates the same
    /// sizes in the same order. Returns ctx's allocator if there is no symmetric memory, or if
    /// can_reconnect().
    virtual std::shared_ptr<Allocator> symmetric_memory(const Context& ctx) const { return ctx.allocator(); }

  protected:
    Communicator(int rank, int size) : rank_(rank), size_(size) {}

  private:
    virtual void do_all_reduce(const Context& ctx, const Tensor& x) const = 0;
    virtual void do_reduce_scatter(const Context& ctx, const Tensor& full, const Tensor& part) const = 0;
    virtual void do_all_gather(const Context& ctx, const Tensor& part, const Tensor& full) const = 0;
    virtual void do_broadcast(const Context& ctx, const Tensor& x, int root) const = 0;
    virtual void do_barrier(const Context& ctx) const = 0;
    /// Called for at least two processes.
    virtual std::unique_ptr<attention::Ring> make_ring(const Context& ctx, int processes) const = 0;
    int rank_, size_;
};

/// The group's communicator on ctx's device; the group must outlive it. Throws Error when this build has no
/// NCCL (or needs MPI and has none), when two processes on a host use the same GPU, or when MPI's ranks
/// differ from the group's.
std::unique_ptr<Communicator> make_communicator(const Context& ctx, ProcessGroup& group);

}  // namespace gradtile
