#pragma once
/// Muon (Keller Jordan 2024, "Muon: an optimizer for hidden layers in neural networks"): momentum whose
/// update is replaced by the nearest semi-orthogonal matrix. For each [rows, cols] matrix W with gradient G:
///
///     M = momentum M + (1 - momentum) G             U = momentum M + (1 - momentum) G   (Nesterov)
///     W = (1 - lr decay) W - lr sqrt(max(1, rows / cols)) NewtonSchulz5(U)
///
/// AdamW updates all other parameters (embeddings, head, vectors).
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <gradtile/core/enum_names.h>
#include <gradtile/train/optimizers/adamw.h>
#include <gradtile/train/optimizers/optimizer.h>
#include <gradtile/train/setting_limits.h>

namespace gradtile {

struct TrainConfig;

struct MuonOptions {
    double lr_ratio = 20.0;  ///< the matrices' learning rate divided by the rate given to step()
    double momentum = 0.95;
    double weight_decay = 0.0;
    AdamW adamw;  ///< the rule for the other parameters
    /// The dtype of the factors in Newton-Schulz's products: f32, bf16, or none for newton_schulz_dtype().
    /// Gradients in float64 are never rounded.
    std::optional<DType> newton_schulz = {};
    /// The maximum number of elements that are orthogonalised together, in matrices of one shape. It
    /// determines the scratch memory of a step. 0: enough elements to occupy the device.
    std::int64_t group_elements = 0;
};

/// Orthogonalises x [rows, cols], or each matrix of x [count, rows, cols], in place; float32 or float64,
/// contiguous. Five steps of the quintic iteration
///     X <- a X + (b A + c A^2) X, A = X X^T, (a, b, c) = (3.4445, -4.7750, 2.0315), from X / |X|_F
/// bring every singular value that is not tiny to between 0.68 and 1.14. Products are in x's dtype, or in
/// bfloat16 if `products` is bf16. X, A, A^2 and the polynomial are then rounded to bfloat16, and sums are
/// float32 (Jordan 2024 runs the whole iteration in bfloat16).
void newton_schulz(const Context& ctx, const Tensor& x, DType products);
/// Returns bf16 if ctx's device multiplies bfloat16 faster than float32, as every GPU does; otherwise f32.
DType newton_schulz_dtype(const Context& ctx);

/// Floating-point operations of newton_schulz() for one matrix.
double newton_schulz_flops(const Shape& shape);

/// The flat arrays that hold a group's matrices.
struct MuonArrays {
    Tensor values = {}, weights = {}, gradients = {}, momentum = {};
};

/// The offsets of a matrix in the arrays of MuonArrays, in elements. The weights are the masters, or the
/// values themselves.
struct MuonOffsets {
    std::int64_t value, weight, gradient, momentum;
};

/// Matrices of one shape, which are updated together.
struct MuonGroup {
    Shape shape;
    std::vector<MuonOffsets> matrices;
    Tensor on_device = {};  ///< on a GPU: a copy of `matrices` as int32 [8 matrices.size()]
    std::int64_t count() const { return std::ssize(matrices); }
};

class Muon final : public Optimizer {
  public:
    /// is_hidden_matrix selects the parameters of rank 2 that Muon updates. If there is a shard, updates only
    /// the elements in the shard. Throws Error when the shard contains a part of a hidden matrix but not the
    /// whole matrix.
    Muon(const Context& ctx, const ParameterStore& store,
         const std::function<bool(const Parameter&)>& is_hidden_matrix, const MuonOptions& options,
         const std::optional<OptimizerShard>& shard = {});

    using Optimizer::step;
    void step(const Context& ctx, const Tensor& rate, const UpdateOptions& options = {}) override;
    /// Returns "momentum/NAME" for every matrix, then the state of AdamW. For a shard returns one packed
    /// tensor "momentum" (see StateTensor) instead of the matrices' tensors.
    std::vector<StateTensor> state() const override;

  private:
    /// A hidden matrix of this process.
    struct Matrix {
        Parameter parameter;
        MuonOffsets offsets;
    };
    void add_matrices(const ParameterStore& store, const OptimizerShard& held);
    void allocate(const Context& ctx);

    std::vector<Parameter> hidden_;  // hidden matrices of all processes
    std::vector<Matrix> matrices_;   // hidden matrices of this process
    bool is_shard_;
    MuonArrays arrays_;  // the momentum of all matrices_ is packed
    std::vector<MuonGroup> groups_;
    MuonOptions options_;
    DType products_ = DType::f32;       // dtype of Newton-Schulz's products
    std::unique_ptr<Optimizer> adamw_;  // for the other parameters
};

/// The dtype of the factors in Newton-Schulz's products. automatic: newton_schulz_dtype().
enum class MuonProducts { automatic, f32, bf16 };

/// The settings of --optimizer muon, which updates the matrices of a model's blocks. The other parameters
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
                                    const TrainConfig& config,
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
