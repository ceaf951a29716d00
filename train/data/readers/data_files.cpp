#include <gradtile/train/data/readers/data_files.h>

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <gradtile/core/check.h>

namespace gradtile {
namespace {

constexpr std::string_view wildcards = "*?[";

/// Returns the name as a pattern that matches only itself.
std::string escaped(const std::string& name) {
    std::string pattern;
    for (const char c : name) {
        if (wildcards.find(c) != std::string_view::npos || c == '\\') pattern += '\\';
        pattern += c;
    }
    return pattern;
}

std::vector<std::string> matching_files(const std::string& pattern) {
    const std::filesystem::path folder = folder_of_pattern(pattern),
                                rest = std::filesystem::path(pattern).lexically_relative(folder);
    glob_t matches{};
    const int outcome =
        ::glob((std::filesystem::path(escaped(folder.string())) / rest).c_str(), GLOB_ERR, nullptr, &matches);
    std::vector<std::string> paths;
    if (outcome == 0) paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    ::globfree(&matches);
    check(outcome == 0 || outcome == GLOB_NOMATCH, pattern, ": cannot be searched: ", std::strerror(errno));
    check(!paths.empty(), pattern, ": no file matches");
    return paths;  // sorted by glob()
}

std::vector<std::string> files_in_folder(const std::string& folder) {
    std::vector<std::string> paths;
    std::error_code error;
    auto entry = std::filesystem::recursive_directory_iterator(folder, error);
    for (const auto end = std::filesystem::recursive_directory_iterator(); !error && entry != end;
         entry.increment(error)) {
        const bool is_hidden = entry->path().filename().string().starts_with('.');
        if (is_hidden) entry.disable_recursion_pending();
        if (!is_hidden && !entry->is_directory(error)) paths.push_back(entry->path().string());
    }
    check(!error, folder, ": cannot be searched: ", error.message());
    check(!paths.empty(), folder, ": is a folder without files");
    std::ranges::sort(paths);
    return paths;
}

}  // namespace

bool is_pattern(std::string_view path) {
    std::error_code error;
    return path.find_first_of(wildcards) != std::string_view::npos &&
           !std::filesystem::exists(std::filesystem::path(path), error);
}

std::filesystem::path folder_of_pattern(const std::filesystem::path& pattern) {
    std::filesystem::path folder;
    std::error_code error;
    for (const std::filesystem::path& part : pattern.parent_path()) {
        if (!std::filesystem::is_directory(folder / part, error)) break;
        folder /= part;
    }
    return folder;
}

std::vector<std::string> data_files(const std::string& path) {
    std::error_code error;
    std::vector<std::string> paths{path};
    if (std::filesystem::is_directory(path, error)) {
        paths = files_in_folder(path);
    } else if (is_pattern(path)) {
        paths = matching_files(path);
    }
    return paths;
}

std::string_view uncompressed_name(std::string_view path) {
    for (const std::string_view ending : {".gz", ".zst"})
        if (path.ends_with(ending)) path.remove_suffix(ending.size());
    return path;
}

bool is_json_lines_name(std::string_view path) {
    const std::string_view name = uncompressed_name(path);
    return name.ends_with(".jsonl") || name.ends_with(".ndjson");
}

}  // namespace gradtile
