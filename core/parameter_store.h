#pragma once
/// Parameters: one flat value block and one flat gradient block, with named views. Therefore the optimizer,
/// an all-reduce and a checkpoint each need only one pass over contiguous memory.
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include <gradtile/core/parameter.h>
#include <gradtile/core/random.h>
#include <gradtile/core/tensor.h>

namespace gradtile {

/// Each parameter's element offset in the flat blocks is a multiple of this number.
inline constexpr std::int64_t parameter_alignment = 64;

/// For operators that can only add to a gradient: returns the target's grad; if the target says overwrite,
/// fills grad with zeros first.
Tensor ready_to_add(const Context& ctx, const GradientTarget& target);

/// A range in the flat blocks, in elements.
struct FlatRange {
    std::int64_t begin = 0, length = 0;
    std::int64_t end() const { return begin + length; }
    bool operator==(const FlatRange&) const = default;
};

struct FlatOptions {
    bool masters = true;         ///< float32 masters for 16-bit values in the value block
    bool gradients = true;       ///< false: the parameters are frozen, and have no masters
    bool gradient_block = true;  ///< false: a gradient's memory comes from set_gradient_provider()
    bool value_block = true;     ///< false: a value's memory comes from Parameter::set_value()
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

    /// Parameters that are added from now on belong to the next stage of passes (StageHook): a forward pass
    /// reads stage 0 first, a backward pass last. Throws Error after allocate().
    void begin_stage();
    /// Declares that a forward pass reads this parameter of an earlier stage again in the present stage.
    void read_again(const Parameter& parameter) const;

    /// Declares that the `chosen` parameters of this store are kept in this format, in a separate
    /// code block. The store must then be allocated without gradients. Throws Error after allocate(), and for
    /// WeightFormat::same.
    void quantize(std::span<const Parameter> chosen, WeightFormat format);

    /// Allocates the flat blocks and all parameter views (each starts at a multiple of 64 elements; the
    /// padding stays zero). Values have `dtype`, gradients accumulator_of(dtype); gradients are zeroed.
    /// 16-bit values get a float32 master copy if options.masters is set. Frozen parameters get values only.
    void allocate(const Context& ctx, DType dtype, const FlatOptions& options = {});
    /// Draws every parameter from (seed, name). 16-bit values are rounded from their masters, which `keep`
    /// receives if the store has none. A store without a value block keeps nothing: `keep` receives all that
    /// is drawn, in accumulator_of(dtype), or in dtype() if the parameters are frozen. Quantized parameters
    /// are drawn in float32 on the host.
    void initialize(const Context& ctx, Seed seed, const KeepMasters& keep = {});

    bool allocated() const { return allocated_; }
    DType dtype() const { return dtype_; }
    std::span<const Parameter> parameters() const { return parameters_; }
    /// Returns the parameter with this name. Throws Error with the name when there is none.
    const Parameter& find(const std::string& name) const;
    /// How many elements the parameters have, quantized ones included, without padding.
    std::int64_t count() const;
    /// Elements per flat block, padding included.
    std::int64_t flat_elements() const { return flat_elements_; }
    /// Int32 words in codes().
    std::int64_t code_words() const { return code_words_; }

    /// [code_words()] int32: the quantized parameters; undefined if there are none, or without a value_block.
    const Tensor& codes() const { return codes_; }
    const Tensor& values() const { return values_; }  ///< [flat_elements]; undefined without a value_block
    /// [flat_elements], float32 or float64; undefined if frozen, or without FlatOptions::gradient_block.
    const Tensor& gradients() const { return gradients_; }
    /// The weights that the optimizer updates: float32 masters for 16-bit values, else the values themselves.
    const Tensor& master() const { return master_.defined() ? master_ : values_; }
    bool has_master() const { return master_.defined(); }
    /// The parameter's view of master(), in the parameter's shape.
    Tensor master_of(const Parameter& parameter) const;

    /// Call at the start of a step: the first contribution to each gradient then overwrites the last step's
    /// gradient. So no pass has to write zeros into the gradients, and none has to read these zeros.
    void reset_gradients() const;
    /// For a store without a gradient block, see GradientProvider.
    void set_gradient_provider(const GradientProvider& provider) const;
    /// Zeroes the gradients that received no contribution since reset_gradients().
    void zero_unwritten_gradients(const Context& ctx) const;

  private:
    std::vector<Parameter> parameters_;
    std::unordered_set<std::string> names_;  // names in parameters_
    std::int64_t flat_elements_ = 0, code_words_ = 0;
    std::size_t stage_ = 0;
    bool allocated_ = false;
    DType dtype_ = DType::f32;
    Tensor values_, gradients_, master_, codes_;
};

}  // namespace gradtile
