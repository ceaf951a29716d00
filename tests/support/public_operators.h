#pragma once
/// The operators in the public headers, for tests that need a row for each.
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <string>

namespace gradtile::test {

/// A header's text without comments and without private class members.
inline std::string public_text(const std::filesystem::path& header) {
    std::ifstream file(header);
    std::string text, line;
    bool is_public = true;
    while (std::getline(file, line)) {
        if (line.find("private:") != std::string::npos || line.find("protected:") != std::string::npos)
            is_public = false;
        if (line.starts_with("};") || line.find("public:") != std::string::npos) is_public = true;
        line = line.substr(0, line.find("//"));
        for (std::size_t begin; (begin = line.find("/*")) != std::string::npos;) {
            const std::size_t end = line.find("*/", begin);
            line.erase(begin, end == std::string::npos ? end : end + 2 - begin);
        }
        if (is_public) text += line + '\n';
    }
    return text;
}

/// "header: function" for every public function that takes a context and a tensor.
inline std::set<std::string> public_operators() {
    const std::filesystem::path root = GRADTILE_SOURCE_DIR;
    const std::regex not_installed("/(internal|device)/|^attention/(cpu|cuda)/|^tools/bench/");
    const std::regex declaration(R"((\w+)\(const Context& \w+,([^;{]*))"),
        tensor("Tensor|PartialResult|Gradient|Residual|Documents|Angles|Normed|PackedTexts");
    std::set<std::string> found;
    for (const char* folder : {"core", "attention", "layers", "train", "tools"})
        for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
            const std::string header = std::filesystem::relative(entry.path(), root).string();
            if (!header.ends_with(".h") || std::regex_search(header, not_installed)) continue;
            const std::string text = public_text(entry.path());
            for (std::sregex_iterator match(text.begin(), text.end(), declaration), end; match != end;
                 ++match)
                if (std::regex_search((*match)[2].str(), tensor))
                    found.insert(header + ": " + (*match)[1].str());
        }
    return found;
}

}  // namespace gradtile::test
