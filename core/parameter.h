#pragma once
/// A named parameter: a handle for its value and gradient in a ParameterStore.
#include <functional>
#include <memory>
#include <string>

#include <gradtile/core/quantized_weights.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

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

class Parameter;
/// Gives a gradient its memory by Parameter::set_gradient(). Called before the gradient's first contribution
/// after reset_gradient().
using GradientProvider = std::function<void(const Parameter&)>;
/// Receives the float32 masters of a parameter that its store rounds but does not keep: flat, padded with
/// zeros to a multiple of 64 elements. Of a frozen parameter whose store has no value block: the values in
/// the store's dtype, or the codes, int32 [quantized_layout().words].
using KeepMasters = std::function<void(const Parameter&, const Tensor& masters)>;

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
    /// The value, in the store's compute dtype. Throws Error if the parameter is quantized.
    const Tensor& value() const {
        check(entry().value.defined(), "parameter ", name(), ": has no value; ",
              is_quantized()      ? "it is quantized"
              : entry().allocated ? "no stage of a pass reads it now"
                                  : "its store is not allocated");
        return entry().value;
    }
    /// Gives the value its memory: `flat` has padded_elements() elements, or a quantized parameter's codes.
    /// An undefined tensor takes the memory away. Throws Error if the store has a value block.
    void set_value(const Tensor& flat) const;
    /// The store's compute dtype, once the store is allocated.
    DType dtype() const {
        check(entry().allocated, "parameter ", name(), ": has no dtype; its store is not allocated");
        return entry().dtype;
    }
    /// The stages in which a forward pass reads the parameter first and last (ParameterStore::begin_stage()).
    std::size_t first_stage() const { return entry().first_stage; }
    std::size_t last_stage() const { return entry().last_stage; }
    /// Whether codes() take the place of the value (ParameterStore::quantize).
    bool is_quantized() const { return entry().format != WeightFormat::same; }
    WeightFormat format() const { return entry().format; }
    /// What quantize_weights() computes from the value; undefined unless the parameter is quantized.
    const Tensor& codes() const { return entry().codes; }
    /// Returns the value; if the parameter is quantized, dequantized in a new tensor.
    Tensor dequantized(const Context& ctx) const;
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
    /// Gives the gradient its memory: `flat` has padded_elements() elements. An undefined tensor takes
    /// the memory away. Throws Error unless the store has a gradient provider.
    void set_gradient(const Tensor& flat) const;
    /// value() and grad() with the zero rows that ParameterStore::add appended. Only zeros may be written to
    /// these rows. Updates and checkpoints skip the rows.
    const Tensor& padded_value() const { return entry().padded_value; }
    const Tensor& padded_grad() const { return entry().padded_grad; }
    std::int64_t padded_elements() const { return entry().padded_shape.elements(); }
    /// The first element's index in the flat blocks; in codes() of the store if the parameter is quantized.
    std::int64_t offset() const { return entry().offset; }

  private:
    friend class ParameterStore;
    struct Entry {
        std::string name;
        Shape shape;
        Init init;
        Shape padded_shape;
        std::int64_t offset = 0;
        std::size_t first_stage = 0, last_stage = 0;
        WeightFormat format = WeightFormat::same;
        DType dtype = DType::f32;
        Tensor value, grad, padded_value, padded_grad, codes;
        bool allocated = false, frozen = false, has_value_block = false;
        GradientProvider provide_gradient = {};
        GradientWrite next_write = GradientWrite::accumulate;
    };
    explicit Parameter(std::shared_ptr<Entry> entry) : entry_(std::move(entry)) {}
    Entry& entry() const {
        check(defined(), "parameter: undefined; a layer computes only with parameters of a ParameterStore");
        return *entry_;
    }
    std::shared_ptr<Entry> entry_;
};

}  // namespace gradtile
