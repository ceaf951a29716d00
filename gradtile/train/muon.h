#pragma once
/// Muon (Keller Jordan 2024, "Muon: an optimizer for hidden layers in neural networks"): momentum whose
/// update is replaced by the nearest semi-orthogonal matrix. For each [rows, cols] matrix W with gradient G:
///
///     M = momentum M + (1 - momentum) G             U = momentum M + (1 - momentum) G   (Nesterov)
///     W = (1 - lr decay) W - lr sqrt(max(1, rows / cols)) NewtonSchulz5(U)
///
/// Everything that is not such a matrix (embeddings, head, vectors) is left to AdamW.
#include <functional>

#include <gradtile/train/adamw.h>

namespace gradtile {

struct MuonOptions {
    double lr_ratio = 20.0;  ///< the matrices' rate as a multiple of the one given to step()
    double momentum = 0.95;
    double weight_decay = 0.0;
    AdamWOptions adamw;  ///< for the other parameters
};

/// x [rows, cols] or a stack of such, [count, rows, cols], float32 or float64, contiguous, in place: of each
/// matrix five steps of the quintic iteration
/// X <- a X + (b A + c A^2) X, A = X X^T, (a, b, c) = (3.4445, -4.7750, 2.0315), from X / |X|_F. It takes
/// every singular value that is not tiny to between 0.68 and 1.14.
void newton_schulz(const Context& ctx, const Tensor& x);

class Muon final : public Optimizer {
  public:
    /// is_hidden_matrix chooses what Muon updates; it is asked only about parameters of rank 2.
    Muon(const Context& ctx, const ParameterStore& store,
         const std::function<bool(const Parameter&)>& is_hidden_matrix, const MuonOptions& options);

    using Optimizer::step;
    void step(const Context& ctx, const Tensor& rate, const UpdateOptions& options = {}) override;
    /// "momentum/NAME" for every matrix, then the state of AdamW.
    std::vector<StateTensor> state() const override;

  private:
    const ParameterStore& store_;
    std::vector<Parameter> matrices_;
    std::vector<Tensor> momenta_;                   // by matrix
    std::vector<std::vector<std::size_t>> stacks_;  // matrices that are orthogonalised together
    MuonOptions options_;
    AdamW adamw_;
};

}  // namespace gradtile
