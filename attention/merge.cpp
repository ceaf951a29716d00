#include <gradtile/attention/attention.h>

#include <gradtile/attention/internal/kernel_views.h>
#include <gradtile/attention/internal/merge_backend.h>
#include <gradtile/core/internal/overlap.h>

namespace gradtile::attention {
namespace {

void check_part(const char* name, const PartialResult& part, const PartialResult& like) {
    const int rank = like.o.rank();
    check(rank == 3 || rank == 4, "merge: o is ", like.o,
          ", expected [batch, rows, heads, head_dim] or [rows, heads, head_dim]");
    check(is_floating(like.o.dtype()), "merge: o is ", like.o, ", expected a floating dtype");
    check(part.o.shape() == like.o.shape() && part.o.dtype() == like.o.dtype() &&
              part.o.device() == like.o.device(),
          "merge: o of ", name, " is ", part.o, ", expected it like that of a, ", like.o);
    const Shape lse = rank == 3 ? Shape{like.o.size(1), like.o.size(0)}
                                : Shape{like.o.size(0), like.o.size(2), like.o.size(1)};
    const DType dtype = accumulator_of(like.o.dtype());
    check(part.lse.defined() && part.lse.shape() == lse && part.lse.dtype() == dtype &&
              part.lse.device() == like.o.device(),
          "merge: lse of ", name, " is ", part.lse, ", expected ", lse, ' ', dtype, " on ", like.o.device());
}

/// A part in the layout of kernels: the tensors themselves, or copies.
struct KernelPart {
    Readable o, lse;

    KernelPart(const Context& ctx, const PartialResult& part)
        : o(ctx, with_batch_axis(part.o, 4)), lse(contiguous(ctx, with_batch_axis(part.lse, 3))) {}
    PartialResult load(const Context& ctx) const {
        o.load(ctx);
        lse.load(ctx);
        return {o.tensor(), lse.tensor()};
    }
};

}  // namespace

void merge(const Context& ctx, const PartialResult& into, const PartialResult& a, const PartialResult& b) {
    check(a.o.defined() && b.o.defined() && into.o.defined(), "merge: o of a part is undefined");
    check_part("a", a, a);
    check_part("b", b, a);
    check_part("the result", into, a);
    for (const Operand& written : {Operand{"o", into.o}, Operand{"lse", into.lse}}) {
        check_sharing(ctx, "merge", written,
                      {{"o of a", a.o}, {"lse of a", a.lse}, {"o of b", b.o}, {"lse of b", b.lse}},
                      Sharing::same_view);
        check_distinct_elements("merge", written);
    }
    check_sharing(ctx, "merge", {"o", into.o}, {{"lse", into.lse}});
    const KernelPart part_a(ctx, a), part_b(ctx, b);
    const Tensor o = with_batch_axis(into.o, 4), lse = with_batch_axis(into.lse, 3);
    const Writable written_o(ctx, o, o.dtype()), written_lse(ctx, lse, lse.dtype(), lse.is_contiguous());
    if (ctx.is_planning() || o.elements() == 0) return;
    (ctx.device().is_cpu() ? cpu::merge : cuda::merge)(ctx, {written_o.tensor(), written_lse.tensor()},
                                                       part_a.load(ctx), part_b.load(ctx));
    written_o.store(ctx);
    written_lse.store(ctx);
}

PartialResult merge(const Context& ctx, const PartialResult& a, const PartialResult& b) {
    const PartialResult into{empty(ctx, a.o.shape(), a.o.dtype()), empty(ctx, a.lse.shape(), a.lse.dtype())};
    merge(ctx, into, a, b);
    return into;
}

namespace cpu {

void merge(const Context& ctx, const PartialResult& into, const PartialResult& a, const PartialResult& b) {
    const std::int64_t rows = into.o.size(1), heads = into.o.size(2), columns = into.o.size(3);
    visit_floating(into.o.dtype(), [&]<class T>(TypeTag<T>) {
        using A = Accumulator<T>;
        const auto row_at = [&](const Tensor& o, std::int64_t batch, std::int64_t i, std::int64_t head) {
            return o.data<T>() + batch * o.stride(0) + i * o.stride(1) + head * o.stride(2);
        };
        parallel_ranges(ctx, into.lse.elements(), 64, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t n = begin; n < end; ++n) {
                const std::int64_t batch = n / (heads * rows), head = n / rows % heads, i = n % rows;
                const MergedRow<A> row(a.lse.data<A>()[n], b.lse.data<A>()[n]);
                const T *const from_a = row_at(a.o, batch, i, head), *const from_b =
                                                                         row_at(b.o, batch, i, head);
                T* const to = row_at(into.o, batch, i, head);
                for (std::int64_t c = 0; c < columns; ++c)
                    to[c] = convert<T>(row.element(convert<A>(from_a[c]), convert<A>(from_b[c])));
                into.lse.data<A>()[n] = row.lse;
            }
        });
    });
}

}  // namespace cpu
}  // namespace gradtile::attention
