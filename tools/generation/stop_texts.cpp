#include <gradtile/tools/generation/stop_texts.h>

#include <algorithm>
#include <utility>

namespace gradtile {

StopTexts::StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {
    std::erase(texts_, std::string());
}

std::string StopTexts::next(std::string_view piece) {
    if (found_) return {};
    held_ += piece;
    std::size_t stop = std::string::npos;
    for (const std::string& text : texts_) stop = std::min(stop, held_.find(text));
    if (stop != std::string::npos) {
        found_ = true;
        std::string before = held_.substr(0, stop);
        held_.clear();
        return before;
    }
    // The text may end with a stop text's beginning. The longest such end is kept back until more text
    // arrives.
    std::size_t kept = 0;
    for (const std::string& text : texts_)
        for (std::size_t length = std::min(text.size() - 1, held_.size()); length > kept; --length)
            if (held_.ends_with(std::string_view(text).substr(0, length))) kept = length;
    std::string certain = held_.substr(0, held_.size() - kept);
    held_.erase(0, certain.size());
    return certain;
}

std::string StopTexts::finish() {
    return std::exchange(held_, {});
}

}  // namespace gradtile
