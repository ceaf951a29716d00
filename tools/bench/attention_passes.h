#pragma once
/// The calls of attention that `gradtile bench attention` times.
#include <functional>
#include <string>

#include <gradtile/attention/attention.h>
#include <gradtile/tools/bench/attention_shapes.h>
#include <gradtile/tools/bench/attention_tuning.h>
#include <gradtile/tools/bench/measure.h>

namespace gradtile::cli {

/// Options that change scores and probabilities.
struct ScoreFlags {
    double softcap = 0, dropout = 0;
    bool alibi = false, sink = false;
    std::string bias;  ///< the letters from "bhqk" whose axes are not broadcast; empty: no bias
    bool mask_bias = false;
    std::string mask;  ///< a NamedMask; empty: none

    /// Throws UsageError naming the flag with a wrong value.
    void check() const;
};

struct PassFlags {
    ScoreFlags score;
    attention::Algorithm algorithm = attention::Algorithm::flash2;
    bool deterministic = false;
};

/// Forward and backward on tensors allocated with ctx.
class AttentionPasses {
  public:
    AttentionPasses(const Context& ctx, const Shapes& shapes, DType dtype, const PassFlags& flags);

    void forward();
    /// Runs the backward pass for the last forward().
    void backward() { attention::backward(ctx_, d_o_, options_, saved_, gradients_); }
    std::string explain() const { return attention::explain_forward(ctx_, q_, k_, v_, options_); }
    /// Each pass with all its plans. `flops` counts the forward pass.
    TunedPass tuned_forward(const Shapes& shapes, double flops);
    TunedPass tuned_backward(const Shapes& shapes, double flops);
    /// Bytes of row statistics that forward() left for backward().
    std::size_t saved_bytes() const;

  private:
    template <class Pass>
    std::function<void(const attention::KernelChoice&)> with_kernels(Pass pass);
    void pack(const Shapes& shapes);
    void add_score_tensors(const Shapes& shapes, const ScoreFlags& flags);

    Context ctx_;
    attention::Options options_;
    RandomNumbers numbers_;  // kept alive, because its freed memory could serve as scratch memory, which
                             // would then not be counted
    Tensor q_, k_, v_, o_, d_o_;
    attention::Gradients gradients_;
    attention::Saved saved_;
};

}  // namespace gradtile::cli
