#include <gradtile/train/parallel/communicator.h>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/parallel/internal/communicator_backend.h>

namespace gradtile {
namespace {

void check_whole(const char* what, const Tensor& x) {
    check(x.defined() && x.is_contiguous(), what, ": ", x, "; expected a contiguous tensor");
}

void check_part(const Context& ctx, const char* what, const Tensor& full, const Tensor& part, int rank,
                int size) {
    check_whole(what, full);
    check_whole(what, part);
    check(part.dtype() == full.dtype() && part.elements() * size == full.elements(), what, ": part ", part,
          " of ", full, "; expected the same dtype and 1/", size, " of the elements");
    const std::byte* const own = full.raw_data() + static_cast<std::size_t>(rank) * part.bytes();
    if (part.raw_data() != own) check_sharing(ctx, what, {"part", part}, {{"whole", full}});
}

class SingleProcessCommunicator final : public Communicator {
  public:
    SingleProcessCommunicator() : Communicator(0, 1) {}

  private:
    // These functions are never called, because Communicator skips every exchange when there is one process.
    void do_all_reduce(const Context&, const Tensor&) const override {}
    void do_reduce_scatter(const Context&, const Tensor&, const Tensor&) const override {}
    void do_all_gather(const Context&, const Tensor&, const Tensor&) const override {}
    void do_broadcast(const Context&, const Tensor&, int) const override {}
    void do_barrier(const Context&) const override {}
    std::unique_ptr<attention::Ring> make_ring(const Context&, int) const override { return nullptr; }
};

class SingleProcessRing final : public attention::Ring {
  public:
    SingleProcessRing() : Ring(0, 1) {}

  private:
    // These functions are never called, because Ring copies what a single process sends to itself.
    void do_start_shift(const Context&, const Tensor&, const Tensor&) const override {}
    void do_finish_shifts(const Context&) const override {}
};

}  // namespace

void Communicator::all_reduce(const Context& ctx, const Tensor& x) const {
    check_whole("all_reduce", x);
    if (size_ > 1 && x.elements() > 0 && !ctx.is_planning()) do_all_reduce(ctx, x);
}

void Communicator::reduce_scatter(const Context& ctx, const Tensor& full, const Tensor& part) const {
    check_part(ctx, "reduce_scatter", full, part, rank_, size_);
    if (ctx.is_planning() || part.elements() == 0) return;
    if (size_ > 1) {
        do_reduce_scatter(ctx, full, part);
    } else if (part.raw_data() != full.raw_data()) {
        copy(ctx, part, full.reshape(part.shape()));
    }
}

void Communicator::all_gather(const Context& ctx, const Tensor& part, const Tensor& full) const {
    check_part(ctx, "all_gather", full, part, rank_, size_);
    if (ctx.is_planning() || part.elements() == 0) return;
    if (size_ > 1) {
        do_all_gather(ctx, part, full);
    } else if (part.raw_data() != full.raw_data()) {
        copy(ctx, full.reshape(part.shape()), part);
    }
}

void Communicator::broadcast(const Context& ctx, const Tensor& x, int root) const {
    check_whole("broadcast", x);
    check(root >= 0 && root < size_, "broadcast: root ", root, "; expected 0 to ", size_ - 1);
    if (size_ > 1 && x.elements() > 0 && !ctx.is_planning()) do_broadcast(ctx, x, root);
}

void Communicator::barrier(const Context& ctx) const {
    if (size_ > 1) do_barrier(ctx);
}

void Communicator::sum(const Context& ctx, std::span<double> values) const {
    if (size_ == 1) return;
    const Tensor sums = from_host(ctx.with_allocator(system_allocator(ctx.device())),
                                  std::span<const double>(values), {std::ssize(values)}, DType::f64);
    all_reduce(ctx, sums);
    synchronize(ctx);
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = item(ctx, sums.slice(0, static_cast<std::int64_t>(i), 1));
}

void Communicator::reconnect() {
    throw Error("communicator: these processes cannot be connected again");
}

std::unique_ptr<attention::Ring> Communicator::ring(const Context& ctx, int processes) const {
    check(processes >= 1 && size_ % processes == 0, "ring: ", processes, " of ", size_,
          " processes; expected a divisor");
    if (processes == 1) return std::make_unique<SingleProcessRing>();
    return make_ring(ctx, processes);
}

std::unique_ptr<Communicator> make_communicator(const Context& ctx, ProcessGroup& group) {
    if (group.is_alone()) return std::make_unique<SingleProcessCommunicator>();
    return ctx.device().is_cpu() ? cpu::make_cpu_communicator(group)
                                 : cuda::make_nccl_communicator(ctx, group);
}

}  // namespace gradtile
