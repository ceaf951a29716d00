#pragma once
/// Rows of a Parquet file: columns of strings, lists of strings, and lists of structs of strings and
/// booleans.
#include <memory>
#include <string>
#include <vector>

#include <gradtile/train/data/readers/parquet_metadata.h>
#include <gradtile/train/data/readers/row_source.h>

namespace gradtile {

class ParquetRows final : public RowSource {
  public:
    /// Opens the file and reads its description.
    explicit ParquetRows(const std::string& path);
    ~ParquetRows() override;

    /// The names of the file's columns.
    const std::vector<std::string>& columns() const { return metadata_.columns; }
    /// Selects the columns that rows have, and the members that are read from the structs in lists; other
    /// columns and members are not read. Call once, before next().
    void select(std::vector<std::string> columns, std::vector<std::string> members);

    /// Throws Error that names the row group and the column when a selected column is damaged, or has
    /// something that is not supported: other types, lists inside lists, structs inside structs, other codecs
    /// or encodings, encryption.
    bool next(JsonValue& row) override;
    /// Reads nothing of the row groups that are passed over as a whole.
    bool skip(std::int64_t rows) override;
    std::string where() const override;
    std::int64_t file_bytes() const override;

  private:
    class Column;
    bool next_group();

    DataFile file_;
    parquet::Metadata metadata_;
    std::vector<std::string> selected_, members_;
    std::vector<std::unique_ptr<Column>> open_;  // the columns in the row group
    std::size_t next_group_ = 0;                 // the row group after the current one
    std::int64_t row_ = 0, group_rows_ = 0;      // rows read in the row group, and all its rows
};

}  // namespace gradtile
