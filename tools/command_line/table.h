#pragma once
/// A benchmark's output: an aligned table whose rows are printed as they are measured, or one JSON object per
/// row.
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace gradtile::cli {

struct Column {
    enum class Kind { text, number, percent };
    const char* key;    ///< name in JSON
    const char* title;  ///< heading in the table
    Kind kind = Kind::number;
    int width = 9;
};

/// Marks a number that does not apply: "-" in the table, null in JSON.
inline constexpr double no_value = std::numeric_limits<double>::quiet_NaN();

/// Words for a text column, a number for the others; percentages are given as fractions.
struct Cell {
    template <class Number>
    requires std::is_arithmetic_v<Number> Cell(Number value) : number(static_cast<double>(value)) {}
    Cell(std::string text) : text(std::move(text)) {}
    Cell(std::string_view text) : text(text) {}
    Cell(const char* text) : text(text) {}

    std::string text;
    double number = no_value;
};

class Table {
  public:
    /// The title is a line above the table, which JSON does not have.
    Table(std::vector<Column> columns, bool json, std::string title = {})
        : columns_(std::move(columns)), json_(json), title_(std::move(title)) {}

    /// Prints a row with one cell per column.
    void add(const std::vector<Cell>& row);

  private:
    void print_header();
    std::vector<Column> columns_;
    bool json_;
    std::string title_;
    bool header_printed_ = false;
};

}  // namespace gradtile::cli
