#pragma once
/// Matrix algorithms as a checkpoint's JSON holds them (docs/checkpoint_format.md).
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <gradtile/core/gemm/gemm_algorithms.h>

namespace gradtile {

nlohmann::json algorithms_to_json(const std::vector<GemmAlgorithm>& algorithms);

/// Throws Error, naming the entry, on what algorithms_to_json() does not write. Whether the numbers mean
/// anything is only known where they are used: restore_gemm_algorithms().
std::vector<GemmAlgorithm> algorithms_from_json(const nlohmann::json& value);

}  // namespace gradtile
