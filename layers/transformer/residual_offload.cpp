#include <gradtile/layers/transformer/internal/residual_offload.h>

namespace gradtile {
namespace {

class TensorList {
  public:
    std::vector<Tensor*> tensors;

    template <class... Tensors>
    void add(Tensors&... each) {
        (tensors.push_back(&each), ...);
    }
    void add(NormLayer::Saved& norm) { add(norm.x, norm.mean, norm.rstd); }
    void add(HeadGate::Saved& gate) { add(gate.linear.x, gate.logits); }
    void add(attention::Saved& s) { add(s.q, s.k, s.v, s.o, s.lse, s.lse_remainder, s.row_max, s.row_sum); }
    void add(MultiHeadAttention::Saved& s) {
        add(s.qkv.x, s.projected, s.rstd, s.proj.x);
        add(s.q_norm);
        add(s.k_norm);
        add(s.attention);
        add(s.value.gate);
        add(s.gate);
    }
    void add(Mlp::Saved& mlp) { add(mlp.up.x, mlp.hidden, mlp.down.x); }
    void add(TransformerBlock::Activations& s) {
        add(s.norm_1);
        add(s.attn);
        add(s.norm_post_1);
        add(s.norm_2);
        add(s.mlp);
        add(s.norm_post_2);
    }
};

bool is_view_of_same_buffer(const Tensor& a, const Tensor& b) {
    return a.buffer() != nullptr && a.buffer() == b.buffer();
}

std::vector<Tensor*> residuals_of(TransformerBlock::Saved& saved, const Tensor& x0) {
    TensorList list;
    for (Tensor& term : saved.mix.terms) list.add(term);
    list.add(saved.input);
    if (saved.activations) list.add(*saved.activations);
    std::erase_if(list.tensors, [&](const Tensor* x) { return is_view_of_same_buffer(*x, x0); });
    return list.tensors;
}

}  // namespace

void ResidualOffload::after_forward(const Context& ctx, std::size_t block, const Tensor& x0) {
    if (block > 0 && moves(block - 1)) stream_->join(ctx);
    leaving_ = {};
    if (!moves(block)) return;
    leaving_ = saved_[block];
    stream_->start_leaving(ctx, residuals_of(saved_[block], x0));
}

void ResidualOffload::before_backward(const Context& ctx, std::size_t block) const {
    if (moves(block)) stream_->join(ctx);
    if (block > 0 && moves(block - 1)) stream_->start_returning(ctx, residuals_of(saved_[block - 1], {}));
}

}  // namespace gradtile
