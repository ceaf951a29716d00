#include <gradtile/train/data/examples.h>

#include <algorithm>

#include <gradtile/core/check.h>

namespace gradtile {

std::int64_t Examples::targets() const {
    return std::ranges::count(is_target, true);
}

Examples Examples::slice(std::int64_t begin, std::int64_t end, std::string_view source) const {
    const auto first = std::ranges::lower_bound(begins, begin), last = std::ranges::lower_bound(begins, end);
    check(first != begins.end() && last != begins.end() && *first == begin && *last == end, source,
          ": tokens [", begin, ", ", end, ") were requested, which divide an example");
    Examples part{.begins = {first, last + 1},
                  .is_target = {is_target.begin() + begin, is_target.begin() + end}};
    for (std::int64_t& place : part.begins) place -= begin;
    return part;
}

std::vector<TokenWindow> windows_of(const Examples& examples, std::int64_t context, const Packing& packing) {
    std::vector<TokenWindow> windows;
    const auto has_target = [&](const TokenWindow& window) {
        const auto first = examples.is_target.begin() + window.begin + 1;
        return std::find(first, first + (window.end - window.begin), true) !=
               first + (window.end - window.begin);
    };
    const auto add = [&](const TokenWindow& window) {
        if (has_target(window)) windows.push_back(window);
    };
    TokenWindow open;  // the window that is being filled with examples
    std::int64_t documents = 0;
    const auto close = [&] {
        if (documents > 0) add(open);
        documents = 0;
    };
    for (std::int64_t i = 0; i < examples.count(); ++i) {
        const std::int64_t begin = examples.begins[static_cast<std::size_t>(i)];
        // An example's last token is a target only.
        const std::int64_t end = examples.begins[static_cast<std::size_t>(i) + 1] - 1;
        if (packing && end - begin <= context) {
            if (documents == packing.max_documents || (documents > 0 && end - open.begin > context)) close();
            if (documents++ == 0) open.begin = begin;
            open.end = end;
            continue;
        }
        close();
        for (std::int64_t part = begin; part < end; part += context)
            add({part, std::min(part + context, end)});
    }
    close();
    return windows;
}

}  // namespace gradtile
