#include <gradtile/tools/bench/named_masks.h>

#include <algorithm>
#include <string>
#include <vector>

#include <gradtile/attention/row_ranges.h>
#include <gradtile/tools/command_line/usage_error.h>

namespace gradtile::cli {
namespace {

constexpr NamedMask table[] = {
    {"causal", "no key after the row",
     [](const Context& ctx, std::int64_t tokens) { return attention::masks::causal(ctx, tokens); }},
    {"documents", "documents of 64, 128, .. 2048, 64, .. tokens, causal",
     [](const Context& ctx, std::int64_t tokens) {
         std::vector<std::int64_t> lengths;
         for (std::int64_t rest = tokens, length = 64; rest > 0; length = length == 2048 ? 64 : 2 * length) {
             lengths.push_back(std::min(length, rest));
             rest -= lengths.back();
         }
         return attention::masks::shared_prompt(ctx, 0, lengths);
     }},
    {"prefix", "prefix-LM with half of the tokens as the prefix",
     [](const Context& ctx, std::int64_t tokens) {
         return attention::masks::prefix(ctx, tokens, tokens / 2);
     }},
    {"shared-prompt", "a prompt of a quarter of the tokens and six answers",
     [](const Context& ctx, std::int64_t tokens) {
         const std::int64_t prompt = tokens / 4, answer = (tokens - prompt) / 6;
         std::vector<std::int64_t> answers(5, answer);
         answers.push_back(tokens - prompt - 5 * answer);
         return attention::masks::shared_prompt(ctx, prompt, answers);
     }},
    {"window", "the row's last 1024 tokens, and 64 global tokens",
     [](const Context& ctx, std::int64_t tokens) {
         return attention::masks::sliding_window(ctx, tokens, {.left = 1023, .right = 0},
                                                 std::min<std::int64_t>(64, tokens));
     }}};

}  // namespace

std::span<const NamedMask> named_masks() {
    return table;
}

const NamedMask& mask_named(std::string_view name) {
    const auto* const found = std::ranges::find(table, name, &NamedMask::name);
    std::string names;
    for (const NamedMask& mask : table) names += concat(names.empty() ? "" : ", ", mask.name);
    check_usage(found != std::end(table), "--mask: ", name, "; expected one of ", names);
    return *found;
}

}  // namespace gradtile::cli
