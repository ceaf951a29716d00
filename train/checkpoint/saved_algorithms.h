#pragma once
/// Matrix algorithms as JSON in a checkpoint (docs/checkpoint_format.md).
#include <vector>

#include <gradtile/core/gemm/gemm_algorithms.h>
#include <gradtile/core/text/json_value.h>

namespace gradtile {

JsonValue algorithms_to_json(const std::vector<GemmAlgorithm>& algorithms);

/// Throws Error, naming the entry, when the value is not what algorithms_to_json() writes.
/// restore_gemm_algorithms() checks whether the numbers are valid algorithms.
std::vector<GemmAlgorithm> algorithms_from_json(const JsonValue& value);

}  // namespace gradtile
