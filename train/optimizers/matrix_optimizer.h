#pragma once
/// Optimizers that compute an update from whole matrices, such as Muon. For each [rows, cols] matrix W with
/// gradient G:
///
///     M = momentum M + (1 - momentum) G
///     U = momentum M + (1 - momentum) G             with Nesterov's look ahead, else U = M
///     O = direction(U)
///     W = (1 - lr decay) W - lr step_factor O
///
/// NorMuon (Li et al. 2025, arXiv 2510.05491, algorithm 1) divides each row of O by the root of its second
/// moment v = beta2 v + (1 - beta2) mean(row^2), and then gives O the norm that it had before.
///
/// A parameter may pack several matrices along its first axis, such as q, k and v; each is then updated as a
/// matrix of its own. AdamW updates all other parameters (embeddings, head, vectors). This class keeps the
/// momentum, applies the update, and works on shards; a derived class defines direction() and step_factor().
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <gradtile/core/host_device.h>
#include <gradtile/train/optimizers/adamw.h>
#include <gradtile/train/optimizers/optimizer.h>

namespace gradtile {

class ElementwiseOptimizer;
struct MatrixPolynomial;
struct ModelConfig;

/// The decay of the momentum, which may rise during the first updates.
struct MomentumRule {
    double decay = 0.95;
    bool nesterov = true;
    /// The number of updates in which the decay rises linearly from warmup_start to `decay`; 0: none.
    std::int64_t warmup = 0;

    static constexpr double warmup_start = 0.85;  ///< if `decay` is larger
    /// The decay of the update after `updates` others.
    GRADTILE_HOST_DEVICE double decay_after(std::int32_t updates) const {
        if (updates >= warmup || decay <= warmup_start) return decay;
        return warmup_start +
               (decay - warmup_start) * static_cast<double>(updates) / static_cast<double>(warmup);
    }
};

struct MatrixOptions {
    double lr_ratio = 20.0;  ///< the matrices' learning rate divided by the rate given to step()
    MomentumRule momentum = {};
    double beta2 = 0.0;  ///< decay of the rows' second moment (NorMuon); 0: rows are not divided
    double weight_decay = 0.0;
    bool cautious_decay = false;        ///< see DecayFactors
    MomentStorage moments = {};         ///< of the momentum, and of the other parameters' moments
    AdamW adamw = {};                   ///< the rule for the other parameters
    LearningRateFactor lr_factor = {};  ///< of the other parameters
    /// The maximum number of elements that are updated together, in matrices of one shape. This number
    /// determines a step's scratch memory. 0: enough elements to occupy the device.
    std::int64_t group_elements = 0;
};

/// The row counts of the matrices that a parameter packs along its first axis; one number if it is one
/// matrix. Empty: AdamW updates the parameter.
using PackedRows = std::function<std::vector<std::int64_t>(const Parameter&)>;

/// The flat arrays that hold a group's matrices.
struct MatrixArrays {
    Tensor values = {}, weights = {}, gradients = {}, momentum = {};
    Tensor second_moment = {};  ///< one number per row; undefined without NorMuon
    Tensor updates = {};        ///< [1] int32: how many updates were applied
    Seed seed = {};             ///< see MomentStorage

    DType arithmetic() const { return accumulator_of(values.dtype()); }
};

/// A matrix's offsets in the MatrixArrays, in elements. The weights are the masters, or the values
/// themselves.
struct MatrixOffsets {
    std::int64_t element;  ///< in the store's flat blocks, which the rounding of moments depends on
    std::int64_t value, weight, gradient, momentum, second_moment;
    /// The first block of a momentum in 8 bits. `momentum` is then the offset in the group's decoded
    /// momentum.
    std::int64_t momentum_block = 0;
};

/// Matrices of one shape, which are updated together.
struct MatrixGroup {
    Shape shape;
    std::vector<MatrixOffsets> matrices;
    Tensor on_device = {};  ///< on a GPU: a copy of `matrices` as int32 [14 matrices.size()]
    std::int64_t count() const { return std::ssize(matrices); }
};

class MatrixOptimizer : public Optimizer {
  public:
    ~MatrixOptimizer() override;
    using Optimizer::step;
    void step(const Context& ctx, const Tensor& rate, const UpdateOptions& options = {}) final;
    /// Returns "momentum/NAME" for every parameter that is, or packs, matrices; with NorMuon
    /// "second_moment/NAME" [rows] for each; then AdamW's state. For a shard returns one packed tensor
    /// "momentum" and one "second_moment" (see StateTensor) instead of the parameters' tensors.
    std::vector<StateTensor> state() const final;

  protected:
    /// `packed_rows` selects the rank-2 parameters that are updated as matrices. If there is a shard, updates
    /// only the elements in the shard. Throws Error when the shard contains only a part of such a parameter,
    /// and when the row counts do not add up to the parameter's rows.
    MatrixOptimizer(const Context& ctx, const ParameterStore& store, const PackedRows& packed_rows,
                    const MatrixOptions& options, const std::optional<OptimizerShard>& shard);

  private:
    /// Returns the directions [count, rows, cols], in a floating-point dtype that is not longer than U's. `u`
    /// [count, rows, cols] has the arithmetic's dtype and may be overwritten. `squares` is matrix_squares(u).
    virtual Tensor direction(const Context& ctx, const Tensor& u, const Tensor& squares) const = 0;
    /// Returns the learning-rate factor for matrices [rows, cols].
    virtual double step_factor(std::int64_t rows, std::int64_t cols) const = 0;

    /// A parameter that this process updates as matrices.
    struct Hidden {
        Parameter parameter;
        MatrixOffsets offsets;
    };
    void find_hidden(const Context& ctx, const ParameterStore& store, const OptimizerShard& held);
    void form_groups(const Context& ctx, const PackedRows& packed_rows);
    void add_to_group(const Shape& shape, const MatrixOffsets& offsets, std::int64_t max_elements);
    void add_packed_state(std::vector<StateTensor>& state) const;

    std::vector<Parameter> all_hidden_;  // of all processes
    std::vector<Hidden> hidden_;         // of this process
    bool is_shard_;
    MatrixArrays arrays_;  // the moments of hidden_ are packed
    std::vector<MatrixGroup> groups_;
    MatrixOptions options_;
    std::unique_ptr<ElementwiseOptimizer> adamw_;  // updates the other parameters
};

/// Returns the row counts of the matrices in a Transformer parameter: q, k and v in attn.qkv, gate and up in
/// mlp.gate_up, and in what an adapter adds to them. Empty if the parameter is not a matrix in a block.
std::vector<std::int64_t> block_matrix_rows(const Parameter& parameter, const ModelConfig& model);

/// Returns what a MatrixOptimizer needs to update a parameter that packs matrices with these row counts.
/// `flops` returns how many floating-point operations direction()'s matrix products take for one matrix.
ParameterUpdate matrix_update_of(const Parameter& parameter, std::span<const std::int64_t> packed_rows,
                                 const MatrixOptions& options,
                                 const std::function<double(const Shape&)>& flops);

/// Returns partial sums of squares for each matrix in x [count, rows, cols], as normalize_matrices() needs
/// them.
Tensor matrix_squares(const Context& ctx, const Tensor& x);
/// Computes out = each matrix in x [count, rows, cols] divided by its Frobenius norm (plus 1e-7). `out` may
/// be x, or may have a shorter dtype. `squares` is matrix_squares(x).
void normalize_matrices(const Context& ctx, const Tensor& x, const Tensor& squares, const Tensor& out);

/// Computes squares = a I + b A + c A^2 for A = gram [count, n, n]. At the call `squares` [count, n, n] holds
/// A^2.
void add_lower_powers(const Context& ctx, const Tensor& squares, const Tensor& gram,
                      const MatrixPolynomial& polynomial);

}  // namespace gradtile
