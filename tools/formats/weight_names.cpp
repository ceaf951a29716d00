#include <gradtile/tools/formats/internal/weight_names.h>

#include <algorithm>
#include <span>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/layers/transformer/transformer.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {
namespace {

const ModuleNames& module_named(std::span<const ModuleNames> modules, std::string_view own) {
    const auto found = std::ranges::find(modules, own, &ModuleNames::own);
    check(found != modules.end(), "weight_mappings: the layout has no '", own, "'");
    return *found;
}

/// Returns how many rows each part has. Only attention's packed matrix has parts of different sizes.
std::vector<std::int64_t> rows_of_parts(const ModelConfig& config, std::int64_t rows, std::size_t parts) {
    if (parts != 3) return std::vector(parts, rows / static_cast<std::int64_t>(parts));
    const std::int64_t query_rows = config.heads * config.head_dim();
    const std::int64_t key_rows = config.key_value_heads() * config.head_dim();
    return {query_rows, key_rows, key_rows};
}

WeightMapping mapping_of(const TensorNames& names, const ModelConfig& config, const std::string& parameter,
                         const Shape& shape) {
    const std::size_t dot = parameter.rfind('.');
    const std::string suffix = parameter.substr(dot);  // ".weight" or ".bias"
    std::string module = parameter.substr(0, dot), prefix;
    const bool in_block = module.starts_with("h.");
    if (in_block) {
        const std::size_t end = module.find('.', 2) + 1;
        prefix = concat(names.block, module.substr(2, end - 2));
        module = module.substr(end);
    }
    const ModuleNames& theirs = module_named(in_block ? names.blocks : names.others, module);
    WeightMapping mapping{.parameter = parameter, .shape = shape};
    const auto rows = rows_of_parts(config, shape[0], theirs.theirs.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
        WeightPart part{
            .name = concat(prefix, theirs.theirs[i], suffix), .shape = shape, .order = theirs.order};
        part.shape[0] = rows[i];
        if (part.order == RowOrder::transposed) {
            if (shape.rank() == 2) {
                std::swap(part.shape[0], part.shape[1]);
            } else {
                part.order = RowOrder::plain;
            }
        }
        // The third part is the value matrix. Values are not rotated.
        if (part.order == RowOrder::pairs && i == 2) part.order = RowOrder::plain;
        part.heads = part.order == RowOrder::by_head ? config.heads : rows[i] / config.head_dim();
        mapping.parts.push_back(std::move(part));
    }
    return mapping;
}

/// The file's view of a part's rows, [outer, a, b, ..]; the parameter has the axes a and b swapped.
struct RowAxes {
    std::int64_t outer, a, b;
};

RowAxes axes_in_file(const WeightPart& part) {
    if (part.order == RowOrder::by_head) return {1, part.heads, 3};
    return {part.heads, part.rows() / part.heads / 2, 2};
}

/// Returns a copy of x [outer, a, b, ..] as [outer, b, a, ..].
Tensor swapped(const Context& ctx, const Tensor& x, const RowAxes& axes) {
    const auto [outer, a, b] = axes;
    const std::int64_t rest = x.elements() / (outer * a * b);
    const Tensor y = empty_on_host(x.shape(), x.dtype());
    copy(ctx, y.reshape({outer, b, a, rest}), x.reshape({outer, a, b, rest}).transpose(1, 2));
    return y;
}

}  // namespace

std::vector<WeightMapping> weight_mappings(const TensorNames& names, const ModelConfig& config) {
    ParameterStore parameters;
    const Transformer model(config, parameters);
    std::vector<WeightMapping> mappings;
    for (const Parameter& parameter : parameters.parameters())
        mappings.push_back(mapping_of(names, config, parameter.name(), parameter.shape()));
    return mappings;
}

Tensor rows_of_file(const Context& ctx, const WeightPart& part, const Tensor& x) {
    if (part.order == RowOrder::plain) return x;
    if (part.order == RowOrder::transposed) return x.transpose(0, 1);
    return swapped(ctx, x, axes_in_file(part));
}

Tensor rows_for_file(const Context& ctx, const WeightPart& part, const Tensor& x) {
    if (part.order == RowOrder::plain) return x;
    if (part.order == RowOrder::transposed) return x.transpose(0, 1);
    const auto [outer, a, b] = axes_in_file(part);
    return swapped(ctx, x, {outer, b, a});
}

}  // namespace gradtile
