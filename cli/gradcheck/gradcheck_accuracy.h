#pragma once
/// `gradtile gradcheck --dtype f32,bf16,f16`: the kernels that training runs, against float64 and within
/// bounds derived from their roundings (docs/numerics.md). Finite differences need float64; this carries
/// their verdict over to every other dtype.
#include <functional>
#include <string>
#include <vector>

#include <gradtile/attention/accuracy.h>

namespace gradtile::cli {

/// One kernel under one option: of all its comparisons the one that came closest to its bound.
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

/// Every set of kernels for a dtype that the device can run, option by option.
void check_attention_accuracy(const Context& ctx, DType dtype, const AccuracyReport& report);
/// The layers around attention: see accuracy_checks().
std::vector<AccuracyCheck> layer_accuracy_checks();

/// The finding with the largest error relative to its bound; an error that is not a number wins.
attention::accuracy::Finding worst_of(const std::vector<attention::accuracy::Finding>& findings);

}  // namespace gradtile::cli
