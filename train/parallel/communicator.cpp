#include <gradtile/train/parallel/communicator.h>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/train/parallel/internal/communicator_backend.h>

namespace gradtile {
namespace {

void check_whole(const char* what, const Tensor& x) {
    check(x.defined() && x.is_contiguous(), what, ": ", x, "; expected a contiguous tensor");
}

void check_part(const char* what, const Tensor& whole, const Tensor& part, int size) {
    check_whole(what, whole);
    check_whole(what, part);
    check(part.dtype() == whole.dtype() && part.elements() * size == whole.elements(), what, ": a part ",
          part, " of ", whole, " among ", size, " processes");
}

class Alone final : public Communicator {
  public:
    Alone() : Communicator(0, 1) {}

  private:
    // Never called: one process has nothing to exchange.
    void sum(const Context&, const Tensor&) const override {}
    void sum_parts(const Context&, const Tensor&, const Tensor&) const override {}
    void gather(const Context&, const Tensor&, const Tensor&) const override {}
    void send_from(const Context&, const Tensor&, int) const override {}
    void wait_for_all(const Context&) const override {}
};

}  // namespace

void Communicator::all_reduce(const Context& ctx, const Tensor& x) const {
    check_whole("all_reduce", x);
    if (size_ > 1 && x.elements() > 0 && !ctx.is_planning()) sum(ctx, x);
}

void Communicator::reduce_scatter(const Context& ctx, const Tensor& whole, const Tensor& part) const {
    check_part("reduce_scatter", whole, part, size_);
    if (ctx.is_planning() || part.elements() == 0) return;
    if (size_ > 1) {
        sum_parts(ctx, whole, part);
    } else if (part.raw_data() != whole.raw_data()) {
        copy(ctx, part, whole.reshape(part.shape()));
    }
}

void Communicator::all_gather(const Context& ctx, const Tensor& part, const Tensor& whole) const {
    check_part("all_gather", whole, part, size_);
    if (ctx.is_planning() || part.elements() == 0) return;
    if (size_ > 1) {
        gather(ctx, part, whole);
    } else if (part.raw_data() != whole.raw_data()) {
        copy(ctx, whole.reshape(part.shape()), part);
    }
}

void Communicator::broadcast(const Context& ctx, const Tensor& x, int root) const {
    check_whole("broadcast", x);
    check(root >= 0 && root < size_, "broadcast: from process ", root, " of ", size_);
    if (size_ > 1 && x.elements() > 0 && !ctx.is_planning()) send_from(ctx, x, root);
}

void Communicator::barrier(const Context& ctx) const {
    if (size_ > 1) wait_for_all(ctx);
}

std::unique_ptr<Communicator> make_communicator(const Context& ctx, ProcessGroup& group) {
    if (group.is_alone()) return std::make_unique<Alone>();
    return ctx.device().is_cpu() ? cpu::make_mpi_communicator(group)
                                 : cuda::make_nccl_communicator(ctx, group);
}

}  // namespace gradtile
