#pragma once
/// Parameters: one flat value block and one flat gradient block, with named views. Therefore the optimizer,
/// an all-reduce and a checkpoint each need only one pass over contiguous memory.
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include <gradtile/core/random.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Each parameter's element offset in the flat blocks is a multiple of this number.
inline constexpr std::int64_t parameter_alignment = 64;

/// How a parameter is initialized. The host draws weights from (seed, name), so that initial weights are
/// equal on every device and do not change when another layer is added.
struct Init {
    enum class Kind { constant, normal };
    Kind kind = Kind::constant;
    double value = 0.0;  ///< the constant, or the standard deviation

    static Init zeros() { return {Kind::constant, 0.0}; }
    static Init ones() { return {Kind::constant, 1.0}; }
    static Init normal(double std) { return {Kind::normal, std}; }
};

/// overwrite: grad = contribution; accumulate: grad += contribution.
enum class GradientWrite { overwrite, accumulate };

/// Where one gradient contribution goes, and how to write it.
struct GradientTarget {
    Tensor grad = {};  ///< undefined if the layer does not have this parameter
    GradientWrite write = GradientWrite::accumulate;

    bool accumulates() const { return write == GradientWrite::accumulate; }
};
/// For operators that can only add to a gradient: returns the target's grad; if the target says overwrite,
/// fills grad with zeros first.
Tensor ready_to_add(const Context& ctx, const GradientTarget& target);

/// A handle for one named parameter, valid as long as its store. value() and grad() exist once the store is
/// allocated. On an undefined handle, all functions except defined() and begin_gradient_write() throw Error.
class Parameter {
  public:
    Parameter() = default;
    bool defined() const { return entry_ != nullptr; }
    const std::string& name() const { return entry().name; }
    const Shape& shape() const { return entry().shape; }
    const Init& init() const { return entry().init; }
    /// Whether weight decay applies: to matrices, but not to vectors (biases, norm weights).
    bool decays() const { return entry().shape.rank() >= 2; }
    /// The value, in the store's compute dtype.
    const Tensor& value() const {
        check(entry().value.defined(), "parameter ", name(), ": has no value; its store is not allocated");
        return entry().value;
    }
    /// Whether training leaves the value as it is: the store has no gradients (FlatOptions::gradients).
    /// Backward passes then skip the parameter.
    bool is_frozen() const { return entry().frozen; }
    /// The accumulated gradient: float32 (float64 for float64 values). Undefined if the parameter is frozen.
    const Tensor& grad() const { return entry().grad; }
    /// Changes the store: call exactly once per contribution to the gradient, just before writing it. The
    /// first call after a reset returns overwrite, later ones accumulate. A frozen parameter's target has no
    /// tensor. (The function is const because a Parameter is a handle.)
    GradientTarget begin_gradient_write() const;
    /// The next contribution overwrites grad(); until then its values are meaningless.
    void reset_gradient() const { entry().next_write = GradientWrite::overwrite; }
    /// value() and grad() with the zero rows that ParameterStore::add appended. Only zeros may be written to
    /// these rows. Updates and checkpoints skip the rows.
    const Tensor& padded_value() const { return entry().padded_value; }
    const Tensor& padded_grad() const { return entry().padded_grad; }
    /// The first element's index in the flat blocks.
    std::int64_t offset() const { return entry().offset; }

  private:
    friend class ParameterStore;
    struct Entry {
        std::string name;
        Shape shape;
        Init init;
        Shape padded_shape;
        std::int64_t offset = 0;
        Tensor value, grad, padded_value, padded_grad;
        bool frozen = false;
        GradientWrite next_write = GradientWrite::accumulate;
    };
    explicit Parameter(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {}
    Entry& entry() const {
        check(defined(), "parameter: undefined; a layer computes only with parameters of a ParameterStore");
        return *entry_;
    }
    std::shared_ptr<Entry> entry_;
};

/// A range in the flat blocks, in elements.
struct FlatRange {
    std::int64_t begin = 0, length = 0;
    std::int64_t end() const { return begin + length; }
    bool operator==(const FlatRange&) const = default;
};

struct FlatOptions {
    /// The block length is a multiple of this number, so that processes can have equal parts. Must itself be
    /// a multiple of 64.
    std::int64_t multiple = 64;
    bool masters = true;    ///< float32 masters for 16-bit values
    bool gradients = true;  ///< false: the parameters are frozen, and have no masters
    /// Allocates values and gradients; null: the context's allocator.
    std::shared_ptr<Allocator> allocator = {};
};

class ParameterStore {
  public:
    ParameterStore() = default;
    ParameterStore(const ParameterStore&) = delete;
    ParameterStore& operator=(const ParameterStore&) = delete;

    /// Declares a parameter. Its first axis is padded to a multiple of `row_multiple`, because some kernels
    /// are slow with an odd number of rows. Throws Error on a second parameter with the same name, and after
    /// allocate().
    Parameter add(std::string name, const Shape& shape, Init init, std::int64_t row_multiple = 1);

    /// Allocates the flat blocks and all parameter views (each starts at a multiple of 64 elements; the
    /// padding stays zero). Values have `dtype`, gradients accumulator_of(dtype); gradients are zeroed.
    /// 16-bit values get a float32 master copy if options.masters is set. Frozen parameters get values only.
    void allocate(const Context& ctx, DType dtype, const FlatOptions& options = {});
    /// Draws every parameter from (seed, name). 16-bit values are rounded from their masters. If this store
    /// has no masters for 16-bit values, the gradient block holds the drawn float32 numbers afterwards
    /// (frozen parameters: temporary memory).
    void initialize(const Context& ctx, Seed seed);

    bool allocated() const { return values_.defined(); }
    DType dtype() const { return dtype_; }
    std::span<const Parameter> parameters() const { return parameters_; }
    /// Returns the parameter with this name. Throws Error with the name when there is none.
    const Parameter& find(const std::string& name) const;
    /// How many elements the parameters have, without padding.
    std::int64_t count() const;
    /// Elements per flat block, padding included.
    std::int64_t flat_elements() const;

    const Tensor& values() const { return values_; }  ///< [flat_elements], compute dtype
    /// [flat_elements], float32 or float64; undefined if the parameters are frozen.
    const Tensor& gradients() const { return gradients_; }
    /// The weights that the optimizer updates: float32 masters for 16-bit values, else the values themselves.
    const Tensor& master() const { return master_.defined() ? master_ : values_; }
    bool has_master() const { return master_.defined(); }
    /// The parameter's view of master(), in the parameter's shape.
    Tensor master_of(const Parameter& parameter) const;

    /// Call at the start of a step: the first contribution to each gradient then overwrites the last step's
    /// gradient. So no pass has to write zeros into the gradients, and none has to read these zeros.
    void reset_gradients() const;
    /// Zeroes the gradients that received no contribution since reset_gradients().
    void zero_unwritten_gradients(const Context& ctx) const;

  private:
    std::vector<Parameter> parameters_;
    std::unordered_set<std::string> names_;  // names in parameters_
    std::int64_t flat_elements_ = 0;
    DType dtype_ = DType::f32;
    Tensor values_, gradients_, master_;
};

}  // namespace gradtile
