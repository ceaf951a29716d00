#include <gradtile/attention/ring_attention.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include <gradtile/attention/internal/attention_backend.h>
#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/tensor_ops.h>

namespace gradtile::attention {

Ring::Ring(int rank, int size) : rank_(rank), size_(size) {
    check(size >= 1 && rank >= 0 && rank < size, "ring: rank ", rank, " of ", size,
          "; expected a rank from 0 to size - 1");
}

void Ring::start_shift(const Context& ctx, const Tensor& sent, const Tensor& received) const {
    for (const Tensor* const x : {&sent, &received})
        check(x->defined() && x->is_contiguous(), "shift: ", *x, "; expected a contiguous tensor");
    check(sent.dtype() == received.dtype() && sent.elements() == received.elements(), "shift: receives ",
          received, " and sends ", sent, "; expected the same dtype and number of elements");
    check_sharing(ctx, "shift", {"received", received}, {{"sent", sent}});
    if (ctx.is_planning() || sent.elements() == 0) return;
    if (size_ > 1) {
        do_start_shift(ctx, sent, received);
    } else {
        copy(ctx, received, sent.reshape(received.shape()));
    }
}

void Ring::finish_shifts(const Context& ctx) const {
    if (size_ > 1 && !ctx.is_planning()) do_finish_shifts(ctx);
}

std::array<std::int64_t, 2> zigzag_chunks(std::int64_t tokens, int rank, int ranks) {
    check(ranks >= 1 && rank >= 0 && rank < ranks, "zigzag: rank ", rank, " of ", ranks);
    check(tokens >= 0 && tokens % (2 * ranks) == 0, "zigzag: ", tokens, " tokens for ", ranks,
          " ranks; expected a multiple of ", 2 * ranks);
    const std::int64_t chunk = tokens / (2 * ranks);
    return {rank * chunk, (2 * ranks - 1 - rank) * chunk};
}

std::array<std::int32_t, 4> zigzag_row_ranges(std::int64_t begin, std::int64_t end, std::int64_t tokens,
                                              int rank, int ranks) {
    const std::array<std::int64_t, 2> chunks = zigzag_chunks(tokens, rank, ranks);
    const std::int64_t chunk = tokens / (2 * ranks);
    const auto row = [&](std::size_t i, std::int64_t position) {
        return static_cast<std::int32_t>(static_cast<std::int64_t>(i) * chunk +
                                         std::clamp<std::int64_t>(position - chunks[i], 0, chunk));
    };
    return {row(0, begin), row(0, end), row(1, begin), row(1, end)};
}

namespace {

/// Refuses options that count rows or keys from the sequence's start, or that one call per pair of parts does
/// not compute: the backward passes of other algorithms than flash2 do not read the LSE over all keys. An
/// option that is new is refused until it is listed here.
void refuse_options(const char* op, const Options& options) {
    static constexpr std::string_view supported[] = {"scale",         "causal",  "top_left", "softcap",
                                                     "deterministic", "kernels", "sink",     "row_ranges"};
    for (const OptionState& option : option_states(options))
        check(!option.is_set || std::ranges::find(supported, option.name) != std::end(supported), op, ": ",
              option.name,
              " is set; expected only a scale, causal or row_ranges, a softcap and a sink with flash2");
}

void check_parts(const char* op, const Tensor& q, const Tensor& k, const Tensor& v, const Options& options,
                 const Ring& ring) {
    refuse_options(op, options);
    for (const auto& [name, x] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}})
        check(x->defined() && x->rank() == 4 && x->size(0) == q.size(0) && x->size(1) == q.size(1) &&
                  x->dtype() == q.dtype(),
              op, ": ", name, " is ", *x,
              ", expected [batch, rows, heads, head_dim] with q's batch, rows and ", "dtype: ", q);
    check(!options.causal || q.size(1) % 2 == 0, op, ": ", q.size(1),
          " rows; expected two chunks of equal length, because the call is causal");
    const Tensor& ranges = options.row_ranges;
    if (!ranges.defined()) return;
    check(!options.causal, op, ": causal is set with row_ranges; expected the whole mask in the ranges");
    check(ranges.rank() == 4 && (ranges.size(0) == ring.size() || ranges.size(0) == ring.size() * q.size(0)),
          op, ": row_ranges is ", ranges, ", expected the keys of ", ring.size(), " ranks, [", ring.size(),
          " or ", ring.size() * q.size(0), ", heads or 1, ", q.size(1), ", 4]");
}

/// The call of the operator with the keys of one process: rows from `first_row` on see keys [0, keys).
struct PartialCall {
    std::int64_t first_row = 0, rows = 0, keys = 0;
    Options options;

    /// The keys are those of rank `source`.
    PartialCall(const Ring& ring, int source, std::int64_t tokens, const Options& all)
        : rows(tokens), keys(tokens), options(all) {
        if (all.row_ranges.defined()) {
            const std::int64_t batch = all.row_ranges.size(0) / ring.size();
            options.row_ranges = all.row_ranges.slice(0, source * batch, batch);
        }
        if (source == ring.rank()) return;  // local order is the sequence's order
        options.causal = false;
        options.sink = {};  // counts once
        if (!all.causal) return;
        if (source < ring.rank()) {
            keys = tokens / 2;  // both chunks see the other's first chunk, and neither the second one
        } else {
            first_row = rows = tokens / 2;  // only the second chunk sees the other's keys, and all of them
        }
    }
    Tensor rows_of(const Tensor& x) const { return x.slice(1, first_row, rows); }
    Tensor keys_of(const Tensor& x) const { return x.slice(1, 0, keys); }
    Tensor lse_of(const Tensor& lse) const { return lse.slice(2, first_row, rows); }
};

/// Tensors with the shapes of k and v in one block of memory, which travels in one message.
struct Pair {
    Tensor memory, k, v;

    Pair(const Context& ctx, const Tensor& like_k, const Tensor& like_v, DType dtype)
        : memory(empty(ctx, {like_k.elements() + like_v.elements()}, dtype)),
          k(memory.slice(0, 0, like_k.elements()).reshape(like_k.shape())),
          v(memory.slice(0, like_k.elements(), like_v.elements()).reshape(like_v.shape())) {}
};

/// The keys and values that are present, and those that arrive.
class TravellingKeys {
  public:
    TravellingKeys(const Context& ctx, const Tensor& k, const Tensor& v, const Ring& ring)
        : present_(ctx, k, v, k.dtype()), arriving_(ctx, k, v, k.dtype()), ring_(ring) {
        copy(ctx, present_.k, k);
        copy(ctx, present_.v, v);
    }
    const Tensor& k() const { return present_.k; }
    const Tensor& v() const { return present_.v; }
    void start_shift(const Context& ctx) const { ring_.start_shift(ctx, present_.memory, arriving_.memory); }
    /// Called after finish_shifts().
    void take_arrived() { std::swap(present_, arriving_); }

  private:
    Pair present_, arriving_;
    const Ring& ring_;
};

/// The rank whose keys are present after `shifts` shifts.
int source_after(const Ring& ring, int shifts) {
    return (ring.rank() - shifts + ring.size()) % ring.size();
}

/// x in `dtype`: x itself if it has this dtype.
Tensor in_dtype(const Context& ctx, const Tensor& x, DType dtype) {
    return x.dtype() == dtype ? x : cast(ctx, x, dtype);
}

}  // namespace

Tensor ring_forward(const Context& ctx, const Tensor& q, const Tensor& k, const Tensor& v,
                    const Options& options, const Ring& ring, Saved& saved) {
    check_parts("ring_forward", q, k, v, options, ring);
    if (ring.size() == 1) return forward(ctx, q, k, v, options, saved);
    const DType sums = accumulator_of(q.dtype());
    TravellingKeys keys(ctx, k, v, ring);
    PartialResult all;
    for (int shifts = 0; shifts < ring.size(); ++shifts) {
        const bool continues = shifts + 1 < ring.size();
        if (continues) keys.start_shift(ctx);
        const PartialCall call(ring, source_after(ring, shifts), q.size(1), options);
        Saved part;
        const Tensor o =
            forward(ctx, call.rows_of(q), call.keys_of(keys.k()), call.keys_of(keys.v()), call.options, part);
        if (shifts == 0) {
            all = {in_dtype(ctx, o, sums), part.lse};
        } else {
            const PartialResult rows{call.rows_of(all.o), call.lse_of(all.lse)};
            merge(ctx, rows, rows, {in_dtype(ctx, o, sums), part.lse});
        }
        if (!continues) break;
        ring.finish_shifts(ctx);
        keys.take_arrived();
    }
    saved = {.q = q, .k = k, .v = v, .o = in_dtype(ctx, all.o, q.dtype()), .lse = all.lse};
    return saved.o;
}

namespace {

void check_backward(const Context& ctx, const Tensor& d_o, const Options& options, const Ring& ring,
                    const Saved& saved, const Gradients& into) {
    check_parts("ring_backward", saved.q, saved.k, saved.v, options, ring);
    const Tensor &q = saved.q, &o = saved.o, &lse = saved.lse;
    check(o.defined() && o.shape() == Shape{q.size(0), q.size(1), q.size(2), saved.v.size(3)} &&
              o.dtype() == q.dtype(),
          "ring_backward: o is ", o, ", expected q's shape and dtype, ", q, ", with v's head_dim");
    check(lse.defined() && lse.shape() == Shape{q.size(0), q.size(2), q.size(1)} &&
              lse.dtype() == accumulator_of(q.dtype()),
          "ring_backward: lse is ", lse, ", expected [batch, heads, rows] of q, ", q);
    check(d_o.defined() && d_o.shape() == o.shape() && d_o.dtype() == o.dtype(), "ring_backward: d_o is ",
          d_o, ", expected it like o, ", o);
    const std::pair<Operand, const Tensor*> gradients[] = {{{"gradient of q", into.q}, &saved.q},
                                                           {{"gradient of k", into.k}, &saved.k},
                                                           {{"gradient of v", into.v}, &saved.v}};
    for (const auto& [gradient, like] : gradients) {
        check(gradient.tensor.defined() && gradient.tensor.shape() == like->shape() &&
                  gradient.tensor.dtype() == like->dtype(),
              "ring_backward: ", gradient.name, " is ", gradient.tensor, ", expected it like its operand, ",
              *like);
        check_sharing(ctx, "ring_backward", gradient,
                      {{"q", q}, {"k", saved.k}, {"v", saved.v}, {"o", o}, {"lse", lse}, {"d_o", d_o}});
        check_distinct_elements("ring_backward", gradient);
    }
    check_sharing(ctx, "ring_backward", gradients[0].first,
                  {gradients[1].first, gradients[2].first, {"gradient of the sink", into.sink}});
    check_sharing(ctx, "ring_backward", gradients[1].first,
                  {gradients[2].first, {"gradient of the sink", into.sink}});
}

}  // namespace

void ring_backward(const Context& ctx, const Tensor& d_o, const Options& options, const Ring& ring,
                   const Saved& saved, const Gradients& into) {
    check_backward(ctx, d_o, options, ring, saved, into);
    if (ring.size() == 1) return backward(ctx, d_o, options, saved, into);
    const DType sums = accumulator_of(saved.q.dtype());
    TravellingKeys keys(ctx, saved.k, saved.v, ring);
    // The sums of the gradients of the keys that are present. They travel one shift behind the keys.
    Pair summed(ctx, saved.k, saved.v, sums), arriving(ctx, saved.k, saved.v, sums);
    Tensor d_q;
    for (int shifts = 0; shifts < ring.size(); ++shifts) {
        const bool continues = shifts + 1 < ring.size();
        if (continues) keys.start_shift(ctx);
        if (shifts > 0) ring.start_shift(ctx, summed.memory, arriving.memory);
        const PartialCall call(ring, source_after(ring, shifts), saved.q.size(1), options);
        const Saved part{.q = call.rows_of(saved.q),
                         .k = call.keys_of(keys.k()),
                         .v = call.keys_of(keys.v()),
                         .o = call.rows_of(saved.o),
                         .lse = call.lse_of(saved.lse)};
        Gradients own{
            .q = empty_like(ctx, part.q), .k = empty_like(ctx, part.k), .v = empty_like(ctx, part.v)};
        if (shifts == 0) own.sink = into.sink;
        backward(ctx, call.rows_of(d_o), call.options, part, own);
        if (continues || shifts > 0) ring.finish_shifts(ctx);
        if (continues) keys.take_arrived();
        if (shifts == 0) {
            d_q = in_dtype(ctx, own.q, sums);
            copy(ctx, summed.k, own.k);
            copy(ctx, summed.v, own.v);
            continue;
        }
        std::swap(summed, arriving);
        axpy(ctx, call.rows_of(d_q), 1.0, own.q);
        axpy(ctx, call.keys_of(summed.k), 1.0, own.k);
        axpy(ctx, call.keys_of(summed.v), 1.0, own.v);
    }
    ring.start_shift(ctx, summed.memory, arriving.memory);
    ring.finish_shifts(ctx);
    copy(ctx, into.q, d_q);
    copy(ctx, into.k, arriving.k);
    copy(ctx, into.v, arriving.v);
}

}  // namespace gradtile::attention
