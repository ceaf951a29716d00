#include <gradtile/train/data/readers/parquet_rows.h>

#include <algorithm>
#include <set>

#include <gradtile/core/check.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/train/data/readers/parquet_column.h>

namespace gradtile {
namespace {

using parquet::ColumnReader;
using parquet::Leaf;

/// Returns the path's index of a list's element; its members follow. The list's repeated node is either the
/// element itself or, in the usual form, only a node around it (parquet-format, LogicalTypes.md, "Lists").
std::size_t element_index(const std::vector<Leaf>& leaves, const Leaf& leaf) {
    const std::size_t repeated = leaf.repeated_index;
    if (leaf.path.size() == repeated + 1) return repeated;
    std::set<std::string> children;
    for (const Leaf& other : leaves)
        if (other.column() == leaf.column() && other.path.size() > repeated + 1)
            children.insert(other.path[repeated + 1]);
    const std::string& name = leaf.path[repeated];
    const bool is_element = children.size() > 1 || name == "array" || name.ends_with("_tuple");
    return is_element ? repeated : repeated + 1;
}

/// Limits a row's memory: a dictionary may hold a long string that a list repeats.
class RowSize {
  public:
    void add(const ColumnReader& column, std::size_t bytes) {
        bytes_ += bytes;
        ++values_;
        check(values_ <= max_json_values && bytes_ <= max_json_string_bytes, column.where(), ": a row of ",
              values_, " values with ", bytes_, " bytes; expected at most ", max_json_values, " values with ",
              max_json_string_bytes, " bytes");
    }

  private:
    std::size_t values_ = 0, bytes_ = 0;
};

JsonValue value_of(const ColumnReader& column, const ColumnReader::Entry& entry, RowSize& size) {
    size.add(column, entry.text.size());
    if (entry.definition < column.leaf().max_definition) return {};
    return column.leaf().type == parquet::Type::boolean ? JsonValue(entry.boolean) : JsonValue(entry.text);
}

/// Returns the entry that begins the next row.
const ColumnReader::Entry& row_begin(ColumnReader& column) {
    const ColumnReader::Entry* const entry = column.peek();
    check(entry != nullptr, column.where(), ": damaged: has fewer rows than its row group");
    check(entry->repetition == 0, column.where(), ": damaged: a row begins inside a list");
    return *entry;
}

/// Returns a row's list of values; null or [] if there is no element.
JsonValue read_list(ColumnReader& column, RowSize& size) {
    const ColumnReader::Entry* entry = &row_begin(column);
    const int element = column.leaf().element_definition;
    if (entry->definition < element) {
        const bool is_empty = entry->definition == element - 1;
        column.advance();
        return is_empty ? JsonValue::array() : JsonValue();
    }
    JsonValue::Array list;
    do {
        check(entry->definition >= element, column.where(),
              ": damaged: a list inside which an element is missing");
        list.push_back(value_of(column, *entry, size));
        column.advance();
        entry = column.peek();
    } while (entry != nullptr && entry->repetition > 0);
    return list;
}

}  // namespace

/// A top-level column in a row group, with its leaves.
class ParquetRows::Column {
  public:
    Column(const DataFile& file, const parquet::Metadata& metadata, std::size_t group, std::string name,
           const std::vector<std::string>& members)
        : name_(std::move(name)) {
        const std::string where = concat(file.path(), ": row group ", group, ", column '");
        for (const Leaf& leaf : metadata.leaves) {
            if (leaf.column() != name_) continue;
            std::string member;
            if (leaf.path.size() > 1) {
                check(leaf.max_repetition > 0, where, leaf.name(),
                      "': a struct outside of a list; expected strings");
                const std::size_t member_index = element_index(metadata.leaves, leaf) + 1;
                if (leaf.path.size() > member_index) {
                    member = leaf.path[member_index];
                    if (std::ranges::find(members, member) == members.end()) continue;
                    check(leaf.path.size() == member_index + 1, where, leaf.name(),
                          "': a struct or list inside a struct; expected strings");
                }
            }
            check(std::ranges::find(members_, member) == members_.end(), where, leaf.name(),
                  "': there are several columns of this name; expected one");
            leaves_.emplace_back(file, leaf, metadata.row_groups[group], group);
            members_.push_back(std::move(member));
        }
        check(!leaves_.empty(), where, name_,
              "': expected strings, a list of strings, or a list of structs with strings");
    }

    const std::string& name() const { return name_; }

    JsonValue next() {
        RowSize size;
        ColumnReader& first = leaves_.front();
        if (members_.front().empty() && first.leaf().max_repetition > 0) return read_list(first, size);
        if (members_.front().empty()) {
            JsonValue value = value_of(first, row_begin(first), size);
            first.advance();
            return value;
        }
        return next_structs(size);
    }

    void check_end() {
        for (ColumnReader& leaf : leaves_)
            check(leaf.peek() == nullptr, leaf.where(), ": damaged: has more rows than its row group");
    }

  private:
    /// Returns a list of objects. A member that is null is left out.
    JsonValue next_structs(RowSize& size) {
        std::vector<JsonValue> objects;
        bool is_null = false;
        for (std::size_t i = 0; i < leaves_.size(); ++i) {
            const JsonValue list = read_list(leaves_[i], size);
            if (i == 0) {
                is_null = list.is_null();
                objects.resize(list.size(), JsonValue::object());
            }
            check(list.size() == objects.size() && list.is_null() == is_null, leaves_[i].where(),
                  ": damaged: a list of ", list.size(), " elements; another member has ", objects.size());
            for (std::size_t k = 0; k < objects.size(); ++k)
                if (!list[k].is_null()) objects[k].set(members_[i], list[k]);
        }
        return is_null ? JsonValue() : JsonValue(objects);
    }

    std::string name_;
    std::vector<ColumnReader> leaves_;
    std::vector<std::string>
        members_;  // by leaf: its name in a struct; empty for a string or a list of strings
};

ParquetRows::ParquetRows(const std::string& path) : file_(path), metadata_(parquet::read_metadata(file_)) {}
ParquetRows::~ParquetRows() = default;

void ParquetRows::select(std::vector<std::string> columns, std::vector<std::string> members) {
    selected_ = std::move(columns);
    members_ = std::move(members);
}

bool ParquetRows::next_group() {
    for (const std::unique_ptr<Column>& column : open_) column->check_end();
    open_.clear();
    if (next_group_ == metadata_.row_groups.size()) return false;
    for (const std::string& name : selected_)
        open_.push_back(std::make_unique<Column>(file_, metadata_, next_group_, name, members_));
    group_rows_ = metadata_.row_groups[next_group_++].rows;
    row_ = 0;
    return true;
}

bool ParquetRows::next(JsonValue& row) {
    while (row_ == group_rows_)
        if (!next_group()) return false;
    ++row_;
    row = JsonValue::object();
    for (const std::unique_ptr<Column>& column : open_) row.set(column->name(), column->next());
    return true;
}

bool ParquetRows::skip(std::int64_t rows) {
    const std::vector<parquet::RowGroup>& groups = metadata_.row_groups;
    for (JsonValue row; rows > 0; --rows) {
        while (row_ == group_rows_ && next_group_ < groups.size() && groups[next_group_].rows <= rows) {
            for (const std::unique_ptr<Column>& column : open_) column->check_end();
            open_.clear();
            row_ = group_rows_ = groups[next_group_++].rows;
            rows -= row_;
        }
        if (rows == 0) return true;
        if (!next(row)) return false;
    }
    return true;
}

std::string ParquetRows::where() const {
    return concat(file_.path(), ": row group ", next_group_ == 0 ? 0 : next_group_ - 1, ", row ", row_);
}

std::int64_t ParquetRows::file_bytes() const {
    const std::size_t groups = metadata_.row_groups.size();
    return groups == 0
               ? file_.size()
               : file_.size() / std::ssize(metadata_.row_groups) * static_cast<std::int64_t>(next_group_);
}

}  // namespace gradtile
