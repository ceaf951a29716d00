#include <gradtile/train/data/stream_files.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>

#include <gradtile/core/check.h>
#include <gradtile/core/io/data_file.h>
#include <gradtile/core/philox.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/core/text/with_source.h>
#include <gradtile/train/data/permutation.h>
#include <gradtile/train/data/readers/data_content.h>
#include <gradtile/train/data/readers/data_files.h>

namespace gradtile {
namespace {

/// A checkpoint records five JSON values for each of these files, and three for each validation file
/// (max_json_values).
constexpr std::size_t max_stream_files = 3'000;

/// Returns the folder below which the files have their names. One file has the name ".", whatever its path
/// is.
std::filesystem::path base_of(const std::string& data) {
    return is_pattern(data) ? folder_of_pattern(data) : std::filesystem::path(data);
}

std::uint64_t hash_of_name(const std::string& name) {
    return std::stoull(sha256(name).substr(0, 16), nullptr, 16);
}

}  // namespace

StreamFiles::StreamFiles(std::vector<std::string> paths, const JsonValue& expected, const std::string& data)
    : paths_(std::move(paths)) {
    check(paths_.size() <= max_stream_files, data, ": names ", paths_.size(), " files; expected at most ",
          max_stream_files,
          " for stream-buffer; join them into fewer JSON Lines files, or use --token-cache DIR instead of "
          "--stream-buffer");
    const std::filesystem::path base = base_of(data);
    for (const std::string& path : paths_) {
        const DataFile file(path);
        State state{.name = std::filesystem::path(path).lexically_relative(base).string(),
                    .bytes = file.size(),
                    .modified = file.modified()};
        check(is_utf8(state.name), path,
              ": its name is not UTF-8, the names of files in a checkpoint must be");
        state.name_hash = hash_of_name(state.name);
        states_.push_back(std::move(state));
    }
    if (!expected.is_null()) adopt(expected, data);
}

/// Compares the files with those of the resumed run, and takes over what it knew about them.
void StreamFiles::adopt(const JsonValue& expected, const std::string& data) {
    check(expected.is_array(), data, ": the checkpoint's record of its data is damaged");
    std::map<std::string, State> before;
    with_source(concat(data, ": the checkpoint's record of its data is damaged"), [&] {
        for (const JsonValue& file : expected.elements()) {
            const JsonValue* const hash = file.find("hash");
            before[file["name"].text()] = {.name = file["name"].text(),
                                           .bytes = file["bytes"].get<std::int64_t>(),
                                           .modified = file["modified"].get<std::int64_t>(),
                                           .hash = hash == nullptr ? std::string() : hash->text()};
        }
    });
    for (std::size_t i = 0; i < paths_.size(); ++i) {
        const auto found = before.find(states_[i].name);
        check(found != before.end(), paths_[i],
              ": was not there when the run was made; expected the same files");
        State was = std::move(found->second);
        before.erase(found);
        was.name_hash = states_[i].name_hash;
        require_same(paths_[i], was);
        states_[i] = std::move(was);
    }
    check(before.empty(), data, ": has no file ", before.empty() ? "" : before.begin()->first,
          ", which the run was made with");
}

/// Throws Error unless the file is still what `state` says. Updates its modification time.
void StreamFiles::require_same(const std::string& path, State& state) {
    const DataFile file(path);
    check(file.size() == state.bytes, path, ": is not the data that the run was made with: bytes ",
          file.size(), ", not ", state.bytes);
    if (file.modified() == state.modified) return;
    check(!state.hash.empty(), path,
          ": was modified since the run was made, which had not read it to its end, so that no hash tells "
          "whether it is the same (cp -p and rsync -t keep the time)");
    const std::string hash = full_content_of(file).hash;
    check(hash == state.hash, path, ": is not the data that the run was made with: hash ", hash, ", not ",
          state.hash);
    state.modified = file.modified();
}

void StreamFiles::require_unchanged(std::int64_t file) {
    const std::lock_guard lock(mutex_);
    require_same(paths_[static_cast<std::size_t>(file)], states_[static_cast<std::size_t>(file)]);
}

void StreamFiles::record_hash(std::int64_t file, const std::function<DataContent()>& content) {
    const auto index = static_cast<std::size_t>(file);
    require_unchanged(file);
    if (!states_[index].hash.empty()) return;  // this thread alone writes hashes
    std::string hash = content().hash;
    const std::lock_guard lock(mutex_);
    states_[index].hash = std::move(hash);
}

std::vector<std::int64_t> StreamFiles::shuffled(std::uint64_t seed) const {
    const Permutation permutation(paths_.size(), seed);
    std::vector<std::int64_t> order(paths_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(permutation(i));
    return order;
}

std::vector<std::int64_t> StreamFiles::validation_order() const {
    std::vector<std::int64_t> order(paths_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(
        order, {}, [&](std::int64_t file) { return states_[static_cast<std::size_t>(file)].name_hash; });
    return order;
}

bool StreamFiles::is_validation(const DocumentPlace& place) const {
    const std::uint64_t name = states_[static_cast<std::size_t>(place.file)].name_hash;
    return mix_seed(name, static_cast<std::uint64_t>(place.row)) % 100 == 0;
}

JsonValue StreamFiles::to_json(const std::vector<bool>& has_hash) const {
    const std::lock_guard lock(mutex_);
    JsonValue list = JsonValue::array();
    for (std::size_t i = 0; i < states_.size(); ++i) {
        const State& state = states_[i];
        JsonValue file =
            JsonValue::object({{"name", state.name}, {"bytes", state.bytes}, {"modified", state.modified}});
        if (has_hash[i] && !state.hash.empty()) file.set("hash", state.hash);
        list.push_back(std::move(file));
    }
    return list;
}

JsonValue StreamFiles::names_and_sizes() const {
    JsonValue list = JsonValue::array();
    for (const State& state : states_)
        list.push_back(JsonValue::object({{"name", state.name}, {"bytes", state.bytes}}));
    return list;
}

}  // namespace gradtile
