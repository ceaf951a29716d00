#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/formats/internal/weight_files.h>
#include <gradtile/tools/formats/internal/weight_rounding.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {
namespace {

constexpr std::uint64_t max_index_bytes = std::uint64_t{1} << 26;
constexpr std::size_t max_weight_files = 10'000;
constexpr std::size_t max_file_name_bytes = 255;
constexpr std::uint64_t block_bytes = std::uint64_t{1} << 24;

/// Returns whether the tensor is a buffer that transformers saves in addition to the weights: a causal mask
/// or rotary frequencies.
bool is_buffer(std::string_view name) {
    return std::ranges::any_of(std::array{".attn.bias", ".attn.masked_bias", ".attention.bias",
                                          ".attention.masked_bias", ".rotary_emb.inv_freq"},
                               [&](const char* suffix) { return name.ends_with(suffix); });
}

bool is_head(std::string_view name) {
    return name == "lm_head.weight" || name == "embed_out.weight";
}

/// Removes a prefix from the mappings' names if no name in the files has this prefix.
void use_names_of(const WeightFiles& files, std::vector<WeightMapping>& mappings) {
    const std::vector<std::string_view> names = files.names();
    for (const std::string_view prefix : {"transformer.", "model.", "gpt_neox."}) {
        if (std::ranges::any_of(names, [&](std::string_view name) { return name.starts_with(prefix); }))
            continue;
        for (WeightMapping& mapping : mappings)
            for (WeightPart& part : mapping.parts)
                if (part.name.starts_with(prefix)) part.name.erase(0, prefix.size());
    }
}

/// A head that is tied to the token embedding may also be stored with the embedding's values.
void check_every_tensor_is_used(const WeightFiles& files, const std::vector<WeightMapping>& mappings,
                                const std::string& source) {
    std::set<std::string_view> used;
    bool has_head = false;
    for (const WeightMapping& mapping : mappings) {
        has_head = has_head || mapping.parameter == "head.weight";
        for (const WeightPart& part : mapping.parts) used.insert(part.name);
    }
    for (const std::string_view name : files.names())
        if (!used.contains(name) && !is_buffer(name) && (has_head || !is_head(name)))
            throw Error(concat(source, ": tensor '", printable_name(name),
                               "' is not part of the model that config.json describes"));
}

std::int64_t rows_of(const SafetensorsEntry& entry) {
    return entry.shape.empty() ? 0 : entry.shape[0];
}

/// Returns the end of the block of rows that begins at `begin`: at most 16 MiB, but at least one row.
std::int64_t block_end(const SafetensorsEntry& entry, std::int64_t begin) {
    const std::uint64_t row_bytes =
        std::max<std::uint64_t>(1, (entry.end - entry.begin) / static_cast<std::uint64_t>(rows_of(entry)));
    const auto rows = static_cast<std::int64_t>(std::max<std::uint64_t>(1, block_bytes / row_bytes));
    return std::min(begin + rows, rows_of(entry));
}

/// Reads a parameter in the dtype of the model. Needs little memory beside the parameter's own, except for
/// orders that mix a tensor's rows.
Tensor read_parameter(const WeightFiles& files, const WeightMapping& mapping, DType dtype) {
    const Context ctx(Device::cpu(), 1);
    const Tensor full = empty_on_host(mapping.shape, dtype);
    std::int64_t row = 0;
    for (const WeightPart& part : mapping.parts) {
        const std::int64_t rows = part.rows();
        const Tensor own = full.slice(0, row, rows);
        files.for_row_blocks(part, [&](std::int64_t begin, const Tensor& x) {
            const Tensor block = own.slice(0, begin, x.size(0));
            copy(ctx, block, x);
            check_rounded(x, block, files.error_place(part.name));
        });
        row += rows;
    }
    return full;
}

}  // namespace

WeightFiles::WeightFiles(const std::string& path) {
    if (path.ends_with(".json")) {
        add_index(path);
    } else {
        files_.emplace_back(path);
    }
}

/// Reads the index twice: for the files' names, and for the tensors, once the files are open. A table with
/// all tensors would take several times the index's memory.
void WeightFiles::add_index(const std::string& path) {
    const std::string text = read_text_file(path, max_index_bytes);
    const auto visit_tensors = [&](const auto& visit) {
        JsonElements members(JsonElements::Of::object, [&](const std::string& name, const JsonValue& file) {
            if (!file.is_string())
                throw Error(concat("weight_map: ", printable_name(name), ": ", json_excerpt(file),
                                   "; expected a file's name"));
            visit(name, file.text());
        });
        return parse_json(text, path, {{{"weight_map"}, members}});
    };
    std::set<std::string> distinct;
    const JsonValue index = visit_tensors([&](const std::string&, const std::string& file) {
        if (distinct.contains(file)) return;
        check(!file.empty() && file.size() <= max_file_name_bytes &&
                  std::filesystem::path(file).filename() == file && file != "." && file != "..",
              "weight_map: '", printable_name(file), "' is not a file in the same folder");
        check(distinct.size() < max_weight_files, "weight_map: more than ", max_weight_files, " files");
        distinct.insert(file);
    });
    check(index.contains("weight_map") && index["weight_map"].is_object(), path,
          ": expected an object with a weight_map");
    const std::vector<std::string> file_names(distinct.begin(), distinct.end());
    for (const std::string& file : file_names)
        files_.emplace_back((std::filesystem::path(path).parent_path() / file).string());
    std::vector<std::vector<bool>> is_listed;
    for (const SafetensorsFile& file : files_) is_listed.emplace_back(file.header().entries.size());
    visit_tensors([&](const std::string& name, const std::string& file_name) {
        const auto number =
            static_cast<std::size_t>(std::ranges::lower_bound(file_names, file_name) - file_names.begin());
        const SafetensorsFile& file = files_[number];
        const SafetensorsEntry* const entry = file.find(name);
        if (!entry) throw Error(concat("tensor '", printable_name(name), "' is not in ", file.path()));
        auto listed = is_listed[number][static_cast<std::size_t>(entry - file.header().entries.data())];
        if (listed) throw Error(concat("weight_map: '", printable_name(name), "' occurs twice"));
        listed = true;
    });
    for (std::size_t number = 0; number < files_.size(); ++number)
        for (std::size_t i = 0; i < is_listed[number].size(); ++i)
            if (!is_listed[number][i])
                throw Error(concat(files_[number].path(), ": tensor '",
                                   printable_name(files_[number].header().entries[i].name),
                                   "' is not the one that ", path, " names"));
}

WeightFiles::Place WeightFiles::place_of(std::string_view name) const {
    for (const SafetensorsFile& file : files_)
        if (const SafetensorsEntry* const entry = file.find(name)) return {&file, entry};
    return {};
}

std::vector<std::string_view> WeightFiles::names() const {
    std::vector<std::string_view> names;
    for (const SafetensorsFile& file : files_)
        for (const SafetensorsEntry& entry : file.header().entries) names.push_back(entry.name);
    return names;
}

void WeightFiles::check_tensor(const std::string& name, const Shape& shape) const {
    const auto [file, entry] = place_of(name);
    check(entry != nullptr, files_.empty() ? std::string("no file") : files_.front().path(),
          ": has no tensor '", name, "'; expected ", shape);
    check(std::ranges::equal(entry->shape, shape), file->path(), ": tensor '", name, "' has shape ",
          JsonValue(entry->shape), "; expected ", shape);
    const std::string_view dtype = entry->dtype;
    const bool is_float = dtype == "F64" || dtype == "F32" || dtype == "F16" || dtype == "BF16";
    check(is_float, file->path(), ": tensor '", name, "' is ", dtype, "; expected F32, BF16, F16 or F64");
}

DType WeightFiles::dtype(const std::string& name) const {
    const std::string_view dtype = place_of(name).entry->dtype;
    return dtype == "BF16"  ? DType::bf16
           : dtype == "F16" ? DType::f16
           : dtype == "F64" ? DType::f64
                            : DType::f32;
}

std::string WeightFiles::error_place(const std::string& name) const {
    return concat(place_of(name).file->path(), ": tensor '", printable_name(name), "'");
}

bool WeightFiles::are_equal(const std::string& a, const std::string& b) const {
    const auto [file, entry] = place_of(a);
    const auto [other_file, other_entry] = place_of(b);
    if (entry->dtype != other_entry->dtype || entry->shape != other_entry->shape) return false;
    for (std::int64_t begin = 0, end = 0; begin < rows_of(*entry); begin = end) {
        end = block_end(*entry, begin);
        const Tensor x = file->read_rows(*entry, begin, end),
                     y = other_file->read_rows(*other_entry, begin, end);
        if (std::memcmp(x.raw_data(), y.raw_data(), x.bytes()) != 0) return false;
    }
    return true;
}

void WeightFiles::for_row_blocks(const WeightPart& part,
                                 const std::function<void(std::int64_t, const Tensor&)>& use) const {
    const Context ctx(Device::cpu(), 1);
    const auto [file, entry] = place_of(part.name);
    const std::int64_t rows = rows_of(*entry);
    for (std::int64_t begin = 0, end = 0; begin < rows; begin = end) {
        end = part.order == RowOrder::plain ? block_end(*entry, begin) : rows;
        const Tensor x = file->read_rows(*entry, begin, end);
        check(all_finite(x.dtype(), x.raw_data(), static_cast<std::size_t>(x.elements())),
              error_place(part.name), " holds an infinity or a NaN");
        use(begin, rows_of_file(ctx, part, x));
    }
}

LoadedWeights read_weights(const WeightFiles& files, std::vector<WeightMapping> mappings,
                           const std::string& source, const WeightOptions& options) {
    use_names_of(files, mappings);
    bool all_bf16 = true;
    for (const WeightMapping& mapping : mappings)
        for (const WeightPart& part : mapping.parts) {
            files.check_tensor(part.name, part.shape);
            all_bf16 = all_bf16 && files.dtype(part.name) == DType::bf16;
        }
    check_every_tensor_is_used(files, mappings, source);
    LoadedWeights weights{.dtype = options.dtype.value_or(all_bf16 ? TrainDType::bf16 : TrainDType::f32)};
    std::int64_t done = 0, all = 0;
    const DType dtype = storage_dtype(weights.dtype);
    for (const WeightMapping& mapping : mappings)
        all += mapping.shape.elements() * static_cast<std::int64_t>(size_of(dtype));
    for (const WeightMapping& mapping : mappings) {
        const Tensor x = read_parameter(files, mapping, dtype);
        weights.parameters[mapping.parameter] = x;
        done += static_cast<std::int64_t>(x.bytes());
        if (options.on_progress) options.on_progress(done, all);
    }
    return weights;
}

}  // namespace gradtile
