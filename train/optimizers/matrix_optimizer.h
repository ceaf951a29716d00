#pragma once
/// Optimizers that compute an update from whole matrices, such as Muon. For each [rows, cols] matrix W with
/// gradient G:
///
///     M = momentum M + (1 - momentum) G             U = momentum M + (1 - momentum) G   (Nesterov)
///     W = (1 - lr decay) W - lr step_factor direction(U)
///
/// AdamW updates all other parameters (embeddings, head, vectors). This class keeps the momentum, applies the
/// update, and works on shards; a derived class defines direction() and step_factor().
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <gradtile/train/optimizers/adamw.h>
#include <gradtile/train/optimizers/optimizer.h>

namespace gradtile {

struct MatrixPolynomial;

struct MatrixOptions {
    double lr_ratio = 20.0;  ///< the matrices' learning rate divided by the rate given to step()
    double momentum = 0.95;
    double weight_decay = 0.0;
    AdamW adamw;  ///< the rule for the other parameters
    /// The maximum number of elements that are updated together, in matrices of one shape. This number
    /// determines a step's scratch memory. 0: enough elements to occupy the device.
    std::int64_t group_elements = 0;
};

/// The flat arrays that hold a group's matrices.
struct MatrixArrays {
    Tensor values = {}, weights = {}, gradients = {}, momentum = {};
};

/// A matrix's offsets in the MatrixArrays, in elements. The weights are the masters, or the values
/// themselves.
struct MatrixOffsets {
    std::int64_t value, weight, gradient, momentum;
};

/// Matrices of one shape, which are updated together.
struct MatrixGroup {
    Shape shape;
    std::vector<MatrixOffsets> matrices;
    Tensor on_device = {};  ///< on a GPU: a copy of `matrices` as int32 [8 matrices.size()]
    std::int64_t count() const { return std::ssize(matrices); }
};

class MatrixOptimizer : public Optimizer {
  public:
    using Optimizer::step;
    void step(const Context& ctx, const Tensor& rate, const UpdateOptions& options = {}) final;
    /// Returns "momentum/NAME" for every matrix, then AdamW's state. For a shard returns one packed tensor
    /// "momentum" (see StateTensor) instead of the matrices' tensors.
    std::vector<StateTensor> state() const final;

  protected:
    /// is_hidden_matrix selects the rank-2 parameters that are updated as matrices. If there is a shard,
    /// updates only the elements in the shard. Throws Error when the shard contains only a part of a hidden
    /// matrix.
    MatrixOptimizer(const Context& ctx, const ParameterStore& store,
                    const std::function<bool(const Parameter&)>& is_hidden_matrix,
                    const MatrixOptions& options, const std::optional<OptimizerShard>& shard);

  private:
    /// Returns the directions [count, rows, cols], in a floating-point dtype that is not longer than U's. `u`
    /// [count, rows, cols] has the gradients' dtype and may be overwritten. `squares` is matrix_squares(u).
    virtual Tensor direction(const Context& ctx, const Tensor& u, const Tensor& squares) const = 0;
    /// Returns the learning-rate factor for matrices [rows, cols].
    virtual double step_factor(std::int64_t rows, std::int64_t cols) const = 0;

    /// A hidden matrix that this process updates.
    struct Matrix {
        Parameter parameter;
        MatrixOffsets offsets;
    };
    void add_matrices(const ParameterStore& store, const OptimizerShard& held);
    void allocate(const Context& ctx);

    std::vector<Parameter> hidden_;  // all processes' hidden matrices
    std::vector<Matrix> matrices_;   // this process's hidden matrices
    bool is_shard_;
    MatrixArrays arrays_;  // the momentum of all matrices_ is packed
    std::vector<MatrixGroup> groups_;
    MatrixOptions options_;
    std::unique_ptr<Optimizer> adamw_;  // updates the other parameters
};

/// Returns whether a Transformer parameter is a matrix in a block. A run's MatrixOptimizer updates these
/// matrices.
bool is_block_matrix(const Parameter& parameter);

/// Returns what a run's MatrixOptimizer needs to update a parameter. `flops` returns how many floating-point
/// operations direction()'s matrix products take for one matrix.
ParameterUpdate matrix_update_of(const Parameter& parameter, double (*flops)(const Shape& shape));

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
