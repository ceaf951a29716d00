#pragma once
/// What a benchmark prints: an aligned table whose rows come as they are measured, or one JSON object a row.
#include <limits>
#include <string>
#include <vector>

namespace gradtile::cli {

struct Column {
    enum class Kind { text, number, percent };
    const char* key;    ///< in JSON
    const char* title;  ///< in the table
    Kind kind = Kind::number;
    int width = 9;
};

/// A number there is nothing to say about.
inline constexpr double nothing = std::numeric_limits<double>::quiet_NaN();

/// Words for a text column, a number for the others; percentages are given as fractions.
struct Cell {
    Cell(double value) : number(value) {}
    Cell(std::string text) : words(std::move(text)) {}
    Cell(const char* text) : words(text) {}

    std::string words;
    double number = nothing;
};

class Table {
  public:
    Table(std::vector<Column> columns, bool json) : columns_(std::move(columns)), json_(json) {}

    /// One cell a column.
    void add(const std::vector<Cell>& row);

  private:
    void print_titles();
    std::vector<Column> columns_;
    bool json_;
    bool titles_printed_ = false;
};

}  // namespace gradtile::cli
