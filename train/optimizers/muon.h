#pragma once
/// Muon (Keller Jordan 2024, "Muon: an optimizer for hidden layers in neural networks"): momentum whose
/// update is replaced by the nearest semi-orthogonal matrix. For each [rows, cols] matrix W with gradient G:
///
///     M = momentum M + (1 - momentum) G             U = momentum M + (1 - momentum) G   (Nesterov)
///     W = (1 - lr decay) W - lr sqrt(max(1, rows / cols)) NewtonSchulz5(U)
///
/// Everything that is not such a matrix (embeddings, head, vectors) is left to AdamW.
#include <functional>
#include <optional>

#include <gradtile/train/optimizers/adamw.h>

namespace gradtile {

struct MuonOptions {
    double lr_ratio = 20.0;  ///< the matrices' rate as a multiple of the one given to step()
    double momentum = 0.95;
    double weight_decay = 0.0;
    AdamWOptions adamw;  ///< for the other parameters
    /// What Newton-Schulz's products multiply: f32, bf16, or none for newton_schulz_dtype(). Gradients in
    /// float64 are never rounded.
    std::optional<DType> newton_schulz = {};
    /// Matrices of one shape are orthogonalised together up to so many elements, which decides how much
    /// scratch a step takes; 0: as many as occupy the device.
    std::int64_t group_elements = 0;
};

/// x [rows, cols] or a stack of such, [count, rows, cols], float32 or float64, contiguous, in place: of each
/// matrix five steps of the quintic iteration
/// X <- a X + (b A + c A^2) X, A = X X^T, (a, b, c) = (3.4445, -4.7750, 2.0315), from X / |X|_F. It takes
/// every singular value that is not tiny to between 0.68 and 1.14. Products multiply x's dtype or, where
/// `products` is bf16, bfloat16: X, A, A^2 and the polynomial are then rounded to it, as published (Jordan
/// 2024 runs the whole iteration so), and sums are float32.
void newton_schulz(const Context& ctx, const Tensor& x, DType products);
/// bf16 where ctx's device multiplies it faster than float32, as every GPU does; else f32.
DType newton_schulz_dtype(const Context& ctx);

/// Floating-point operations of that for one matrix.
double newton_schulz_flops(const Shape& shape);

/// The flat arrays in which a group's matrices lie.
struct MuonArrays {
    Tensor values = {}, weights = {}, gradients = {}, momentum = {};
};

/// Where a matrix begins in each of them, in elements. Weights are the masters, or the values themselves.
struct MuonOffsets {
    std::int64_t value, weight, gradient, momentum;
};

/// Matrices of one shape, updated together.
struct MuonGroup {
    Shape shape;
    std::vector<MuonOffsets> matrices;
    Tensor on_device = {};  ///< the same bytes on a GPU, int32 [8 matrices.size()]
    std::int64_t count() const { return std::ssize(matrices); }
};

class Muon final : public Optimizer {
  public:
    /// is_hidden_matrix chooses what Muon updates; it is asked only about parameters of rank 2.
    Muon(const Context& ctx, const ParameterStore& store,
         const std::function<bool(const Parameter&)>& is_hidden_matrix, const MuonOptions& options);
    /// Optimizes what the shard holds. Throws Error when it holds a part of a hidden matrix and not all.
    Muon(const Context& ctx, const ParameterStore& store,
         const std::function<bool(const Parameter&)>& is_hidden_matrix, const OptimizerShard& shard,
         const MuonOptions& options);

    using Optimizer::step;
    void step(const Context& ctx, const Tensor& rate, const UpdateOptions& options = {}) override;
    /// "momentum/NAME" for every matrix, then the state of AdamW. Of a shard "momentum", packed (see
    /// StateTensor).
    std::vector<StateTensor> state() const override;

  private:
    /// A hidden matrix of this process.
    struct Matrix {
        Parameter parameter;
        MuonOffsets offsets;
    };
    void allocate(const Context& ctx);

    const ParameterStore& store_;
    std::vector<Parameter> hidden_;  // of all processes
    std::vector<Matrix> matrices_;   // of this one
    bool is_shard_;
    MuonArrays arrays_;  // momentum: of all matrices_, packed
    std::vector<MuonGroup> groups_;
    MuonOptions options_;
    DType products_ = DType::f32;  // of Newton-Schulz
    AdamW adamw_;
};

}  // namespace gradtile
