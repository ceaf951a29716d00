#include <gradtile/train/data/readers/parquet_metadata.h>

#include <algorithm>

#include <gradtile/core/check.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/train/data/readers/thrift.h>

namespace gradtile::parquet {
namespace {

using Field = ThriftReader::Type;

constexpr std::string_view magic = "PAR1", encrypted_magic = "PARE";
constexpr std::int64_t footer_bytes = 8;  // the description's length, and the magic
/// The longest description that is read into memory.
constexpr std::int64_t max_description_bytes = std::int64_t{1} << 28;

template <class Enum>
Enum enum_of(std::int32_t code, const char* what, const std::string& where) {
    const auto value = static_cast<Enum>(code);
    for (const auto& [known, name] : EnumNames<Enum>::names)
        if (known == value) return value;
    throw Error(concat(where, ": ", what, " ", code, " is unknown"));
}

/// A node of the schema, which is a tree in depth-first order.
struct SchemaElement {
    std::optional<std::int32_t> type{};
    std::int32_t repetition = 0, children = 0;
    std::string name{};
};

SchemaElement read_schema_element(ThriftReader& reader) {
    SchemaElement element;
    reader.read_struct([&](std::int64_t id, Field type) {
        switch (id) {
            case 1:
                element.type = reader.integer32(type);
                return true;
            case 3:
                element.repetition = reader.integer32(type);
                return true;
            case 4:
                element.name = reader.binary(type);
                return true;
            case 5:
                element.children = reader.integer32(type);
                return true;
            default:
                return false;
        }
    });
    return element;
}

/// Collects the leaves below the schema's root.
class SchemaTree {
  public:
    SchemaTree(const std::vector<SchemaElement>& elements, const std::string& source)
        : elements_(elements), source_(source) {}

    void read(Metadata& to) {
        check(!elements_.empty(), source_, ": damaged: it has no schema");
        const std::int32_t columns = elements_[next_++].children;
        for (std::int32_t i = 0; i < columns; ++i) {
            check(next_ < elements_.size(), source_, ": damaged: its schema ends too early");
            to.columns.push_back(elements_[next_].name);
            read_node({}, to.leaves);
        }
        check(next_ == elements_.size(), source_, ": damaged: its schema has ", elements_.size(),
              " nodes; expected ", next_);
    }

  private:
    void read_node(Leaf leaf, std::vector<Leaf>& leaves) {
        constexpr std::size_t max_depth = 32;
        check(next_ < elements_.size(), source_, ": damaged: its schema ends too early");
        const SchemaElement& element = elements_[next_++];
        leaf.path.push_back(element.name);
        check(leaf.path.size() <= max_depth, source_, ": its schema is nested more than ", max_depth,
              " levels deep");
        check(element.repetition >= 0 && element.repetition <= 2, source_, ": damaged: column '", leaf.name(),
              "' has repetition ", element.repetition);
        const auto repetition = static_cast<Repetition>(element.repetition);
        if (repetition != Repetition::required) ++leaf.max_definition;
        if (repetition == Repetition::repeated && ++leaf.max_repetition == 1) {
            leaf.element_definition = leaf.max_definition;
            leaf.repeated_index = leaf.path.size() - 1;
        }
        if (element.children == 0 && element.type) {
            leaf.type = enum_of<Type>(*element.type, "column type", source_);
            leaf.index = leaves.size();
            leaves.push_back(std::move(leaf));
            return;
        }
        for (std::int32_t i = 0; i < element.children; ++i) read_node(leaf, leaves);
    }

    const std::vector<SchemaElement>& elements_;
    const std::string& source_;
    std::size_t next_ = 0;
};

void read_column_metadata(ThriftReader& reader, Chunk& chunk, const std::string& where) {
    std::int64_t data = -1, dictionary = -1;
    reader.read_struct([&](std::int64_t id, Field type) {
        switch (id) {
            case 1:
                chunk.type = enum_of<Type>(reader.integer32(type), "column type", where);
                return true;
            case 4:
                chunk.codec = enum_of<Codec>(reader.integer32(type), "codec", where);
                return true;
            case 5:
                chunk.values = reader.integer(type);
                return true;
            case 7:
                chunk.bytes = reader.integer(type);
                return true;
            case 9:
                data = reader.integer(type);
                return true;
            case 11:
                dictionary = reader.integer(type);
                return true;
            default:
                return false;
        }
    });
    // Some writers store 0 as the position of a dictionary that does not exist.
    chunk.begin = dictionary > 0 && dictionary < data ? dictionary : data;
}

Chunk read_chunk(ThriftReader& reader, const std::string& where) {
    Chunk chunk;
    reader.read_struct([&](std::int64_t id, Field type) {
        switch (id) {
            case 1:
                chunk.is_in_another_file = !reader.binary(type).empty();
                return true;
            case 3:
                reader.require(type, Field::structure);
                read_column_metadata(reader, chunk, where);
                return true;
            case 8:
            case 9:
                chunk.is_encrypted = true;
                return false;
            default:
                return false;
        }
    });
    return chunk;
}

RowGroup read_row_group(ThriftReader& reader, const std::string& where) {
    RowGroup group;
    reader.read_struct([&](std::int64_t id, Field type) {
        if (id == 1) {
            reader.read_list(type, Field::structure, [&] {
                group.chunks.push_back(read_chunk(reader, concat(where, ", column ", group.chunks.size())));
            });
            return true;
        }
        if (id == 3) group.rows = reader.integer(type);
        return id == 3;
    });
    return group;
}

void check_row_group(RowGroup& group, const std::vector<Leaf>& leaves, std::int64_t end,
                     const std::string& where) {
    check(group.rows >= 0, where, ": damaged: ", group.rows, " rows");
    check(group.chunks.size() == leaves.size(), where, ": damaged: ", group.chunks.size(),
          " columns; its schema has ", leaves.size());
    for (std::size_t i = 0; i < leaves.size(); ++i) {
        Chunk& chunk = group.chunks[i];
        // Nothing is read of a chunk without values, whose place writers leave at 0.
        if (chunk.values == 0) chunk.begin = chunk.bytes = 0;
        if (chunk.is_encrypted || chunk.is_in_another_file) continue;  // refused when the column is read
        const std::int64_t first = std::ssize(magic);
        check(chunk.type == leaves[i].type, where, ", column '", leaves[i].name(), "': damaged: its type is ",
              name_of(chunk.type), "; its schema says ", name_of(leaves[i].type));
        check(chunk.values == 0 || (chunk.values > 0 && chunk.bytes >= 0 && chunk.begin >= first &&
                                    chunk.begin <= end && chunk.bytes <= end - chunk.begin),
              where, ", column '", leaves[i].name(), "': damaged: ", chunk.values, " values in bytes ",
              chunk.begin, " to ", chunk.begin, " + ", chunk.bytes, "; expected bytes ", first, " to ", end);
    }
}

std::vector<std::byte> read_description(const DataFile& file) {
    const std::string& path = file.path();
    const std::int64_t smallest = std::ssize(magic) + footer_bytes;
    check(file.size() >= smallest, path, ": truncated: ", file.size(), " bytes; a Parquet file has at least ",
          smallest);
    std::array<std::byte, footer_bytes> footer{};
    file.read(file.size() - footer_bytes, footer);
    const std::string_view mark(reinterpret_cast<const char*>(footer.data()) + 4, 4);
    check(mark != encrypted_magic, path, ": is an encrypted Parquet file; expected one without encryption");
    check(mark == magic, path, ": does not end as a Parquet file does (it is truncated)");
    const std::int64_t bytes = get_little_endian<std::uint32_t>(footer.data());
    check(bytes <= file.size() - smallest && bytes <= max_description_bytes, path,
          ": damaged: a description of ", bytes, " bytes; expected at most ",
          std::min(file.size() - smallest, max_description_bytes));
    std::vector<std::byte> description(static_cast<std::size_t>(bytes));
    file.read(file.size() - footer_bytes - bytes, description);
    return description;
}

}  // namespace

std::string Leaf::name() const {
    std::string name;
    for (const std::string& part : path) name += (name.empty() ? "" : ".") + part;
    return name;
}

bool is_parquet(const DataFile& file) {
    std::array<std::byte, magic.size()> first{};
    if (file.size() < std::ssize(first)) return false;
    file.read(0, first);
    const std::string_view mark(reinterpret_cast<const char*>(first.data()), first.size());
    return mark == magic || mark == encrypted_magic;
}

Metadata read_metadata(const DataFile& file) {
    const std::string& path = file.path();
    const std::vector<std::byte> description = read_description(file);
    const std::int64_t end = file.size() - footer_bytes - std::ssize(description);
    ThriftReader reader(description, path);
    Metadata metadata;
    reader.read_struct([&](std::int64_t id, Field type) {
        if (id == 2) {
            std::vector<SchemaElement> elements;
            reader.read_list(type, Field::structure,
                             [&] { elements.push_back(read_schema_element(reader)); });
            metadata.leaves.clear();
            metadata.columns.clear();
            SchemaTree(elements, path).read(metadata);
            return true;
        }
        if (id != 4) return false;
        reader.read_list(type, Field::structure, [&] {
            const std::string where = concat(path, ": row group ", metadata.row_groups.size());
            metadata.row_groups.push_back(read_row_group(reader, where));
        });
        return true;
    });
    for (std::size_t i = 0; i < metadata.row_groups.size(); ++i)
        check_row_group(metadata.row_groups[i], metadata.leaves, end, concat(path, ": row group ", i));
    return metadata;
}

namespace {

/// Reads the header of a data page (of either version) or of a dictionary page.
void read_data_header(ThriftReader& reader, PageHeader& header, const std::string& where) {
    const bool is_v2 = header.type == PageType::data_v2;
    const auto encoding = [&](Field type) {
        return enum_of<Encoding>(reader.integer32(type), "encoding", where);
    };
    reader.read_struct([&](std::int64_t id, Field type) {
        if (id == 1) {
            header.values = reader.integer32(type);
        } else if (id == (is_v2 ? 4 : 2)) {
            header.encoding = encoding(type);
        } else if (header.type == PageType::data && id == 3) {
            header.definition_encoding = encoding(type);
        } else if (header.type == PageType::data && id == 4) {
            header.repetition_encoding = encoding(type);
        } else if (is_v2 && id == 5) {
            header.definition_bytes = reader.integer32(type);
        } else if (is_v2 && id == 6) {
            header.repetition_bytes = reader.integer32(type);
        } else if (is_v2 && id == 7) {
            header.is_compressed = reader.boolean(type);
        } else {
            return false;
        }
        return true;
    });
}

PageHeader read_whole_header(ThriftReader& reader, const std::string& where) {
    PageHeader header;
    bool has_values = false;
    reader.read_struct([&](std::int64_t id, Field type) {
        switch (id) {
            case 1: {
                const std::int32_t code = reader.integer32(type);
                check(code >= 0 && code <= 3, where, ": page type ", code, " is unknown");
                header.type = static_cast<PageType>(code);
                return true;
            }
            case 2:
                header.uncompressed = reader.integer32(type);
                return true;
            case 3:
                header.compressed = reader.integer32(type);
                return true;
            case 4:
                header.crc = static_cast<std::uint32_t>(reader.integer32(type));
                return true;
            case 5:
            case 7:
            case 8: {
                const PageType expected = id == 5   ? PageType::data
                                          : id == 7 ? PageType::dictionary
                                                    : PageType::data_v2;
                if (header.type != expected) return false;
                reader.require(type, Field::structure);
                read_data_header(reader, header, where);
                has_values = true;
                return true;
            }
            default:
                return false;
        }
    });
    check(has_values || header.type == PageType::index, where, ": damaged: a page has no header");
    header.header_bytes = static_cast<std::int64_t>(reader.position());
    return header;
}

}  // namespace

std::optional<PageHeader> read_page_header(std::span<const std::byte> bytes, const std::string& where) {
    ThriftReader reader(bytes, where);
    try {
        return read_whole_header(reader, where);
    } catch (const ThriftEnd&) {
        return std::nullopt;
    }
}

}  // namespace gradtile::parquet
