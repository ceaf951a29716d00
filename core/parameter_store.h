#pragma once
/// Parameters: one flat block of values and one of gradients with named views, so that the optimizer, an
/// all-reduce and a checkpoint are single passes over contiguous memory.
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Parameters begin at a multiple of so many elements of the flat blocks.
inline constexpr std::int64_t parameter_alignment = 64;

/// How a parameter is initialized. Weights are drawn on the host from (seed, name), so every device starts
/// equal and adding a layer does not move the others' draws.
struct Init {
    enum class Kind { constant, normal };
    Kind kind = Kind::constant;
    double value = 0.0;  ///< the constant, or the standard deviation

    static Init zeros() { return {Kind::constant, 0.0}; }
    static Init ones() { return {Kind::constant, 1.0}; }
    static Init normal(double std) { return {Kind::normal, std}; }
};

/// overwrite: grad = contribution, whatever grad held; accumulate: grad += contribution.
enum class GradientWrite { overwrite, accumulate };

/// Where one contribution to a gradient goes, and how it is written.
struct GradientTarget {
    Tensor grad = {};  ///< undefined where there is no parameter
    GradientWrite write = GradientWrite::accumulate;

    bool accumulates() const { return write == GradientWrite::accumulate; }
};
/// For operators that can only add: the target's grad, zeroed first if it is to be overwritten.
Tensor ready_to_add(const Context& ctx, const GradientTarget& target);

/// One named parameter; a handle that stays valid as long as its store. value() and grad() exist once the
/// store is allocated.
class Parameter {
  public:
    Parameter() = default;
    bool defined() const { return entry_ != nullptr; }
    const std::string& name() const { return entry_->name; }
    const Shape& shape() const { return entry_->shape; }
    const Init& init() const { return entry_->init; }
    /// Matrices decay, vectors (biases, norm weights) do not.
    bool decays() const { return entry_->shape.rank() >= 2; }
    /// In the store's compute dtype.
    const Tensor& value() const { return entry_->value; }
    /// Accumulated gradient: float32 (float64 when the values are).
    const Tensor& grad() const { return entry_->grad; }
    /// Changes the store: call exactly once per contribution to the gradient, just before writing it. The
    /// first call after a reset returns overwrite, later ones accumulate. (const: a Parameter is a handle.)
    GradientTarget begin_gradient_write() const;
    /// The next contribution overwrites grad(); until then its values are meaningless.
    void reset_gradient() const { entry_->next_write = GradientWrite::overwrite; }
    /// The same views with the rows of zeros behind them that ParameterStore::add was asked for. Only zeros
    /// may be written to these rows; updates and checkpoints leave them out.
    const Tensor& padded_value() const { return entry_->padded_value; }
    const Tensor& padded_grad() const { return entry_->padded_grad; }
    /// First element inside the flat blocks.
    std::int64_t offset() const { return entry_->offset; }

  private:
    friend class ParameterStore;
    struct Entry {
        std::string name;
        Shape shape;
        Init init;
        Shape padded_shape;
        std::int64_t offset = 0;
        Tensor value, grad, padded_value, padded_grad;
        GradientWrite next_write = GradientWrite::accumulate;
    };
    explicit Parameter(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {}
    std::shared_ptr<Entry> entry_;
};

/// A stretch of the flat blocks, in elements.
struct FlatRange {
    std::int64_t begin = 0, length = 0;
    std::int64_t end() const { return begin + length; }
    bool operator==(const FlatRange&) const = default;
};

struct FlatOptions {
    /// The blocks' length is a multiple of this, and this is a multiple of 64, so that processes can have
    /// equal parts.
    std::int64_t multiple = 64;
    bool masters = true;                        ///< float32 masters for 16-bit values
    std::shared_ptr<Allocator> allocator = {};  ///< of values and gradients; none: the context's
};

class ParameterStore {
  public:
    ParameterStore() = default;
    ParameterStore(const ParameterStore&) = delete;
    ParameterStore& operator=(const ParameterStore&) = delete;

    /// Declares a parameter. Its first axis is padded to a multiple of `row_multiple`, since some kernels are
    /// slow with an odd number of rows. Throws Error on a second parameter of the same name, or once the
    /// store is allocated.
    Parameter add(std::string name, const Shape& shape, Init init, std::int64_t row_multiple = 1);

    /// Lays all parameters out in flat blocks (each starts at a multiple of 64 elements; the padding stays
    /// zero). Values in `dtype`; gradients in accumulator_of(dtype), zeroed; 16-bit values get a float32
    /// master copy, unless the options say that it is kept elsewhere.
    void allocate(const Context& ctx, DType dtype, const FlatOptions& options = {});
    /// Draws every parameter anew from (seed, name); masters first, values rounded from them. Where 16-bit
    /// values have no masters here, the block of gradients holds them afterwards.
    void initialize(const Context& ctx, Seed seed);

    bool allocated() const { return values_.defined(); }
    DType dtype() const { return dtype_; }
    std::span<const Parameter> parameters() const { return parameters_; }
    /// Throws Error naming it when there is none.
    const Parameter& find(const std::string& name) const;
    /// Sum of the parameters' elements, without padding.
    std::int64_t count() const;
    /// Elements of the flat blocks, padding included.
    std::int64_t flat_elements() const;

    const Tensor& values() const { return values_; }        ///< [flat_elements], compute dtype
    const Tensor& gradients() const { return gradients_; }  ///< [flat_elements], float32 or float64
    /// What the optimizer updates: the float32 masters for 16-bit values, else the values themselves.
    const Tensor& master() const { return master_.defined() ? master_ : values_; }
    bool has_master() const { return master_.defined(); }
    /// The view of master() that belongs to a parameter, in its shape.
    Tensor master_of(const Parameter& parameter) const;

    /// Call at the start of a step: the first contribution to each gradient overwrites what the last step
    /// left. Saves the pass that would zero the gradients and the reading of those zeros.
    void reset_gradients() const;
    /// Zeroes the gradients that received no contribution since reset_gradients().
    void zero_unwritten_gradients(const Context& ctx) const;

  private:
    std::vector<Parameter> parameters_;
    std::unordered_set<std::string> names_;  // of parameters_
    std::int64_t flat_elements_ = 0;
    DType dtype_ = DType::f32;
    Tensor values_, gradients_, master_;
};

}  // namespace gradtile
