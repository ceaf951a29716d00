#pragma once
/// The `gradtile gradcheck` checks: every operator and layer with a hand-written derivative, at a small
/// shape.
#include <functional>
#include <string>
#include <vector>

#include <gradtile/core/gradcheck.h>

namespace gradtile::cli {

struct CheckedOperator {
    std::string name;
    std::function<GradientReport(const Context&)> check;
};

const std::vector<CheckedOperator>& checked_operators();

/// `count` tokens below `vocabulary` that repeat in a fixed pattern.
std::vector<std::int32_t> token_pattern(std::int64_t count, std::int32_t vocabulary, std::int32_t step);

}  // namespace gradtile::cli
