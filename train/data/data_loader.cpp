#include <gradtile/train/data/data_loader.h>

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

namespace gradtile {
namespace {

// The purposes that a seed is used for; each purpose has its own key.
enum Purpose : std::uint64_t { phase_purpose = 0x70686173, order_purpose = 0x6f726472 };

/// Fills one row with the inputs [begin, end) and the tokens that follow them; the rest of the row is token 0
/// with ignored targets. Returns how many targets count. `window` is scratch memory: inputs and targets
/// overlap, so they are read together.
std::int64_t fill_window(const TokenSequence& sequence, std::int64_t begin, std::int64_t end,
                         std::int64_t context, std::int64_t ignore_token, std::vector<std::int32_t>& window,
                         std::int32_t* tokens, std::int32_t* targets) {
    const std::int64_t length = end - begin;
    if (length > 0) {
        window.resize(static_cast<std::size_t>(length + 1));
        sequence.read(begin, window);
        std::copy_n(window.begin(), length, tokens);
        std::copy_n(window.begin() + 1, length, targets);
    }
    std::fill(tokens + length, tokens + context, 0);
    std::fill(targets + length, targets + context, ignored_target);
    if (ignore_token < 0) return length;
    std::int64_t ignored = 0;
    for (std::int64_t i = 0; i < length; ++i) {
        if (targets[i] != ignore_token) continue;
        targets[i] = ignored_target;
        ++ignored;
    }
    return length - ignored;
}

std::int64_t rows_of(std::span<std::int32_t> tokens, std::span<std::int32_t> targets, std::int64_t context) {
    check(tokens.size() == targets.size() && std::ssize(tokens) % context == 0,
          "data loader: ", tokens.size(), " tokens and ", targets.size(),
          " targets; expected the same multiple of context ", context);
    return std::ssize(tokens) / context;
}

std::span<std::int32_t> host_elements(const Tensor& x, std::int64_t context) {
    check(x.defined() && x.device().is_cpu() && x.rank() == 2 && x.size(1) == context && x.is_contiguous(),
          "data loader: batch tensor ", x, "; expected a contiguous [B, ", context, "] on the host");
    return {x.data<std::int32_t>(), static_cast<std::size_t>(x.elements())};
}

}  // namespace

Batch empty_batch(const Context& ctx, std::int64_t batch_size, std::int64_t context) {
    return {empty(ctx, {batch_size, context}, DType::i32), empty(ctx, {batch_size, context}, DType::i32)};
}

DataLoader::DataLoader(TokenSequence tokens, DataLoaderOptions options)
    : tokens_(std::move(tokens)), options_(options) {
    check(options.context >= 1, "data loader: context ", options.context, "; expected at least 1");
    check(options.ranks >= 1 && options.rank >= 0 && options.rank < options.ranks, "data loader: rank ",
          options.rank, " of ", options.ranks);
    check(tokens_.size() > options.context, tokens_.source(), ": ", tokens_.size(),
          " tokens to train on; context ", options.context, " needs at least ", options.context + 1);
    cursor_ = start_of(0);
}

DataLoader::Cursor DataLoader::start_of(std::int64_t epoch) const {
    const auto counter = static_cast<std::uint64_t>(epoch);
    const Philox::Counter words =
        Philox::draw({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
                     philox_key(mix_seed(options_.seed.value, phase_purpose)));
    const std::uint64_t draw = std::uint64_t{words[0]} << 32 | words[1];
    const auto phase = static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(options_.context));

    const std::int64_t predictions = tokens_.size() - 1;
    const std::int64_t after_phase = ceil_div(predictions - phase, options_.context);
    return {.epoch = epoch,
            .phase = phase,
            .order = Permutation(static_cast<std::uint64_t>((phase > 0) + after_phase),
                                 mix_seed(mix_seed(options_.seed.value, order_purpose), counter))};
}

DataLoader::Window DataLoader::window_at(const Cursor& cursor) const {
    const std::int64_t context = options_.context;
    const auto window = static_cast<std::int64_t>(cursor.order(static_cast<std::uint64_t>(cursor.position)));
    // Window borders are phase + k * context; the window that would begin before token 0 is the short first
    // one.
    const std::int64_t border = (cursor.phase > 0 ? cursor.phase - context : 0) + window * context;
    return {std::max<std::int64_t>(border, 0), std::min(border + context, tokens_.size() - 1)};
}

std::int64_t DataLoader::count_targets(const Window& window) {
    const std::int64_t length = window.end - window.begin;
    if (options_.ignore_token < 0) return length;
    window_.resize(static_cast<std::size_t>(length));
    tokens_.read(window.begin + 1, window_);
    return length - std::ranges::count(window_, options_.ignore_token);
}

std::int64_t DataLoader::next(std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
    const std::int64_t context = options_.context, rows = rows_of(tokens, targets, context);
    Cursor at = cursor_;  // becomes the loader's position when everything has been read
    std::int64_t counted = 0;
    for (std::int64_t rank = 0; rank < options_.ranks; ++rank)
        for (std::int64_t row = 0; row < rows; ++row) {
            const Window window = window_at(at);
            counted +=
                rank == options_.rank
                    ? fill_window(tokens_, window.begin, window.end, context, options_.ignore_token, window_,
                                  tokens.data() + row * context, targets.data() + row * context)
                    : count_targets(window);
            if (++at.position < at.windows()) continue;
            tokens_.require_unchanged();
            at = start_of(at.epoch + 1);
        }
    cursor_ = at;
    return counted;
}

std::int64_t DataLoader::next(const Batch& batch) {
    return next(host_elements(batch.tokens, options_.context),
                host_elements(batch.targets, options_.context));
}

JsonValue DataLoader::state() const {
    return nlohmann::json{{"epoch", cursor_.epoch},
                          {"position", cursor_.position},
                          {"tokens", tokens_.size()},
                          {"context", options_.context},
                          {"seed", options_.seed.value}};
}

void DataLoader::restore(const JsonValue& saved) {
    const nlohmann::json& state = *saved;
    const auto number = [&](const char* key) {
        check(state.is_object() && state.contains(key) && state[key].is_number_integer(),
              "data position: expected a whole number named ", key);
        return state[key].get<std::int64_t>();
    };
    check(number("tokens") == tokens_.size(), tokens_.source(), ": ", tokens_.size(),
          " tokens to train on, but the run was made with ", number("tokens"));
    check(number("context") == options_.context, "data position: belongs to context ", number("context"),
          ", not ", options_.context);
    check(static_cast<std::uint64_t>(number("seed")) == options_.seed.value,
          "data position: belongs to another seed than ", options_.seed.value);
    const std::int64_t epoch = number("epoch"), position = number("position");
    check(epoch >= 0, "data position: epoch ", epoch);
    Cursor cursor = start_of(epoch);
    check(position >= 0 && position < cursor.windows(), "data position: window ", position, " of ",
          cursor.windows());
    cursor.position = position;
    cursor_ = cursor;
}

SequentialLoader::SequentialLoader(TokenSequence tokens, std::int64_t context, std::int64_t ignore_token)
    : tokens_(std::move(tokens)), context_(context), ignore_token_(ignore_token) {
    check(context >= 1, "data loader: context ", context, "; expected at least 1");
    check(tokens_.size() >= 2, tokens_.source(), ": ", tokens_.size(),
          " tokens to validate on; expected at least 2");
}

std::int64_t SequentialLoader::next(std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
    const std::int64_t rows = rows_of(tokens, targets, context_);
    std::int64_t counted = 0, window = window_;
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t begin = std::min(window * context_, tokens_.size() - 1);
        const std::int64_t end = std::min(begin + context_, tokens_.size() - 1);
        counted += fill_window(tokens_, begin, end, context_, ignore_token_, scratch_,
                               tokens.data() + row * context_, targets.data() + row * context_);
        if (window < windows()) ++window;
    }
    window_ = window;
    return counted;
}

void SequentialLoader::rewind() {
    tokens_.require_unchanged();
    window_ = 0;
}

std::int64_t SequentialLoader::next(const Batch& batch) {
    return next(host_elements(batch.tokens, context_), host_elements(batch.targets, context_));
}

}  // namespace gradtile
