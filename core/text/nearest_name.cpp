#include <gradtile/core/text/nearest_name.h>

#include <algorithm>
#include <vector>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

/// Optimal string alignment distance.
std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
    for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
        }
    }
    return d[a.size()][b.size()];
}

/// Shorter common prefixes are not significant.
constexpr std::size_t min_prefix = 3;

/// Returns whether the shorter name is a prefix of the other one.
bool one_is_prefix(std::string_view a, std::string_view b) {
    const std::size_t shorter = std::min(a.size(), b.size());
    return shorter >= min_prefix && a.substr(0, shorter) == b.substr(0, shorter);
}

}  // namespace

std::string nearest_name(std::string_view typed, std::span<const std::string> known) {
    // A longer name is no typing error, and comparing it would take too long.
    constexpr std::size_t max_length = 256;
    if (typed.size() > max_length) return {};
    const std::string* best = nullptr;
    std::size_t min_distance = 0;
    for (const std::string& name : known) {
        const bool alike = one_is_prefix(typed, name);
        const std::size_t distance = edit_distance(typed, name);
        if (!alike && distance > std::max<std::size_t>(1, name.size() / 3)) continue;
        const std::size_t apart = alike ? 0 : distance;
        if (best == nullptr || apart < min_distance) best = &name, min_distance = apart;
    }
    return best == nullptr ? std::string() : *best;
}

std::string did_you_mean(std::string_view typed, std::span<const std::string> known, std::string_view before,
                         std::string_view after) {
    const std::string name = nearest_name(typed, known);
    return name.empty() ? std::string() : concat("; did you mean ", before, name, after, "?");
}

}  // namespace gradtile
