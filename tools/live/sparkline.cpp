#include <gradtile/tools/live/sparkline.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>

namespace gradtile {
namespace {

constexpr int levels = 8;
constexpr std::array<std::string_view, levels + 1> unicode_levels = {" ", "▁", "▂", "▃", "▄",
                                                                     "▅", "▆", "▇", "█"};
constexpr std::array<std::string_view, levels + 1> ascii_levels = {" ", ".", ".", ":", "-",
                                                                   "=", "+", "*", "#"};

bool names_utf8(std::string_view locale) {
    std::string name;
    for (const char c : locale)
        if (c != '-') name += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    return name.find("utf8") != std::string::npos;
}

/// Returns how many levels are filled in a column of `rows` characters. The lowest value has one level, so
/// that it can be seen.
int height_of(double value, const ValueRange& range, std::size_t rows) {
    const double most = static_cast<double>(rows) * levels;
    const double width = range.max - range.min;
    const double part = width > 0.0 ? (value - range.min) / width : 0.5;
    return static_cast<int>(std::lround(1.0 + std::clamp(part, 0.0, 1.0) * (most - 1.0)));
}

}  // namespace

Glyphs glyphs_of_locale() {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"})
        if (const char* const locale = std::getenv(name); locale != nullptr && *locale != '\0')
            return names_utf8(locale) ? Glyphs::unicode : Glyphs::ascii;
    return Glyphs::ascii;
}

void ThinnedCurve::add(double value) {
    if (!std::isfinite(value)) return;
    if (groups_.empty() || groups_.back().count == group_size_) {
        if (groups_.size() == max_groups) {
            for (std::size_t i = 0; i < max_groups / 2; ++i)
                groups_[i] = {groups_[2 * i].sum + groups_[2 * i + 1].sum,
                              groups_[2 * i].count + groups_[2 * i + 1].count};
            groups_.resize(max_groups / 2);
            group_size_ *= 2;
        }
        groups_.emplace_back();
    }
    groups_.back().sum += value;
    ++groups_.back().count;
}

std::vector<double> ThinnedCurve::means() const {
    std::vector<double> means;
    for (const Group& group : groups_) means.push_back(group.sum / static_cast<double>(group.count));
    return means;
}

std::vector<double> resampled(std::span<const double> values, std::size_t columns) {
    if (values.size() <= columns) return {values.begin(), values.end()};
    std::vector<double> result;
    for (std::size_t i = 0; i < columns; ++i) {
        const std::size_t begin = i * values.size() / columns, end = (i + 1) * values.size() / columns;
        double sum = 0.0;
        for (std::size_t j = begin; j < end; ++j) sum += values[j];
        result.push_back(sum / static_cast<double>(end - begin));
    }
    return result;
}

std::vector<std::string> sparkline(std::span<const double> values, const ValueRange& range, std::size_t rows,
                                   Glyphs glyphs) {
    const auto& characters = glyphs == Glyphs::unicode ? unicode_levels : ascii_levels;
    std::vector<std::string> lines(rows);
    for (const double value : values) {
        int left = height_of(value, range, rows);
        for (std::size_t row = rows; row-- > 0; left -= levels)
            lines[row] += characters[static_cast<std::size_t>(std::clamp(left, 0, levels))];
    }
    return lines;
}

std::string progress_bar(double done, std::size_t columns, Glyphs glyphs) {
    const auto full = static_cast<std::size_t>(std::clamp(done, 0.0, 1.0) * static_cast<double>(columns));
    std::string bar;
    for (std::size_t i = 0; i < columns; ++i) {
        if (glyphs == Glyphs::unicode) {
            bar += i < full ? "█" : "░";
        } else {
            bar += i < full ? '#' : '.';
        }
    }
    return bar;
}

}  // namespace gradtile
