#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/json_reader.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/formats/internal/weight_files.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {
namespace {

constexpr std::uint64_t max_index_bytes = std::uint64_t{1} << 26;
constexpr std::size_t max_weight_files = 10'000;
constexpr std::size_t max_file_name_bytes = 255;

/// Returns whether the tensor is a buffer that transformers saves in addition to the weights: a causal mask
/// or rotary frequencies.
bool is_buffer(std::string_view name) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
           name.ends_with(".rotary_emb.inv_freq");
}

/// Removes a prefix from the mappings' names if no name in the files has this prefix.
void use_names_of(const WeightFiles& files, std::vector<WeightMapping>& mappings) {
    const std::vector<std::string_view> names = files.names();
    for (const std::string_view prefix : {"transformer.", "model."}) {
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
        if (!used.contains(name) && !is_buffer(name) && (has_head || name != "lm_head.weight"))
            throw Error(concat(source, ": tensor '", printable_name(name),
                               "' is not part of the model that config.json describes"));
}

Tensor read_parameter(const WeightFiles& files, const WeightMapping& mapping, DType dtype) {
    const Context ctx(Device::cpu(), 1);
    const Tensor full = empty_on_host(mapping.shape, dtype);
    std::int64_t row = 0;
    for (const WeightPart& part : mapping.parts) {
        Tensor x = files.read(part.name);
        if (part.transposed) x = x.transpose(0, 1);
        copy(ctx, full.slice(0, row, x.size(0)), x);
        row += x.size(0);
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
                throw Error(concat("weight_map: '", printable_name(name), "' has no file's name"));
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

bool WeightFiles::are_equal(const std::string& a, const std::string& b) const {
    const SafetensorsEntry &one = *place_of(a).entry, &other = *place_of(b).entry;
    if (one.dtype != other.dtype || one.shape != other.shape) return false;
    const Tensor x = read(a), y = read(b);
    return std::memcmp(x.raw_data(), y.raw_data(), x.bytes()) == 0;
}

Tensor WeightFiles::read(const std::string& name) const {
    const auto [file, entry] = place_of(name);
    Tensor x = file->read(*entry);
    check(all_finite(x.dtype(), x.raw_data(), static_cast<std::size_t>(x.elements())), file->path(),
          ": tensor '", printable_name(name), "' holds an infinity or a NaN");
    return x;
}

LoadedWeights read_weights(const WeightFiles& files, std::vector<WeightMapping> mappings,
                           const std::string& source) {
    use_names_of(files, mappings);
    bool all_bf16 = true;
    for (const WeightMapping& mapping : mappings)
        for (const WeightPart& part : mapping.parts) {
            files.check_tensor(part.name, part.shape);
            all_bf16 = all_bf16 && files.dtype(part.name) == DType::bf16;
        }
    check_every_tensor_is_used(files, mappings, source);
    LoadedWeights weights{.dtype = all_bf16 ? TrainDType::bf16 : TrainDType::f32};
    for (const WeightMapping& mapping : mappings)
        weights.parameters[mapping.parameter] = read_parameter(files, mapping, storage_dtype(weights.dtype));
    return weights;
}

}  // namespace gradtile
