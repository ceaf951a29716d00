#include <gradtile/tools/formats/safetensors.h>

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include <gradtile/core/check.h>
#include <gradtile/core/io/little_endian.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/formats/internal/tensor_writer.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {
namespace {

using nlohmann::json;

constexpr std::uint64_t length_bytes = 8;

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

/// Reads the members of one tensor's entry. `where` is the name of file and tensor in errors.
class EntryReader {
  public:
    EntryReader(const json& value, std::string where) : value_(value), where_(std::move(where)) {
        check(value.is_object(), where_, ": is not an object");
        for (const auto& [name, member] : value.items())
            check(name == "dtype" || name == "shape" || name == "data_offsets", where_, ": unknown member '",
                  printable(name), "'");
    }

    SafetensorsEntry read(const std::string& name) const {
        SafetensorsEntry entry{.name = name, .dtype = dtype()};
        const auto known = std::ranges::find(file_dtypes, entry.dtype, &FileDType::name);
        check(known != file_dtypes.end(), where_, ": dtype '", printable(entry.dtype), "' is not known");
        // Empty axes count as 1 here: strides are products of axes, too.
        std::uint64_t bytes = known->bytes;
        bool is_empty = false;
        for (const json& axis : array("shape")) {
            const std::uint64_t length = number(axis, "shape");
            check(length <= max_length, where_, ": shape: ", length, " is too large");
            entry.shape.push_back(static_cast<std::int64_t>(length));
            check(!__builtin_mul_overflow(bytes, std::max<std::uint64_t>(length, 1), &bytes), where_,
                  ": its size overflows 64 bits");
            is_empty = is_empty || length == 0;
        }
        if (is_empty) bytes = 0;
        const json& offsets = array("data_offsets");
        check(offsets.size() == 2, where_, ": data_offsets has ", offsets.size(), " numbers; expected 2");
        entry.begin = number(offsets[0], "data_offsets");
        entry.end = number(offsets[1], "data_offsets");
        check(entry.begin <= entry.end && entry.end - entry.begin == bytes, where_, ": data_offsets ",
              entry.begin, " to ", entry.end, "; dtype and shape have ", bytes, " bytes");
        return entry;
    }

  private:
    static constexpr std::uint64_t max_length = std::uint64_t{1} << 62;

    const json& member(const char* name) const {
        check(value_.contains(name), where_, ": has no ", name);
        return value_[name];
    }
    const json& array(const char* name) const {
        check(member(name).is_array(), where_, ": ", name, ": expected an array");
        return member(name);
    }
    std::string dtype() const {
        check(member("dtype").is_string(), where_, ": dtype: expected a string");
        return member("dtype").get<std::string>();
    }
    std::uint64_t number(const json& value, const char* name) const {
        check(value.is_number_unsigned(), where_, ": ", name, ": ", json_excerpt(value),
              "; expected integers, 0 or more");
        return value.get<std::uint64_t>();
    }

    const json& value_;
    std::string where_;
};

/// Throws Error unless the ranges of all tensors together cover [0, data_bytes) without holes and overlaps.
void check_ranges(const std::vector<SafetensorsEntry>& entries, std::uint64_t data_bytes,
                  std::string_view source) {
    std::uint64_t end = 0;
    for (const SafetensorsEntry& entry : entries) {
        check(entry.begin == end, source, ": tensor '", printable(entry.name), "' begins at byte ",
              entry.begin, ", the one before it ends at ", end, "; expected no ",
              entry.begin < end ? "overlap" : "hole");
        end = entry.end;
    }
    check(end == data_bytes, source, ": its tensors have ", end, " bytes, but the file holds ", data_bytes);
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                           std::string_view source) {
    check(text.starts_with('{'), source, ": the header does not begin with '{'");
    json value;
    try {
        value = parse_json(text);
    } catch (const Error& error) {
        throw Error(concat(source, ": header: ", error.what()));
    }
    SafetensorsHeader header;
    for (const auto& [name, member] : value.items()) {
        if (name == "__metadata__") {
            check(member.is_object(), source, ": __metadata__ is not an object");
            for (const auto& [key, word] : member.items()) {
                check(word.is_string(), source, ": __metadata__: '", printable(key), "' is not a string");
                header.metadata[key] = word.get<std::string>();
            }
            continue;
        }
        header.entries.push_back(
            EntryReader(member, concat(source, ": tensor '", printable(name), "'")).read(name));
    }
    std::ranges::sort(header.entries, {},
                      [](const SafetensorsEntry& entry) { return std::pair(entry.begin, entry.end); });
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
    for (std::size_t i = 0; i < header_.entries.size(); ++i) index_[header_.entries[i].name] = i;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &header_.entries[found->second];
}

Tensor SafetensorsFile::read(const SafetensorsEntry& entry) const {
    const auto known = std::ranges::find(tensor_dtypes, entry.dtype, &TensorDType::name);
    check(known != tensor_dtypes.end(), path(), ": tensor '", printable(entry.name), "' is ", entry.dtype,
          "; expected F64, F32, BF16, F16 or I32");
    check(entry.shape.size() <= Shape::max_rank, path(), ": tensor '", printable(entry.name), "' has ",
          entry.shape.size(), " axes; expected at most ", Shape::max_rank);
    const Tensor x = empty_on_host(Shape(std::span<const std::int64_t>(entry.shape)), known->dtype);
    if (x.elements() > 0)
        file_.read(static_cast<std::int64_t>(data_offset_ + entry.begin), {x.raw_data(), x.bytes()});
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
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    if (!metadata.empty()) header["__metadata__"] = metadata;
    std::uint64_t offset = 0;
    for (const auto& [name, x] : tensors) {
        const auto dtype = std::ranges::find(tensor_dtypes, x.dtype(), &TensorDType::dtype);
        header[name] = {{"dtype", dtype->name},
                        {"shape", std::vector<std::int64_t>(x.shape().begin(), x.shape().end())},
                        {"data_offsets", {offset, offset + x.bytes()}}};
        offset += x.bytes();
    }
    std::string text = header.dump();
    // Pads the header, so that the elements are aligned.
    text.resize((text.size() + length_bytes - 1) / length_bytes * length_bytes, ' ');
    check(text.size() <= max_safetensors_header, file.path(), ": the header would have ", text.size(),
          " bytes");
    file.write_integer(static_cast<std::uint64_t>(text.size()));
    file.write(std::as_bytes(std::span(text)));
    for (const auto& [name, x] : tensors) file.write(x);
}

}  // namespace gradtile
