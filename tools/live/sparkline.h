#pragma once
/// A curve drawn with characters.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gradtile {

/// The characters for a picture in a terminal. Each takes one column.
enum class Glyphs { ascii, unicode };

/// Returns Glyphs::unicode when the first set variable among LC_ALL, LC_CTYPE and LANG names UTF-8.
Glyphs glyphs_of_locale();

/// Mean values over groups of consecutive steps. Memory is bounded: if there are too many groups,
/// neighbouring groups are merged in pairs.
class ThinnedCurve {
  public:
    /// Ignores a value that is not finite.
    void add(double value);
    /// Returns the means, the oldest first; the last mean may cover fewer values.
    std::vector<double> means() const;

    static constexpr std::size_t max_groups = 2048;

  private:
    struct Group {
        double sum = 0.0;
        std::int64_t count = 0;
    };
    std::vector<Group> groups_;
    std::int64_t group_size_ = 1;
};

/// The limits that a sparkline shows.
struct ValueRange {
    double min = 0.0, max = 0.0;
};

/// Returns at most `columns` values, each the mean over equally many `values` (up to one).
std::vector<double> resampled(std::span<const double> values, std::size_t columns);

/// Returns `rows` lines of values.size() characters, the highest first. A row has eight levels.
std::vector<std::string> sparkline(std::span<const double> values, const ValueRange& range, std::size_t rows,
                                   Glyphs glyphs);

/// Returns a bar of `columns` characters, filled up to the fraction `done` (0 to 1).
std::string progress_bar(double done, std::size_t columns, Glyphs glyphs);

}  // namespace gradtile
