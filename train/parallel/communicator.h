#pragma once
/// Communicator: collectives on tensors over the processes of a group: NCCL between GPUs, MPI between CPUs.
/// With one process every call returns without doing anything.
///
/// Every process calls the same collectives in the same order with tensors of the same shape and dtype.
/// Tensors are contiguous, of float64, float32, bfloat16, float16 or int32. On a GPU a call is enqueued on
/// ctx's stream and can be part of a captured graph; on the CPU it returns when it is done. Sums of a CPU run
/// are taken in the order of ranks, so they are the same from run to run and in every process; those of NCCL
/// are with ctx.deterministic(), where its algorithm is fixed.
#include <memory>

#include <gradtile/core/tensor.h>
#include <gradtile/train/parallel/process_group.h>

namespace gradtile {

class Communicator {
  public:
    virtual ~Communicator() = default;
    int rank() const { return rank_; }
    int size() const { return size_; }

    /// x = the sum of all processes' x.
    void all_reduce(const Context& ctx, const Tensor& x) const;
    /// Process r's `part` [n] becomes elements [r n, (r+1) n) of the sum of all processes' `whole` [size n].
    /// part may be that slice of whole itself; the rest of whole is then left as it was or overwritten.
    void reduce_scatter(const Context& ctx, const Tensor& whole, const Tensor& part) const;
    /// The other way: everybody's `whole` becomes the parts in the order of ranks. part may be its own slice
    /// of whole.
    void all_gather(const Context& ctx, const Tensor& part, const Tensor& whole) const;
    /// x = that of process `root`.
    void broadcast(const Context& ctx, const Tensor& x, int root = 0) const;
    /// Returns when every process has come to it and the device has done what was enqueued.
    void barrier(const Context& ctx) const;

    /// Memory for tensors that are exchanged often: between GPUs of one host sums take fewer multiprocessors
    /// there, and gathering takes none. Every process allocates the same sizes in it in the same order.
    /// Elsewhere ctx's own.
    virtual std::shared_ptr<Allocator> symmetric_memory(const Context& ctx) const { return ctx.allocator(); }

  protected:
    Communicator(int rank, int size) : rank_(rank), size_(size) {}

  private:
    virtual void sum(const Context& ctx, const Tensor& x) const = 0;
    virtual void sum_parts(const Context& ctx, const Tensor& whole, const Tensor& part) const = 0;
    virtual void gather(const Context& ctx, const Tensor& part, const Tensor& whole) const = 0;
    virtual void send_from(const Context& ctx, const Tensor& x, int root) const = 0;
    virtual void wait_for_all(const Context& ctx) const = 0;
    int rank_, size_;
};

/// The group's communicator on ctx's device; the group must outlive it. Throws Error when this build has no
/// NCCL (or MPI), when two processes of a host were given one GPU, or when MPI was not told of the group's
/// processes.
std::unique_ptr<Communicator> make_communicator(const Context& ctx, ProcessGroup& group);

}  // namespace gradtile
