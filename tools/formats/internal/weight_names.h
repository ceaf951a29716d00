#pragma once
/// How other projects store a model's parameters: the names, the tensor count and the order of rows.
#include <string>
#include <vector>

#include <gradtile/core/context.h>
#include <gradtile/core/tensor.h>
#include <gradtile/tools/formats/families/model_family.h>

namespace gradtile {

/// A tensor in another project's model that contains a whole parameter or a part of one.
struct WeightPart {
    std::string name;
    Shape shape;  ///< the shape in the file
    RowOrder order = RowOrder::plain;
    std::int64_t heads = 0;  ///< for orders that depend on heads: their number in this part

    /// How many of the parameter's rows are in this part.
    std::int64_t rows() const { return shape[order == RowOrder::transposed ? 1 : 0]; }
};

/// A parameter of this project's model, and the tensors whose rows, one tensor after the other, are the
/// parameter's rows.
struct WeightMapping {
    std::string parameter;
    Shape shape;
    std::vector<WeightPart> parts = {};
};

/// Returns the mappings for all parameters, in model order. Throws Error if `names` lacks a module of the
/// model.
std::vector<WeightMapping> weight_mappings(const TensorNames& names, const ModelConfig& config);

/// Returns a part's rows, which are in the file's order, in the parameter's order. `x` is on the CPU.
Tensor rows_of_file(const Context& ctx, const WeightPart& part, const Tensor& x);
/// The reverse of rows_of_file().
Tensor rows_for_file(const Context& ctx, const WeightPart& part, const Tensor& x);

}  // namespace gradtile
