#pragma once
/// What `gradtile gradcheck` can check: every operator and layer with a derivative written by hand, at a
/// small shape.
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

}  // namespace gradtile::cli
