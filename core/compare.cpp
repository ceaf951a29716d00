#include <gradtile/core/compare.h>

#include <cmath>
#include <limits>
#include <ostream>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

Shape index_of(const Shape& shape, std::int64_t element) {
    Shape index = shape;
    for (int axis = shape.rank() - 1; axis >= 0; --axis) {
        index[axis] = element % shape[axis];
        element /= shape[axis];
    }
    return index;
}

double distance(double value, double reference) {
    if (value == reference || (std::isnan(value) && std::isnan(reference))) return 0.0;
    const double error = std::abs(value - reference);
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

}  // namespace

Comparison compare(const Context& ctx, const Tensor& x, const Tensor& reference) {
    check(x.shape() == reference.shape(), "compare: ", x, " with ", reference, "; shapes must be equal");
    const auto values = to_host(ctx, x), references = to_host(ctx, reference);
    Comparison result;
    result.elements = std::ssize(values);
    double squared_error = 0.0, squared_reference = 0.0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const double value = values[i], expected = references[i];
        if (std::isfinite(expected)) {
            result.largest = std::max(result.largest, std::abs(expected));
            squared_reference += expected * expected;
        }
        const double error = distance(value, expected);
        if (error == 0.0) continue;
        ++result.different;
        squared_error += error * error;
        const auto note = [&](Comparison::Place& place, double size) {
            if (!(size <= place.error))
                place = {size, index_of(x.shape(), static_cast<std::int64_t>(i)), value, expected};
        };
        note(result.absolute, error);
        const double relative = error / std::abs(expected);
        note(result.relative, std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative);
    }
    if (squared_error > 0.0) result.norm_error = std::sqrt(squared_error / squared_reference);
    return result;
}

Comparison compare(const Tensor& x, const Tensor& reference) {
    check(x.device().is_cpu() && reference.device().is_cpu(), "compare: ", x, " with ", reference,
          "; without a context, both must be on the CPU");
    return compare(Context(Device::cpu(), 1), x, reference);
}

std::ostream& operator<<(std::ostream& out, const Comparison& comparison) {
    const auto show = [&](const Comparison::Place& place) {
        out << place.error;
        if (place.error > 0.0)
            out << " at " << place.index << " (" << place.value << " for " << place.reference << ')';
    };
    out << comparison.elements << " elements, " << comparison.different << " differ: absolute ";
    show(comparison.absolute);
    out << ", relative ";
    show(comparison.relative);
    return out << ", in norm " << comparison.norm_error << "; largest " << comparison.largest << '\n';
}

}  // namespace gradtile
