#pragma once
/// `gradtile gradcheck --dtype f32,bf16,f16`: compares the kernels that training runs with float64, within
/// bounds derived from their roundings (docs/numerics.md). Finite differences validate float64 only; this
/// comparison extends the validation to the other dtypes.
#include <functional>
#include <string>
#include <vector>

#include <gradtile/attention/accuracy.h>

namespace gradtile::cli {

/// One kernel under one option, with the comparison that came closest to its bound.
struct AccuracyLine {
    std::string op;  ///< "attention", "layer-norm", ..
    DType dtype = DType::f32;
    std::string kernel;  ///< "avx512-f32", "cuda, deterministic", ..
    std::string option;  ///< "causal", "300 x 96", ..
    attention::accuracy::Finding worst;
};
using AccuracyReport = std::function<void(const AccuracyLine&)>;

/// The operators that can be checked in f32, bf16 and f16.
struct AccuracyCheck {
    std::string name;
    std::function<void(const Context& ctx, DType dtype, const AccuracyReport& report)> check;
};
const std::vector<AccuracyCheck>& accuracy_checks();

/// Checks every `dtype` kernel set that the device can run, with every option.
void check_attention_accuracy(const Context& ctx, DType dtype, const AccuracyReport& report);
/// The checks for all layers except attention; a part of accuracy_checks().
std::vector<AccuracyCheck> layer_accuracy_checks();

/// The finding with the largest error relative to its bound; NaN counts as the largest.
attention::accuracy::Finding worst_of(const std::vector<attention::accuracy::Finding>& findings);

}  // namespace gradtile::cli
