#pragma once
/// JSON Lines: one JSON value per line.
#include <string>
#include <string_view>

#include <gradtile/train/data/readers/byte_source.h>
#include <gradtile/train/data/readers/row_source.h>

namespace gradtile {

/// The longest line in bytes.
constexpr std::size_t max_json_line_bytes = std::size_t{1} << 26;

/// Reads one line after another. Skips empty lines and a byte order mark.
class JsonLines final : public RowSource {
  public:
    explicit JsonLines(TextReader text) : text_(std::move(text)) {}
    bool next(JsonValue& row) override;
    bool skip(std::int64_t rows) override;
    std::string where() const override;
    std::int64_t file_bytes() const override { return text_.file_bytes(); }
    std::optional<DataContent> content() const override { return text_.content(); }

  private:
    bool next_line(std::string_view& line);

    TextReader text_;
    std::int64_t line_ = 0;
};

}  // namespace gradtile
