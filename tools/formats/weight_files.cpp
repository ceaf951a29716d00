#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include <nlohmann/json.hpp>

#include <gradtile/core/tensor_ops.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/core/text/message.h>
#include <gradtile/tools/formats/internal/weight_files.h>
#include <gradtile/train/checkpoint/tensor_bytes.h>

namespace gradtile {
namespace {

constexpr std::uint64_t max_index_bytes = std::uint64_t{1} << 26;

/// Returns whether the tensor is a buffer that transformers saves in addition to the weights: a causal mask
/// or rotary frequencies.
bool is_buffer(std::string_view name) {
    return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
           name.ends_with(".rotary_emb.inv_freq");
}

/// Removes a prefix from the mappings' names if no name in the files has this prefix.
void use_names_of(const WeightFiles& files, std::vector<WeightMapping>& mappings) {
    const std::vector<std::string> names = files.names();
    for (const std::string_view prefix : {"transformer.", "model."}) {
        if (std::ranges::any_of(names, [&](const std::string& name) { return name.starts_with(prefix); }))
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
    for (const std::string& name : files.names())
        check(used.contains(name) || is_buffer(name) || (!has_head && name == "lm_head.weight"), source,
              ": tensor '", printable_name(name), "' is not part of the model that config.json describes");
}

Tensor read_parameter(const WeightFiles& files, const WeightMapping& mapping, DType dtype) {
    const Context ctx(Device::cpu(), 1);
    const Tensor whole = empty_on_host(mapping.shape, dtype);
    std::int64_t row = 0;
    for (const WeightPart& part : mapping.parts) {
        Tensor x = files.read(part.name);
        if (part.transposed) x = x.transpose(0, 1);
        copy(ctx, whole.slice(0, row, x.size(0)), x);
        row += x.size(0);
    }
    return whole;
}

}  // namespace

WeightFiles::WeightFiles(const std::string& path) {
    if (path.ends_with(".json")) {
        add_index(path);
        return;
    }
    files_.emplace_back(path);
    for (const SafetensorsEntry& entry : files_.front().header().entries) place_of_[entry.name] = {0, &entry};
}

void WeightFiles::add_index(const std::string& path) {
    nlohmann::json index;
    try {
        index = parse_json(read_text_file(path, max_index_bytes));
    } catch (const Error& error) {
        const std::string reason = error.what();
        throw Error(reason.starts_with(path) ? reason : concat(path, ": ", reason));
    }
    check(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(), path,
          ": expected an object with a weight_map");
    std::map<std::string, std::size_t> numbers;
    for (const auto& [name, file] : index["weight_map"].items()) {
        check(file.is_string(), path, ": weight_map: '", printable_name(name), "' has no file's name");
        const auto file_name = file.get<std::string>();
        check(!file_name.empty() && std::filesystem::path(file_name).filename() == file_name &&
                  file_name != "." && file_name != "..",
              path, ": weight_map: '", printable_name(file_name), "' is not a file in the same folder");
        numbers.try_emplace(file_name, numbers.size());
    }
    // Other members keep pointers to entries of the files, so the vector of files must not grow later.
    std::vector<std::string> file_names(numbers.size());
    for (const auto& [file_name, number] : numbers) file_names[number] = file_name;
    files_.reserve(numbers.size());
    for (const std::string& file_name : file_names)
        files_.emplace_back((std::filesystem::path(path).parent_path() / file_name).string());
    for (const auto& [name, file] : index["weight_map"].items()) {
        const std::size_t number = numbers.at(file.get<std::string>());
        const SafetensorsEntry* const entry = files_[number].find(name);
        check(entry != nullptr, path, ": tensor '", printable_name(name), "' is not in ",
              files_[number].path());
        place_of_[name] = {number, entry};
    }
    for (const SafetensorsFile& file : files_)
        for (const SafetensorsEntry& entry : file.header().entries) {
            const auto found = place_of_.find(entry.name);
            check(found != place_of_.end() && found->second.entry == &entry, file.path(), ": tensor '",
                  printable_name(entry.name), "' is not the one that ", path, " names");
        }
}

std::vector<std::string> WeightFiles::names() const {
    std::vector<std::string> names;
    for (const auto& [name, place] : place_of_) names.push_back(name);
    return names;
}

void WeightFiles::check_tensor(const std::string& name, const Shape& shape) const {
    const auto found = place_of_.find(name);
    check(found != place_of_.end(), files_.empty() ? std::string("no file") : files_.front().path(),
          ": has no tensor '", name, "'; expected ", shape);
    const SafetensorsEntry& entry = *found->second.entry;
    const std::string& path = files_[found->second.file].path();
    check(std::ranges::equal(entry.shape, shape), path, ": tensor '", name, "' has shape ",
          nlohmann::json(entry.shape).dump(), "; expected ", shape);
    const bool is_float =
        entry.dtype == "F64" || entry.dtype == "F32" || entry.dtype == "F16" || entry.dtype == "BF16";
    check(is_float, path, ": tensor '", name, "' is ", entry.dtype, "; expected F32, BF16, F16 or F64");
}

DType WeightFiles::dtype(const std::string& name) const {
    const std::string& dtype = place_of_.at(name).entry->dtype;
    return dtype == "BF16"  ? DType::bf16
           : dtype == "F16" ? DType::f16
           : dtype == "F64" ? DType::f64
                            : DType::f32;
}

bool WeightFiles::are_equal(const std::string& a, const std::string& b) const {
    const SafetensorsEntry &one = *place_of_.at(a).entry, &other = *place_of_.at(b).entry;
    if (one.dtype != other.dtype || one.shape != other.shape) return false;
    const Tensor x = read(a), y = read(b);
    return std::memcmp(x.raw_data(), y.raw_data(), x.bytes()) == 0;
}

Tensor WeightFiles::read(const std::string& name) const {
    const Place& place = place_of_.at(name);
    const SafetensorsFile& file = files_[place.file];
    Tensor x = file.read(*place.entry);
    check(all_finite(x.dtype(), x.raw_data(), static_cast<std::size_t>(x.elements())), file.path(),
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
