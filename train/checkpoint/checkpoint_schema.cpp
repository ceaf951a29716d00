#include <algorithm>
#include <bit>

#include <gradtile/train/checkpoint/checkpoint_schema.h>

namespace gradtile::checkpoint_schema {

// Elements are written in the machine's byte order, which must be the file's.
static_assert(std::endian::native == std::endian::little, "checkpoints need a little-endian machine");

bool is_tensor_name(std::string_view name) {
    constexpr std::size_t kLongest = 1024;
    if (name.empty() || name.size() > kLongest) return false;
    while (true) {
        const std::size_t slash = name.find('/');
        const std::string_view part = name.substr(0, slash);
        if (part.empty() || part == "." || part == "..") return false;
        for (const char c : part) {
            if (c <= ' ' || c > '~') return false;
        }
        if (slash == std::string_view::npos) return true;
        name.remove_prefix(slash + 1);
    }
}

std::string_view group_of(std::string_view name) {
    return name.substr(0, name.find('/'));
}

bool is_stored_tensor_name(std::string_view name) {
    const std::string_view group = group_of(name);
    return group.size() < name.size() && is_tensor_name(name) &&
           std::find(tensor_groups.begin(), tensor_groups.end(), group) != tensor_groups.end();
}

}  // namespace gradtile::checkpoint_schema
