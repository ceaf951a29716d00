#pragma once
/// Rows of a data file, one after another.
#include <cstdint>
#include <optional>
#include <string>

#include <gradtile/core/text/json_value.h>
#include <gradtile/train/data/readers/data_content.h>

namespace gradtile {

/// Holds a small part of the file in memory, whatever its size.
class RowSource {
  public:
    virtual ~RowSource() = default;
    /// Sets `row` to the next row; returns false at the end. Throws Error that begins with the file's name
    /// and the row's place.
    virtual bool next(JsonValue& row) = 0;
    /// Passes over the next `rows` rows without reading what they hold; returns false when there are fewer.
    virtual bool skip(std::int64_t rows) = 0;
    /// Returns the place of the last row, for error messages: "FILE: line 7".
    virtual std::string where() const = 0;
    /// How many bytes of the file have been read so far.
    virtual std::int64_t file_bytes() const = 0;
    /// The file's content, if it was hashed while all of it was read (see open_text()).
    virtual std::optional<DataContent> content() const { return {}; }
};

}  // namespace gradtile
