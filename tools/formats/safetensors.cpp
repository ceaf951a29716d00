#include <gradtile/tools/formats/safetensors.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include <gradtile/core/check.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/core/text/json_writer.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/formats/internal/tensor_writer.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {
namespace {

constexpr std::uint64_t length_bytes = 8;
constexpr std::string_view offsets_name = "\"data_offsets\"";
/// The shortest entry: "":{"dtype":"U8","shape":[],"data_offsets":[0,0]}
constexpr std::size_t min_entry_bytes = 49;

struct FileDType {
    std::string_view name;
    std::uint64_t bytes;
};
constexpr std::array file_dtypes{
    FileDType{"BOOL", 1},    FileDType{"U8", 1},  FileDType{"I8", 1},  FileDType{"F8_E5M2", 1},
    FileDType{"F8_E4M3", 1}, FileDType{"I16", 2}, FileDType{"U16", 2}, FileDType{"F16", 2},
    FileDType{"BF16", 2},    FileDType{"I32", 4}, FileDType{"U32", 4}, FileDType{"F32", 4},
    FileDType{"C64", 8},     FileDType{"F64", 8}, FileDType{"I64", 8}, FileDType{"U64", 8}};

struct TensorDType {
    std::string_view name;
    DType dtype;
};
constexpr std::array tensor_dtypes{TensorDType{"F64", DType::f64}, TensorDType{"F32", DType::f32},
                                   TensorDType{"BF16", DType::bf16}, TensorDType{"F16", DType::f16},
                                   TensorDType{"I32", DType::i32}};

/// Reads the members of one tensor's entry. Errors name neither file nor tensor.
class EntryReader {
  public:
    explicit EntryReader(const JsonValue& value) : value_(value) {
        check(value.is_object(), "is not an object");
        for (const auto& [name, member] : value.items())
            check(name == "dtype" || name == "shape" || name == "data_offsets", "unknown member '",
                  printable(name), "'");
    }

    SafetensorsEntry read(std::string name) const {
        const FileDType& dtype = this->dtype();
        SafetensorsEntry entry{.name = std::move(name), .dtype = dtype.name};
        // Empty axes count as 1 here: strides are axis products, too.
        std::uint64_t bytes = dtype.bytes;
        bool is_empty = false;
        const JsonValue::Array& axes = array("shape");
        entry.shape.reserve(axes.size());
        for (const JsonValue& axis : axes) {
            const std::uint64_t length = number(axis, "shape");
            check(length <= max_length, "shape: ", length, " is too large");
            entry.shape.push_back(static_cast<std::int64_t>(length));
            check(!__builtin_mul_overflow(bytes, std::max<std::uint64_t>(length, 1), &bytes),
                  "its size overflows 64 bits");
            is_empty = is_empty || length == 0;
        }
        if (is_empty) bytes = 0;
        const JsonValue::Array& offsets = array("data_offsets");
        check(offsets.size() == 2, "data_offsets has ", offsets.size(), " numbers; expected 2");
        entry.begin = number(offsets[0], "data_offsets");
        entry.end = number(offsets[1], "data_offsets");
        check(entry.begin <= entry.end && entry.end - entry.begin == bytes, "data_offsets ", entry.begin,
              " to ", entry.end, "; dtype and shape have ", bytes, " bytes");
        return entry;
    }

  private:
    static constexpr std::uint64_t max_length = std::uint64_t{1} << 62;

    const JsonValue& member(const char* name) const {
        const JsonValue* const found = value_.find(name);
        check(found != nullptr, "has no ", name);
        return *found;
    }
    const JsonValue::Array& array(const char* name) const {
        check(member(name).is_array(), name, ": expected an array");
        return member(name).elements();
    }
    const FileDType& dtype() const {
        check(member("dtype").is_string(), "dtype: expected a string");
        const std::string& name = member("dtype").text();
        const auto known = std::ranges::find(file_dtypes, name, &FileDType::name);
        check(known != file_dtypes.end(), "dtype '", printable(name), "' is not known");
        return *known;
    }
    std::uint64_t number(const JsonValue& value, const char* name) const {
        if (!value.is_number_unsigned())
            throw Error(concat(name, ": ", json_excerpt(value), "; expected integers, 0 or more"));
        return value.get<std::uint64_t>();
    }

    const JsonValue& value_;
};

/// Returns the entry indices, ordered by name. Throws Error when a name occurs twice.
std::vector<std::uint32_t> order_of_names(const std::vector<SafetensorsEntry>& entries,
                                          std::string_view source) {
    const auto name_of = [&](std::uint32_t i) -> const std::string& { return entries[i].name; };
    std::vector<std::uint32_t> order(entries.size());
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::sort(order, std::less<>{}, name_of);
    const auto twice = std::ranges::adjacent_find(order, std::equal_to<>{}, name_of);
    if (twice != order.end())
        throw Error(concat(source, ": tensor '", printable(name_of(*twice)), "' occurs twice"));
    return order;
}

/// Throws Error unless the tensors' ranges together cover [0, data_bytes) without holes and overlaps.
void check_ranges(const std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes,
                  std::string_view source) {
    std::uint64_t end = 0;
    for (const SafetensorsEntry& entry : entries) {
        if (entry.begin != end)  // not check(), because check() would construct every tensor's name
            throw Error(concat(source, ": tensor '", printable(entry.name), "' begins at byte ", entry.begin,
                               ", the one before it ends at ", end, "; expected no ",
                               entry.begin < end ? "overlap" : "hole"));
        end = entry.end;
    }
    check(end == data_bytes, source, ": its tensors have ", end, " bytes, but the file holds ", data_bytes);
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           std::string_view source) {
    check(text.starts_with('{'), source, ": the header does not begin with '{'");
    std::size_t count = 0;  // an upper bound for the tensor count
    for (std::size_t position = text.find(offsets_name); position != std::string_view::npos;
         position = text.find(offsets_name, position + offsets_name.size()))
        ++count;
    SafetensorsHeader header;
    header.entries.reserve(std::min(count, text.size() / min_entry_bytes));
    JsonElements members(JsonElements::Of::object, [&](std::string name, JsonValue value) {
        if (name == "__metadata__") {
            check(header.metadata.is_null(), "__metadata__ occurs twice");
            check(value.is_object(), "__metadata__ is not an object");
            for (const auto& [key, word] : value.items())
                check(word.is_string(), "__metadata__: '", printable(key), "' is not a string");
            header.metadata = std::move(value);
            return;
        }
        try {
            header.entries.push_back(EntryReader(value).read(name));
        } catch (const Error& error) {
            throw Error(concat("tensor '", printable(name), "': ", error.what()));
        }
    });
    parse_json(text, source, {{{}, members}});
    std::ranges::sort(header.entries, {},
                      [](const SafetensorsEntry& entry) { return std::pair(entry.begin, entry.end); });
    header.by_name = order_of_names(header.entries, source);
    check_ranges(header.entries, data_bytes, source);
    return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
    const auto size = static_cast<std::uint64_t>(file_.size());
    check(size >= length_bytes, path, ": has ", size, " bytes; expected a safetensors file");
    std::array<std::byte, length_bytes> first{};
    file_.read(0, first);
    const auto length = get_little_endian<std::uint64_t>(first.data());
    check(length <= max_safetensors_header, path, ": a header of ", length, " bytes; expected at most ",
          max_safetensors_header, " (is this a safetensors file?)");
    check(length <= size - length_bytes, path, ": a header of ", length, " bytes in a file of ", size);
    std::string text(static_cast<std::size_t>(length), '\0');
    file_.read(length_bytes, std::as_writable_bytes(std::span(text)));
    data_offset_ = length_bytes + length;
    header_ = parse_safetensors_header(text, size - data_offset_, path);
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
    const auto found = std::ranges::lower_bound(
        header_.by_name, name, std::less<>{},
        [&](std::uint32_t i) -> const std::string& { return header_.entries[i].name; });
    if (found == header_.by_name.end() || header_.entries[*found].name != name) return nullptr;
    return &header_.entries[*found];
}

DType SafetensorsFile::dtype_of(const SafetensorsEntry& entry) const {
    const auto known = std::ranges::find(tensor_dtypes, entry.dtype, &TensorDType::name);
    check(known != tensor_dtypes.end(), path(), ": tensor '", printable(entry.name), "' is ", entry.dtype,
          "; expected F64, F32, BF16, F16 or I32");
    check(entry.shape.size() <= Shape::max_rank, path(), ": tensor '", printable(entry.name), "' has ",
          entry.shape.size(), " axes; expected at most ", Shape::max_rank);
    return known->dtype;
}

Tensor SafetensorsFile::read(const SafetensorsEntry& entry) const {
    const DType dtype = dtype_of(entry);
    const Tensor x = empty_on_host(Shape(std::span<const std::int64_t>(entry.shape)), dtype);
    if (x.elements() > 0)
        file_.read(static_cast<std::int64_t>(data_offset_ + entry.begin), {x.raw_data(), x.bytes()});
    return x;
}

Tensor SafetensorsFile::read_rows(const SafetensorsEntry& entry, std::int64_t begin, std::int64_t end) const {
    const DType dtype = dtype_of(entry);
    check(!entry.shape.empty() && 0 <= begin && begin <= end && end <= entry.shape[0], path(), ": tensor '",
          printable(entry.name), "' has no rows ", begin, " to ", end);
    Shape shape(std::span<const std::int64_t>(entry.shape));
    const std::int64_t row_elements = shape[0] == 0 ? 0 : shape.elements() / shape[0];
    shape[0] = end - begin;
    const Tensor x = empty_on_host(shape, dtype);
    const auto offset = static_cast<std::int64_t>(data_offset_ + entry.begin) +
                        begin * row_elements * static_cast<std::int64_t>(size_of(dtype));
    if (x.elements() > 0) file_.read(offset, {x.raw_data(), x.bytes()});
    return x;
}

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
    TensorWriter file(path);
    write_safetensors(file, tensors, metadata);
    file.commit();
}

void write_safetensors(TensorWriter& file, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
    // The safetensors library writes the members in this order, too.
    std::string text;
    JsonWriter header(text);
    header.begin_object();
    if (!metadata.empty()) {
        header.write_name("__metadata__");
        header.begin_object();
        for (const auto& [name, word] : metadata) header.write(name, word);
        header.end();
    }
    std::uint64_t offset = 0;
    for (const auto& [name, x] : tensors) {
        const auto dtype = std::ranges::find(tensor_dtypes, x.dtype(), &TensorDType::dtype);
        header.write_name(name);
        header.begin_object();
        header.write("dtype", dtype->name);
        header.write("shape", std::vector<std::int64_t>(x.shape().begin(), x.shape().end()));
        header.write("data_offsets", std::vector<std::uint64_t>{offset, offset + x.bytes()});
        header.end();
        offset += x.bytes();
    }
    header.end();
    header.finish();
    // Pads the header, so that the elements are aligned.
    text.resize((text.size() + length_bytes - 1) / length_bytes * length_bytes, ' ');
    check(text.size() <= max_safetensors_header, file.path(), ": the header would have ", text.size(),
          " bytes");
    file.write_integer(static_cast<std::uint64_t>(text.size()));
    file.write(std::as_bytes(std::span(text)));
    for (const auto& [name, x] : tensors) file.write(x);
}

}  // namespace gradtile
