#pragma once
/// Muon (Keller Jordan 2024, "Muon: an optimizer for hidden layers in neural networks"): momentum whose
/// update is replaced by the nearest semi-orthogonal matrix. Muon is the MatrixOptimizer with
///
///     direction(U) = NewtonSchulz5(U)               step_factor = sqrt(max(1, rows / cols))
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include <gradtile/core/enum_names.h>
#include <gradtile/train/optimizers/matrix_optimizer.h>
#include <gradtile/train/optimizers/setting_limits.h>

namespace gradtile {

struct OptimizerSetup;

struct MuonOptions {
    double lr_ratio = 20.0;  ///< the matrices' learning rate divided by the rate given to step()
    double momentum = 0.95;
    double weight_decay = 0.0;
    AdamW adamw;  ///< the rule for the other parameters
    /// Input dtype for the Newton-Schulz products: f32, bf16, or none for newton_schulz_dtype(). Gradients in
    /// float64 are never rounded.
    std::optional<DType> newton_schulz = {};
    /// The maximum number of elements that are orthogonalised together, in matrices of one shape. This number
    /// determines a step's scratch memory. 0: enough elements to occupy the device.
    std::int64_t group_elements = 0;
};

/// Orthogonalises x [rows, cols], or each matrix in x [count, rows, cols], in place; float32 or float64,
/// contiguous. Five steps of the quintic iteration
///     X <- a X + (b A + c A^2) X, A = X X^T, (a, b, c) = (3.4445, -4.7750, 2.0315), from X / |X|_F
/// bring every singular value that is not tiny to between 0.68 and 1.14. Products are in x's dtype, or in
/// bfloat16 if `products` is bf16. X, A, A^2 and the polynomial are then rounded to bfloat16, and sums are
/// float32 (Jordan 2024 runs the whole iteration in bfloat16). The error against the exact quintic is 1.2% in
/// norm; the published form's error is 2.5% (test NewtonSchulz.InBfloat16IsAsAccurateAsPublished).
void newton_schulz(const Context& ctx, const Tensor& x, DType products);
/// Returns bf16 if ctx's device multiplies bfloat16 faster than float32, as every GPU does; otherwise f32.
DType newton_schulz_dtype(const Context& ctx);

/// Floating-point operations in newton_schulz() for one matrix.
double newton_schulz_flops(const Shape& shape);

class Muon final : public MatrixOptimizer {
  public:
    /// is_hidden_matrix selects the rank-2 parameters that Muon updates. See MatrixOptimizer.
    Muon(const Context& ctx, const ParameterStore& store,
         const std::function<bool(const Parameter&)>& is_hidden_matrix, const MuonOptions& options,
         const std::optional<OptimizerShard>& shard = {});

  private:
    Tensor direction(const Context& ctx, const Tensor& u, const Tensor& squares) const override;
    double step_factor(std::int64_t rows, std::int64_t cols) const override;

    DType products_;  // Newton-Schulz product dtype, unless gradients are float64
};

/// Input dtype for the Newton-Schulz products. automatic: newton_schulz_dtype().
enum class MuonProducts { automatic, f32, bf16 };

/// The settings for --optimizer muon, which updates the matrices in a model's blocks. The other parameters
/// take AdamW's settings.
struct MuonSettings {
    static constexpr std::string_view name = "muon";

    double lr = 0.02;
    double momentum = 0.95;
    MuonProducts products = MuonProducts::automatic;

    template <class Self, class Visit>
    static void visit_settings(Self& self, Visit& visit) {
        visit("muon-lr", self.lr, "muon: peak learning rate of the blocks' matrices",
              setting_limits::positive);
        visit("muon-momentum", self.momentum, "muon: momentum", setting_limits::proper_fraction);
        visit("muon-products", self.products,
              "muon: type of Newton-Schulz's matrix products; auto: bf16 where it is faster",
              setting_limits::any_value);
    }
    std::unique_ptr<Optimizer> make(const Context& ctx, const ParameterStore& store,
                                    const OptimizerSetup& setup,
                                    const std::optional<OptimizerShard>& shard) const;
    ParameterUpdate update_of(const Parameter& parameter) const;
};

template <>
struct EnumNames<MuonProducts> {
    static constexpr std::array names = {std::pair{MuonProducts::automatic, std::string_view("auto")},
                                         std::pair{MuonProducts::f32, std::string_view("f32")},
                                         std::pair{MuonProducts::bf16, std::string_view("bf16")}};
};

}  // namespace gradtile
