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

#include <gradtile/core/gemm/symmetric_product.h>
#include <gradtile/train/optimizers/adamw.h>
#include <gradtile/train/optimizers/optimizer.h>

namespace gradtile {

struct MatrixOptions {
    double lr_ratio = 20.0;  ///< the matrices' learning rate divided by the rate given to step()
    double momentum = 0.95;
    double weight_decay = 0.0;
    AdamW adamw;  ///< the rule for the other parameters
    /// The maximum number of elements that are updated together, in matrices of one shape. This number
    /// determines the scratch memory of a step. 0: enough elements to occupy the device.
    std::int64_t group_elements = 0;
};

/// The flat arrays that hold a group's matrices.
struct MatrixArrays {
    Tensor values = {}, weights = {}, gradients = {}, momentum = {};
};

/// The offsets of a matrix in the arrays of MatrixArrays, in elements. The weights are the masters, or the
/// values themselves.
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
    /// Returns "momentum/NAME" for every matrix, then the state of AdamW. For a shard returns one packed
    /// tensor "momentum" (see StateTensor) instead of the matrices' tensors.
    std::vector<StateTensor> state() const final;

  protected:
    /// is_hidden_matrix selects the parameters of rank 2 that are updated as matrices. If there is a shard,
    /// updates only the elements in the shard. Throws Error when the shard contains a part of a hidden matrix
    /// but not the whole matrix.
    MatrixOptimizer(const Context& ctx, const ParameterStore& store,
                    const std::function<bool(const Parameter&)>& is_hidden_matrix,
                    const MatrixOptions& options, const std::optional<OptimizerShard>& shard);

  private:
    /// Returns the directions [count, rows, cols], in a floating-point dtype that is not longer than that of
    /// U. `u` [count, rows, cols] has the gradients' dtype and may be overwritten. `squares` are the
    /// matrix_squares() of u.
    virtual Tensor direction(const Context& ctx, const Tensor& u, const Tensor& squares) const = 0;
    /// Returns the factor of the learning rate for matrices [rows, cols].
    virtual double step_factor(std::int64_t rows, std::int64_t cols) const = 0;

    /// A hidden matrix of this process.
    struct Matrix {
        Parameter parameter;
        MatrixOffsets offsets;
    };
    void add_matrices(const ParameterStore& store, const OptimizerShard& held);
    void allocate(const Context& ctx);

    std::vector<Parameter> hidden_;  // hidden matrices of all processes
    std::vector<Matrix> matrices_;   // hidden matrices of this process
    bool is_shard_;
    MatrixArrays arrays_;  // the momentum of all matrices_ is packed
    std::vector<MatrixGroup> groups_;
    MatrixOptions options_;
    std::unique_ptr<Optimizer> adamw_;  // updates the other parameters
};

/// Whether a parameter of a Transformer is a matrix of a block. A run's MatrixOptimizer updates these
/// matrices.
bool is_block_matrix(const Parameter& parameter);

/// Returns what a run's MatrixOptimizer needs to update a parameter. `flops` returns the floating-point
/// operations of the matrix products in direction(), for one matrix.
ParameterUpdate matrix_update_of(const Parameter& parameter, double (*flops)(const Shape& shape));

/// Returns partial sums of squares of each matrix of x [count, rows, cols], for normalize_matrices().
Tensor matrix_squares(const Context& ctx, const Tensor& x);
/// Computes out = each matrix of x [count, rows, cols] divided by its Frobenius norm (plus 1e-7). `out` may
/// be x, or may have a shorter dtype. `squares` are the matrix_squares() of x.
void normalize_matrices(const Context& ctx, const Tensor& x, const Tensor& squares, const Tensor& out);

/// Computes squares = a I + b A + c A^2 for A = gram [count, n, n]. At the call `squares` [count, n, n] holds
/// A^2.
void add_lower_powers(const Context& ctx, const Tensor& squares, const Tensor& gram,
                      const MatrixPolynomial& polynomial);

}  // namespace gradtile
