#pragma once
/// Muon (Keller Jordan 2024, "Muon: an optimizer for hidden layers in neural networks"): momentum whose
/// update is replaced by the nearest semi-orthogonal matrix. Muon is the MatrixOptimizer with
///
///     direction(U) = newton_schulz(U)               step_factor: see MuonScale
#include <memory>
#include <optional>
#include <string_view>

#include <gradtile/core/enum_names.h>
#include <gradtile/core/range.h>
#include <gradtile/train/optimizers/matrix_optimizer.h>

namespace gradtile {

struct OptimizerSetup;

/// The quintics a s + b s^3 + c s^5 that the Newton-Schulz steps apply to each singular value s; five steps
/// if no other number is given.
enum class MuonCoefficients {
    jordan,         ///< (3.4445, -4.7750, 2.0315) in every step: 0.68 to 1.14, if s is not tiny
    polar_express,  ///< of each step the best quintic for what the step before leaves: 0.84 to 1.13 for s in
                    ///< [0.001, 1] (Amsel et al. 2025, arXiv 2505.16932, algorithm 1: degree 5)
    convergent  ///< (2, -1.5, 0.5) in each of twelve steps, which has slope 0 at its fixed point 1: within
                ///< 5e-6 of 1 for s in [0.001, 1] (modded-nanogpt, records/track_3_optimization)
};

/// The factor on the learning rate of a matrix [rows, cols].
enum class MuonScale {
    shape,  ///< sqrt(max(1, rows / cols)) (Jordan 2024)
    rms  ///< 0.2 sqrt(max(rows, cols)): the update's root mean square is 0.2, as AdamW's usually is, so that
         ///< one rate suits both (Liu et al. 2025, "Muon is scalable for LLM training", arXiv 2502.16982)
};

struct MuonOptions {
    MatrixOptions matrix;
    MuonCoefficients coefficients = MuonCoefficients::jordan;
    MuonScale scale = MuonScale::shape;
    /// Input dtype for the Newton-Schulz products: f32, bf16, or none for newton_schulz_dtype(). Gradients in
    /// float64 are never rounded.
    std::optional<DType> newton_schulz = {};
};

/// Orthogonalises x [rows, cols], or each matrix in x [count, rows, cols], in place; float32 or float64,
/// contiguous. The steps of the quintic iteration
///     X <- a X + (b A + c A^2) X, A = X X^T, from X / |X|_F
/// bring singular values near 1; see MuonCoefficients. Products are in x's dtype, or in bfloat16 if
/// `products` is bf16. X, A, A^2 and the polynomial are then rounded to bfloat16, and sums are float32
/// (Jordan 2024 runs the whole iteration in bfloat16). The error against the exact quintic of Jordan is 1.2%
/// in norm; the published form's error is 2.5% (test NewtonSchulz.InBfloat16IsAsAccurateAsPublished).
void newton_schulz(const Context& ctx, const Tensor& x, DType products,
                   MuonCoefficients coefficients = MuonCoefficients::jordan);
/// Returns bf16 if ctx's device multiplies bfloat16 faster than float32, as every GPU does; otherwise f32.
DType newton_schulz_dtype(const Context& ctx);

/// Floating-point operations in newton_schulz() for one matrix.
double newton_schulz_flops(const Shape& shape, MuonCoefficients coefficients = MuonCoefficients::jordan);

class Muon final : public MatrixOptimizer {
  public:
    /// `packed_rows` selects the rank-2 parameters that Muon updates. See MatrixOptimizer.
    Muon(const Context& ctx, const ParameterStore& store, const PackedRows& packed_rows,
         const MuonOptions& options, const std::optional<OptimizerShard>& shard = {});

  private:
    Tensor direction(const Context& ctx, const Tensor& u, const Tensor& squares) const override;
    double step_factor(std::int64_t rows, std::int64_t cols) const override;

    MuonCoefficients coefficients_;
    MuonScale scale_;
    DType products_;  // Newton-Schulz product dtype, unless gradients are float64
};

/// Input dtype for the Newton-Schulz products. automatic: newton_schulz_dtype().
enum class MuonProducts { automatic, f32, bf16 };

/// The settings for --optimizer muon, which updates the matrices in a model's blocks. The other parameters
/// take AdamW's settings.
struct MuonSettings {
    static constexpr std::string_view name = "muon";

    static constexpr double default_lr = 0.02;

    double lr = 0.0;
    double weight_decay = -1.0;
    double momentum = 0.95;
    bool nesterov = true;
    std::int64_t momentum_warmup = 0;
    bool split = false;
    MuonScale scale = MuonScale::shape;
    MuonCoefficients coefficients = MuonCoefficients::jordan;
    double beta2 = 0.0;
    MuonProducts products = MuonProducts::automatic;

    template <class Self, class Visit>
    static void visit_settings(Self& self, Visit& visit) {
        visit("muon-lr", self.lr,
              "muon: peak learning rate of the blocks' matrices; 0: 0.02, or lr with muon-scale rms",
              Range{0, 1e30});
        visit("muon-weight-decay", self.weight_decay,
              "muon: weight decay of the blocks' matrices; -1: weight-decay", Range{-1, 1e30});
        visit("muon-momentum", self.momentum, "muon: momentum", setting_limits::proper_fraction);
        visit("muon-nesterov", self.nesterov,
              "muon: the update looks one step ahead of the momentum, as Nesterov's",
              setting_limits::any_value);
        visit("muon-momentum-warmup", self.momentum_warmup,
              "muon: updates in which the momentum rises from 0.85; 0: none",
              Range{0, setting_limits::max_steps});
        visit("muon-split", self.split,
              "muon: q, k and v, and gate and up, are orthogonalised as matrices of their own",
              setting_limits::any_value);
        visit("muon-scale", self.scale,
              "muon: factor on the rate of a matrix; shape: sqrt(max(1, rows/cols)), rms: 0.2 "
              "sqrt(max(rows, cols)), which makes updates as large as AdamW's",
              setting_limits::any_value);
        visit(
            "muon-coefficients", self.coefficients,
            "muon: Newton-Schulz's quintics; jordan: one for five steps, polar-express: one for each of five "
            "steps, convergent: (2, -1.5, 0.5) for twelve steps",
            setting_limits::any_value);
        visit("muon-beta2", self.beta2,
              "muon: decay of the second moment that each row of an update is divided by (NorMuon); 0: no "
              "division",
              setting_limits::proper_fraction);
        visit("muon-products", self.products,
              "muon: type of Newton-Schulz's matrix products; auto: bf16 where it is faster",
              setting_limits::any_value);
    }
    std::unique_ptr<Optimizer> make(const Context& ctx, const ParameterStore& store,
                                    const OptimizerSetup& setup,
                                    const std::optional<OptimizerShard>& shard) const;
    ParameterUpdate update_of(const Parameter& parameter, const ModelConfig& model) const;

  private:
    MatrixOptions matrix_options(const OptimizerSetup& setup) const;
    std::vector<std::int64_t> packed_rows(const Parameter& parameter, const ModelConfig& model) const;
};

template <>
struct EnumNames<MuonProducts> {
    static constexpr std::array names = {std::pair{MuonProducts::automatic, std::string_view("auto")},
                                         std::pair{MuonProducts::f32, std::string_view("f32")},
                                         std::pair{MuonProducts::bf16, std::string_view("bf16")}};
};
template <>
struct EnumNames<MuonCoefficients> {
    static constexpr std::array names = {
        std::pair{MuonCoefficients::jordan, std::string_view("jordan")},
        std::pair{MuonCoefficients::polar_express, std::string_view("polar-express")},
        std::pair{MuonCoefficients::convergent, std::string_view("convergent")}};
};
template <>
struct EnumNames<MuonScale> {
    static constexpr std::array names = {std::pair{MuonScale::shape, std::string_view("shape")},
                                         std::pair{MuonScale::rms, std::string_view("rms")}};
};

}  // namespace gradtile
