#include <gradtile/layers/embedding.h>

#include <utility>

#include <gradtile/core/internal/overlap.h>
#include <gradtile/core/side_stream.h>
#include <gradtile/core/tensor_math.h>
#include <gradtile/layers/internal/embedding_backend.h>
#include <gradtile/layers/rows.h>
#include <gradtile/layers/vocabulary.h>

namespace gradtile {

void check_indices(const Context& ctx, const char* what, const Tensor& indices, std::int64_t end) {
    if (ctx.device().is_cuda() || ctx.is_planning()) return;
    const auto* const all = indices.data<std::int32_t>();
    for (std::int64_t i = 0; i < indices.elements(); ++i)
        check(all[i] >= 0 && all[i] < end, what, ' ', all[i], " is outside 0 to ", end - 1);
}

/// Token positions that a GPU sorts on a context's side stream. Before their memory returns to the context's
/// allocator, the context's stream joins the side stream, at the latest in the destructor.
class Embedding::TokenOrder {
  public:
    TokenOrder(const Context& ctx, const Tensor& tokens, std::int64_t vocabulary)
        : ctx_(ctx), sorted_(empty(ctx, {cuda::token_order_elements(tokens.elements())}, DType::i32)) {
        if (ctx.is_planning()) return;
        cuda::order_by_token(ctx.side().after(ctx), sorted_, tokens, vocabulary);
        is_running_ = true;
    }
    ~TokenOrder() {
        try {
            join();
        } catch (const Error&) {  // the next call on the stream reports the error
        }
    }
    TokenOrder(const TokenOrder&) = delete;
    TokenOrder& operator=(const TokenOrder&) = delete;

    const Tensor& sorted() const {
        join();
        return sorted_;
    }

  private:
    void join() const {
        if (std::exchange(is_running_, false)) ctx_.side().join(ctx_);
    }

    Context ctx_;
    Tensor sorted_;
    mutable bool is_running_ = false;
};

Embedding::Embedding(ParameterStore& parameters, const std::string& name, std::int64_t vocabulary,
                     std::int64_t width, double init_std)
    : weight(parameters.add(name + ".weight", {vocabulary, width}, Init::normal(init_std),
                            vocabulary_multiple)) {}

Tensor Embedding::forward(const Context& ctx, const Tensor& tokens, Saved& saved) const {
    check(tokens.dtype() == DType::i32 && tokens.is_contiguous(), "embedding: tokens ", tokens,
          "; expected contiguous int32");
    check(tokens.rank() < Shape::max_rank, "embedding: tokens ", tokens, " have too many axes");
    saved.tokens = tokens;
    std::vector<std::int64_t> shape(tokens.shape().begin(), tokens.shape().end());
    shape.push_back(weight.shape()[1]);
    Tensor y = empty(ctx, Shape(std::span<const std::int64_t>(shape)), weight.value().dtype());
    on_device(ctx, cpu::embedding_forward, cuda::embedding_forward, y, tokens, weight.value());
    return y;
}

void Embedding::start_token_sort(const Context& ctx, Saved& saved) const {
    if (ctx.device().is_cpu() || weight.is_frozen()) return;
    saved.order = std::make_shared<TokenOrder>(ctx, saved.tokens, weight.shape()[0]);
}

namespace {

/// Adds each row of dy to its token's gradient row. `order` contains the sorted positions of `tokens`; if it
/// is null, a GPU sorts the positions here.
void add_rows_of_tokens(const Context& ctx, const Parameter& weight, const Tensor& dy, const Tensor& tokens,
                        std::shared_ptr<const Embedding::TokenOrder> order) {
    if (weight.is_frozen()) return;
    check_sharing(ctx, "embedding", {"gradient of the weight", weight.grad()},
                  {{"dy", dy}, {"tokens", tokens}});
    const Tensor grad = ready_to_add(ctx, weight.begin_gradient_write());
    if (ctx.device().is_cpu()) {
        if (!ctx.is_planning()) cpu::embedding_backward(ctx, grad, dy, tokens);
        return;
    }
    if (!order) order = std::make_shared<Embedding::TokenOrder>(ctx, tokens, weight.shape()[0]);
    const Tensor scratch =
        empty(ctx, cuda::embedding_backward_scratch(tokens.elements(), weight.shape()[1]), grad.dtype());
    if (!ctx.is_planning()) cuda::embedding_backward(ctx, grad, dy, order->sorted(), scratch);
}

}  // namespace

void Embedding::backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    check(dy.dtype() == weight.dtype() && dy.rank() == saved.tokens.rank() + 1 &&
              dy.size(-1) == weight.shape()[1] &&
              dy.elements() == saved.tokens.elements() * weight.shape()[1],
          "embedding: dy ", dy, " does not fit tokens ", saved.tokens, " and weight ", weight.shape());
    row_layout(dy, "embedding");
    add_rows_of_tokens(ctx, weight, dy, saved.tokens, saved.order);
}

PositionEmbedding::PositionEmbedding(ParameterStore& parameters, const std::string& name,
                                     std::int64_t max_positions, std::int64_t width, double init_std)
    : weight(parameters.add(name + ".weight", {max_positions, width}, Init::normal(init_std))) {}

Tensor PositionEmbedding::forward(const Context& ctx, const Tensor& x, Saved& saved,
                                  std::int64_t start) const {
    check(x.rank() == 3 && x.size(2) == weight.shape()[1] && x.dtype() == weight.value().dtype(),
          "position_embedding: x ", x, " does not fit weight ", weight.value());
    check(start >= 0 && start + x.size(1) <= weight.shape()[0], "position_embedding: positions ", start,
          " to ", start + x.size(1), "; there are ", weight.shape()[0]);
    row_layout(x, "position_embedding");
    saved = {.start = start};
    Tensor y = empty(ctx, x.shape(), x.dtype());
    on_device(ctx, cpu::position_embedding_forward, cuda::position_embedding_forward, y, x,
              weight.value().slice(0, start, x.size(1)));
    return y;
}

Tensor PositionEmbedding::forward_at(const Context& ctx, const Tensor& x, const Tensor& positions,
                                     Saved& saved) const {
    check(x.rank() == 3 && x.size(2) == weight.shape()[1] && x.dtype() == weight.value().dtype(),
          "position_embedding: x ", x, " does not fit weight ", weight.value());
    check(positions.dtype() == DType::i32 && positions.is_contiguous() &&
              positions.shape() == Shape({x.size(0), x.size(1)}),
          "position_embedding: positions ", positions, "; expected contiguous int32 [", x.size(0), ", ",
          x.size(1), ']');
    saved = {.positions = positions};
    check_indices(ctx, "position_embedding: position", positions, weight.shape()[0]);
    const Tensor rows = empty(ctx, x.shape(), x.dtype());
    on_device(ctx, cpu::embedding_forward, cuda::embedding_forward, rows, positions, weight.value());
    return add(ctx, x, rows);
}

Tensor PositionEmbedding::backward(const Context& ctx, const Tensor& dy, const Saved& saved) const {
    check(dy.rank() == 3 && dy.size(2) == weight.shape()[1] && dy.dtype() == weight.dtype(),
          "position_embedding: dy ", dy, " does not fit weight ", weight.shape());
    row_layout(dy, "position_embedding");
    if (saved.positions.defined()) {
        check(saved.positions.shape() == Shape{dy.size(0), dy.size(1)}, "position_embedding: dy ", dy,
              " for positions ", saved.positions, "; backward needs what forward saved");
        add_rows_of_tokens(ctx, weight, dy, saved.positions, {});
        return dy;
    }
    check(saved.start >= 0 && saved.start + dy.size(1) <= weight.shape()[0], "position_embedding: dy ", dy,
          " after a start of ", saved.start, " for weight ", weight.shape(),
          "; backward needs what forward saved");
    if (weight.is_frozen()) return dy;
    check_sharing(ctx, "position_embedding", {"gradient of the weight", weight.grad()}, {{"dy", dy}});
    on_device(ctx, cpu::position_embedding_backward, cuda::position_embedding_backward,
              ready_to_add(ctx, weight.begin_gradient_write()).slice(0, saved.start, dy.size(1)), dy);
    return dy;
}

}  // namespace gradtile
