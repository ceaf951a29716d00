#include <gradtile/tools/command_line/table.h>

#include <cmath>
#include <cstdio>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/tools/command_line/standard_streams.h>

namespace gradtile::cli {
namespace {

bool is_whole(double value) {
    return value == std::floor(value) && std::abs(value) < 1e15;
}

/// Four significant digits; larger numbers keep all digits before the point.
std::string readable(double value) {
    const double size = std::abs(value);
    const int decimals = is_whole(value) || size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : 3;
    char text[40];
    std::snprintf(text, sizeof text, "%.*f", decimals, value);
    return text;
}

std::string text_of(const Cell& cell, Column::Kind kind) {
    if (kind == Column::Kind::text) return cell.text;
    if (!std::isfinite(cell.number)) return "-";
    if (kind == Column::Kind::percent) return concat(std::llround(100.0 * cell.number), '%');
    return readable(cell.number);
}

/// Columns are separated by two spaces; text is left-aligned, numbers are right-aligned.
void print_aligned(const Column& column, const std::string& text) {
    std::printf(column.kind == Column::Kind::text ? "%-*s  " : "%*s  ", column.width, text.c_str());
}

std::string json_of(const Cell& cell, Column::Kind kind) {
    if (kind == Column::Kind::text) return JsonValue(cell.text).dump();
    if (!std::isfinite(cell.number)) return "null";
    char text[40];
    std::snprintf(text, sizeof text, is_whole(cell.number) ? "%.0f" : "%.9g", cell.number);
    return text;
}

}  // namespace

void Table::print_header() {
    if (!title_.empty()) std::printf("%s\n", title_.c_str());
    for (const Column& column : columns_) print_aligned(column, column.title);
    std::printf("\n");
    header_printed_ = true;
}

void Table::add(const std::vector<Cell>& row) {
    check(row.size() == columns_.size(), "table: ", row.size(), " cells for ", columns_.size(), " columns");
    if (json_) {
        for (std::size_t i = 0; i < row.size(); ++i)
            std::printf("%s%s:%s", i == 0 ? "{" : ",", JsonValue(columns_[i].key).dump().c_str(),
                        json_of(row[i], columns_[i].kind).c_str());
        std::printf("}\n");
    } else {
        if (!header_printed_) print_header();
        for (std::size_t i = 0; i < row.size(); ++i)
            print_aligned(columns_[i], text_of(row[i], columns_[i].kind));
        std::printf("\n");
    }
    check_output();
}

}  // namespace gradtile::cli
