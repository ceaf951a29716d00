#include <gradtile/layers/vocabulary.h>
#include <gradtile/train/data/data_loader.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <vector>

#include <gradtile/train/data/document_stream.h>
#include <gradtile/train/data/examples.h>
#include <gradtile/train/data/permutation.h>

namespace gradtile {
namespace {

constexpr std::int64_t max_epoch = std::numeric_limits<std::int64_t>::max() / 2;

// The purposes that a seed is used for; each purpose has its own key.
enum Purpose : std::uint64_t { phase_purpose = 0x70686173, order_purpose = 0x6f726472 };

/// Returns where documents begin, if this does not follow from one window's tokens alone.
std::vector<std::int64_t> borders_of(const TokenSequence& tokens, const Packing& packing) {
    const bool by_tokens = packing.rule.kind == DocumentRule::Kind::separator && !tokens.examples();
    if (!packing || by_tokens) return {};
    return document_begins(tokens, packing.rule, tokens.size());
}

/// Divides a row at the sequence's documents that begin in it.
void divide_at_documents(std::span<const std::int64_t> begins, const TokenWindow& inputs,
                         const WindowOptions& options, const WindowRow& row,
                         std::vector<std::int32_t>& starts) {
    const auto after = [&](std::int64_t token) { return std::ranges::upper_bound(begins, token); };
    std::vector<std::int64_t> borders(after(inputs.begin), after(inputs.end));
    for (std::int64_t& border : borders) border -= inputs.begin;
    divide_at(options.packing, borders, inputs.end - inputs.begin, options.context, row, starts);
}

/// What a loader reads.
struct WindowSource {
    const TokenSequence& tokens;
    std::span<const std::int64_t> borders;  // see borders_of()
};

/// Fills one row with the inputs and the tokens that follow them; the rest of the row is token 0 with ignored
/// targets. Appends to `starts` where packed documents start. Returns how many targets count. `window` is
/// scratch memory: inputs and targets overlap, so they are read together.
std::int64_t fill_window(const WindowSource& source, const TokenWindow& inputs, const WindowOptions& options,
                         std::vector<std::int32_t>& window, const WindowRow& row,
                         std::vector<std::int32_t>& starts) {
    const std::int64_t begin = inputs.begin, length = inputs.end - inputs.begin;
    const Examples* const examples = source.tokens.examples();
    if (length > 0) {
        window.resize(static_cast<std::size_t>(length + 1));
        source.tokens.read(begin, window);
        std::copy_n(window.begin(), length, row.tokens);
        std::copy_n(window.begin() + 1, length, row.targets);
    }
    std::fill(row.tokens + length, row.tokens + options.context, 0);
    std::fill(row.targets + length, row.targets + options.context, ignored_target);
    if (options.packing.has_ranges()) {
        if (row.ranges != nullptr)
            write_row_ranges(*examples, inputs, options.context, options.packing.mask, row);
    } else if (options.packing && options.packing.rule.kind == DocumentRule::Kind::separator && !examples) {
        divide_at_separators(options.packing, window, length, options.context, row, starts);
    } else if (options.packing) {
        divide_at_documents(source.borders, inputs, options, row, starts);
    }
    if (examples)
        for (std::int64_t i = 0; i < length; ++i)
            if (!examples->is_target[static_cast<std::size_t>(begin + 1 + i)])
                row.targets[i] = ignored_target;
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < length; ++i) {
        if (options.ignore_token >= 0 && row.targets[i] == options.ignore_token)
            row.targets[i] = ignored_target;
        counted += row.targets[i] != ignored_target;
    }
    return counted;
}

/// Throws Error unless a target counts in at least one window. Otherwise a loss would be 0 or 0/0, which are
/// no results. Usually reads one window only.
void require_target(const WindowSource& source, std::span<const TokenWindow> example_windows,
                    WindowOptions options, const char* purpose) {
    const std::int64_t predictions = std::max<std::int64_t>(source.tokens.size() - 1, 1);
    options.context = std::min(options.context, predictions);
    const std::int64_t context = options.context;
    const std::int64_t windows =
        example_windows.empty() ? ceil_div(predictions, context) : std::ssize(example_windows);
    std::vector<std::int32_t> window, row(static_cast<std::size_t>(3 * context)), starts;
    for (std::int64_t i = 0; i < windows; ++i) {
        const TokenWindow inputs = example_windows.empty()
                                       ? TokenWindow{i * context, std::min((i + 1) * context, predictions)}
                                       : example_windows[static_cast<std::size_t>(i)];
        starts.clear();
        if (fill_window(source, inputs, options, window,
                        {row.data(), row.data() + context, row.data() + 2 * context}, starts) > 0)
            return;
    }
    throw Error(concat(source.tokens.source(), ": has no target to ", purpose, " on: all are ignored"));
}

/// A batch's rows, and the offsets where their documents begin.
class BatchRows {
  public:
    BatchRows(const WindowOptions& options, std::span<std::int32_t> tokens, std::span<std::int32_t> targets,
              const DocumentSpans& documents)
        : options_(options), tokens_(tokens), targets_(targets), documents_(documents) {
        const std::int64_t context = options.context;
        check(tokens.size() == targets.size() && std::ssize(tokens) % context == 0,
              "data loader: ", tokens.size(), " tokens and ", targets.size(),
              " targets; expected the same multiple of context ", context);
        if (!options.packing) return;
        const bool has_ranges = options.packing.has_ranges();
        const std::int64_t found = std::ssize(has_ranges ? documents.ranges : documents.offsets);
        const std::int64_t expected =
            has_ranges ? 4 * std::ssize(tokens) : options.packing.offsets_of(count());
        check(documents.positions.size() == tokens.size() && found == expected,
              "data loader: ", documents.positions.size(), " positions and ", found,
              has_ranges ? " numbers of row ranges" : " offsets", " of documents; expected ", tokens.size(),
              " and ", expected);
    }
    std::int64_t count() const { return std::ssize(tokens_) / options_.context; }
    std::int64_t fill(const WindowSource& source, std::int64_t row, const TokenWindow& inputs,
                      std::vector<std::int32_t>& window) {
        const std::int64_t first = row * options_.context;
        starts_.clear();
        const std::int64_t counted =
            fill_window(source, inputs, options_, window,
                        {tokens_.data() + first, targets_.data() + first,
                         options_.packing ? documents_.positions.data() + first : nullptr,
                         options_.packing.has_ranges() ? documents_.ranges.data() + 4 * first : nullptr},
                        starts_);
        if (options_.packing && !options_.packing.has_ranges()) write_offsets(row);
        return counted;
    }

  private:
    /// Writes the offsets where the documents in the last filled row begin, and the row's end. Documents that
    /// the row does not use are empty and begin at its end.
    void write_offsets(std::int64_t row) const {
        const std::int64_t first = row * options_.context, documents = options_.packing.max_documents;
        const std::span offsets = documents_.offsets.subspan(static_cast<std::size_t>(row * documents),
                                                             static_cast<std::size_t>(documents) + 1);
        std::ranges::fill(offsets, static_cast<std::int32_t>(first + options_.context));
        for (std::size_t d = 0; d < starts_.size(); ++d)
            offsets[d] = static_cast<std::int32_t>(first) + starts_[d];
    }

    WindowOptions options_;
    std::span<std::int32_t> tokens_, targets_;
    DocumentSpans documents_;
    std::vector<std::int32_t> starts_;  // where the documents in one row start
};

std::span<std::int32_t> host_elements(const Tensor& x, std::int64_t context) {
    check(x.defined() && x.device().is_cpu() && x.rank() == 2 && x.size(1) == context && x.is_contiguous(),
          "data loader: batch tensor ", x, "; expected a contiguous [B, ", context, "] on the host");
    return {x.data<std::int32_t>(), static_cast<std::size_t>(x.elements())};
}

DocumentSpans spans_of(const Documents& documents, std::int64_t context) {
    if (!documents) return {};
    const auto elements = [](const Tensor& x) {
        return x.defined() ? std::span(x.data<std::int32_t>(), static_cast<std::size_t>(x.elements()))
                           : std::span<std::int32_t>();
    };
    return {host_elements(documents.positions, context), elements(documents.offsets),
            elements(documents.row_ranges)};
}

/// "talk.jsonl: has no target to train on", with note_on_long_examples() as the reason.
Error no_target(const TokenSequence& tokens, const WindowOptions& options, const char* purpose) {
    std::string reason = note_on_long_examples(tokens, options.context, options.packing);
    if (!reason.empty()) reason.erase(0, tokens.source().size());  // ": 2 of 2 prompts are left out"
    return Error(concat(tokens.source(), ": has no target to ", purpose, " on", reason));
}

}  // namespace

struct DataLoader::Tokens {
    TokenSequence sequence;
    std::vector<TokenWindow> example_windows;  // empty if the sequence has no examples
    // Packed: where documents begin in the sequence; empty if each separator shows it.
    std::vector<std::int64_t> borders;
    StreamPlace begin{}, end{};  // of a stream's block
};

Batch empty_batch(const Context& ctx, std::int64_t batch_size, std::int64_t context, const Packing& packing) {
    const Shape shape{batch_size, context};
    Batch batch{empty(ctx, shape, DType::i32), empty(ctx, shape, DType::i32)};
    if (packing) batch.documents.positions = empty(ctx, shape, DType::i32);
    if (packing.has_ranges()) {
        batch.documents.row_ranges = empty(ctx, {batch_size, 1, context, 4}, DType::i32);
    } else if (packing) {
        batch.documents.offsets = empty(ctx, {packing.offsets_of(batch_size)}, DType::i32);
    }
    return batch;
}

DataLoader::DataLoader(TokenSequence tokens, DataLoaderOptions options) : options_(options) {
    check_options();
    options_.packing = packing_for(options.packing, document_kind_of(tokens), tokens.source());
    check(tokens.examples() || tokens.size() > options.context, tokens.source(), ": ", tokens.size(),
          " tokens to train on; context ", options.context, " needs at least ", options.context + 1);
    const std::shared_ptr<const Tokens> all = tokens_of(std::move(tokens));
    if (all->sequence.examples() && all->example_windows.empty())
        throw no_target(all->sequence, window_options(), "train");
    require_target({all->sequence, all->borders}, all->example_windows, window_options(), "train");
    cursor_ = start_of(all, 0, 0);
}

DataLoader::DataLoader(std::shared_ptr<DocumentStream> stream, DataLoaderOptions options)
    : options_(options), stream_(std::move(stream)) {
    check_options();
    options_.packing = packing_for(options.packing, stream_->kind(), stream_->source());
    cursor_ = start_of_block({});
}

void DataLoader::check_options() const {
    check(options_.context >= 1, "data loader: context ", options_.context, "; expected at least 1");
    check(options_.ranks >= 1 && options_.rank >= 0 && options_.rank < options_.ranks, "data loader: rank ",
          options_.rank, " of ", options_.ranks);
}

std::shared_ptr<DataLoader::Tokens> DataLoader::tokens_of(TokenSequence sequence) const {
    auto tokens = std::make_shared<Tokens>();
    if (const Examples* const examples = sequence.examples())
        tokens->example_windows = windows_of(*examples, options_.context, options_.packing);
    tokens->borders = borders_of(sequence, options_.packing);
    tokens->sequence = std::move(sequence);
    return tokens;
}

/// `pass` is the number of the order of windows that begins: an epoch's, or a stream block's.
DataLoader::Cursor DataLoader::start_of(std::shared_ptr<const Tokens> tokens, std::int64_t epoch,
                                        std::int64_t pass) const {
    const auto counter = static_cast<std::uint64_t>(pass);
    const Philox::Counter words =
        Philox::draw({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0},
                     philox_key(mix_seed(options_.seed.value, phase_purpose)));
    Cursor cursor{.tokens = std::move(tokens),
                  .epoch = epoch,
                  .order_seed = mix_seed(mix_seed(options_.seed.value, order_purpose), counter)};
    if (!cursor.tokens->example_windows.empty()) {
        cursor.windows = std::ssize(cursor.tokens->example_windows);
        return cursor;
    }
    const std::int64_t predictions = cursor.tokens->sequence.size() - 1;
    const std::uint64_t draw = std::uint64_t{words[0]} << 32 | words[1];
    // A stream's block may be shorter than the context.
    const std::int64_t phases = std::min(options_.context, predictions);
    cursor.phase = static_cast<std::int64_t>(draw % static_cast<std::uint64_t>(phases));
    cursor.windows = (cursor.phase > 0) + ceil_div(predictions - cursor.phase, options_.context);
    return cursor;
}

/// Passes over blocks without a window, such as one of a single token.
DataLoader::Cursor DataLoader::start_of_block(const StreamPlace& first) const {
    for (StreamPlace begin = first; begin.epoch <= first.epoch + 1;) {
        StreamBlock block = stream_->block(begin);
        const std::shared_ptr<Tokens> tokens = tokens_of(std::move(block.tokens));
        tokens->begin = block.begin;
        tokens->end = begin = block.end;
        const TokenSequence& sequence = tokens->sequence;
        if (sequence.examples() ? !tokens->example_windows.empty() : sequence.size() > 1)
            return start_of(tokens, block.begin.epoch, block.begin.block);
    }
    throw Error(concat(stream_->source(), ": has no target to train on",
                       options_.packing.has_ranges()
                           ? concat(": prompts that have, with all their completions, more than ",
                                    options_.context + 1, " tokens (context + 1) are left out")
                           : ""));
}

/// Moves to the next window.
void DataLoader::advance(Cursor& cursor) const {
    if (++cursor.position < cursor.windows) return;
    if (stream_) {
        cursor = start_of_block(cursor.tokens->end);
        return;
    }
    cursor.tokens->sequence.require_unchanged();
    cursor = start_of(cursor.tokens, cursor.epoch + 1, cursor.epoch + 1);
}

TokenWindow DataLoader::window_at(const Cursor& cursor) const {
    const std::int64_t context = options_.context;
    const Permutation order(static_cast<std::uint64_t>(cursor.windows), cursor.order_seed);
    const auto window = static_cast<std::int64_t>(order(static_cast<std::uint64_t>(cursor.position)));
    const Tokens& tokens = *cursor.tokens;
    if (!tokens.example_windows.empty()) return tokens.example_windows[static_cast<std::size_t>(window)];
    // Window borders are phase + k * context; the window that would begin before token 0 is the short first
    // one.
    const std::int64_t border = (cursor.phase > 0 ? cursor.phase - context : 0) + window * context;
    return {std::max<std::int64_t>(border, 0), std::min(border + context, tokens.sequence.size() - 1)};
}

std::int64_t DataLoader::count_targets(const Cursor& cursor) {
    const TokenWindow window = window_at(cursor);
    const TokenSequence& sequence = cursor.tokens->sequence;
    const std::int64_t length = window.end - window.begin;
    if (options_.packing || sequence.examples()) {
        const std::int64_t context = options_.context;
        other_row_.resize(static_cast<std::size_t>(3 * context));
        std::int32_t* const row = other_row_.data();
        std::vector<std::int32_t> starts;
        return fill_window({sequence, cursor.tokens->borders}, window, window_options(), window_,
                           {row, row + context, row + 2 * context}, starts);
    }
    if (options_.ignore_token < 0) return length;
    window_.resize(static_cast<std::size_t>(length));
    sequence.read(window.begin + 1, window_);
    return length - std::ranges::count(window_, options_.ignore_token);
}

std::int64_t DataLoader::next(std::span<std::int32_t> tokens, std::span<std::int32_t> targets,
                              const DocumentSpans& documents) {
    BatchRows rows(window_options(), tokens, targets, documents);
    Cursor cursor = cursor_;  // becomes the loader's position when everything has been read
    std::int64_t counted = 0;
    for (std::int64_t rank = 0; rank < options_.ranks; ++rank)
        for (std::int64_t row = 0; row < rows.count(); ++row) {
            const WindowSource source{cursor.tokens->sequence, cursor.tokens->borders};
            counted += rank == options_.rank ? rows.fill(source, row, window_at(cursor), window_)
                                             : count_targets(cursor);
            advance(cursor);
        }
    cursor_ = std::move(cursor);
    return counted;
}

std::int64_t DataLoader::next(const Batch& batch) {
    return next(host_elements(batch.tokens, options_.context), host_elements(batch.targets, options_.context),
                spans_of(batch.documents, options_.context));
}

JsonValue DataLoader::state() const {
    JsonValue state = JsonValue::object({{"epoch", cursor_.epoch}, {"position", cursor_.position}});
    if (stream_) {
        const StreamPlace& block = cursor_.tokens->begin;
        state.set("file", block.file);
        state.set("row", block.row);
        state.set("block", block.block);
        state.set("buffer", stream_->buffer());
    } else {
        state.set("tokens", cursor_.tokens->sequence.size());
    }
    state.set("context", options_.context);
    state.set("seed", options_.seed.value);
    return state;
}

namespace {

std::int64_t number_in(const JsonValue& state, const char* key) {
    check(state.contains(key) && state[key].fits<std::int64_t>(),
          "data position: expected a whole number named ", key);
    return state[key].get<std::int64_t>();
}

}  // namespace

void DataLoader::restore(const JsonValue& state) {
    check(number_in(state, "context") == options_.context, "data position: belongs to context ",
          number_in(state, "context"), ", not ", options_.context);
    check(static_cast<std::uint64_t>(number_in(state, "seed")) == options_.seed.value,
          "data position: belongs to another seed than ", options_.seed.value);
    Cursor cursor = stream_ ? place_in_stream(state) : place_in(state);
    const std::int64_t position = number_in(state, "position");
    check(position >= 0 && position < cursor.windows, "data position: window ", position, " of ",
          cursor.windows);
    cursor.position = position;
    cursor_ = std::move(cursor);
}

/// Returns the start of the epoch that a state names.
DataLoader::Cursor DataLoader::place_in(const JsonValue& state) const {
    const TokenSequence& sequence = cursor_.tokens->sequence;
    const std::int64_t tokens = number_in(state, "tokens"), epoch = number_in(state, "epoch");
    check(tokens == sequence.size(), sequence.source(), ": ", sequence.size(),
          " tokens to train on, but the run was made with ", tokens);
    check(epoch >= 0 && epoch < std::numeric_limits<std::int64_t>::max(), "data position: epoch ", epoch);
    return start_of(cursor_.tokens, epoch, epoch);
}

/// Returns the start of the block that a state names.
DataLoader::Cursor DataLoader::place_in_stream(const JsonValue& state) const {
    const std::int64_t buffer = number_in(state, "buffer");
    check(buffer == stream_->buffer(), "data position: belongs to stream-buffer ", buffer, ", not ",
          stream_->buffer());
    const StreamPlace place{number_in(state, "epoch"), number_in(state, "file"), number_in(state, "row"),
                            number_in(state, "block")};
    const bool is_place = place.epoch >= 0 && place.epoch < max_epoch && place.block >= place.epoch &&
                          place.block < std::numeric_limits<std::int64_t>::max();
    check(is_place, "data position: block ", place.block, " in epoch ", place.epoch);
    Cursor cursor = cursor_;
    cursor.position = 0;
    return place == cursor_.tokens->begin ? cursor : start_of_block(place);
}

SequentialLoader::SequentialLoader(TokenSequence tokens, std::int64_t context,
                                   const SequentialOptions& options)
    : tokens_(std::move(tokens)),
      options_{context, options.ignore_token,
               packing_for(options.packing, document_kind_of(tokens_), tokens_.source())},
      stride_(options.stride == 0 ? context : options.stride) {
    check(context >= 1, "data loader: context ", context, "; expected at least 1");
    check(tokens_.size() >= 2, tokens_.source(), ": ", tokens_.size(),
          " tokens to validate on; expected at least 2");
    check(stride_ >= 1 && stride_ <= context, "data loader: stride ", stride_, "; expected 1 to context (",
          context, ")");
    const Examples* const examples = tokens_.examples();
    check(stride_ == context || (!examples && !options_.packing), tokens_.source(),
          ": a stride other than the context; conversations and packed documents have none");
    if (examples) {
        example_windows_ = windows_of(*examples, context, options_.packing);
        if (example_windows_.empty()) throw no_target(tokens_, options_, "validate");
    }
    borders_ = borders_of(tokens_, options_.packing);
    require_target({tokens_, borders_}, example_windows_, options_, "validate");
}

std::int64_t SequentialLoader::windows() const {
    if (!example_windows_.empty()) return std::ssize(example_windows_);
    const std::int64_t after_first = tokens_.size() - 1 - options_.context;
    return 1 + std::max<std::int64_t>(0, ceil_div(after_first, stride_));
}

/// Windows past the last one are empty.
TokenWindow SequentialLoader::window_at(std::int64_t window) const {
    if (window >= windows()) return {};
    if (!example_windows_.empty()) return example_windows_[static_cast<std::size_t>(window)];
    const std::int64_t begin = window * stride_;
    return {begin, std::min(begin + options_.context, tokens_.size() - 1)};
}

std::int64_t SequentialLoader::longest_window() const {
    return longest_window(0, windows());
}

/// Returns the token count of the longest window in [begin, end).
std::int64_t SequentialLoader::longest_window(std::int64_t begin, std::int64_t end) const {
    std::int64_t longest = 1;
    // Without examples only the last window may be short.
    if (example_windows_.empty()) end = std::min(end, begin + 1);
    for (std::int64_t window = begin; window < end; ++window) {
        const TokenWindow inputs = window_at(window);
        longest = std::max(longest, inputs.end - inputs.begin);
    }
    return longest;
}

Shape SequentialLoader::next_shape(std::int64_t rows) const {
    const std::int64_t end = std::min(window_ + rows, windows()), longest = longest_window(window_, end);
    const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(longest)));
    const std::int64_t step = std::max<std::int64_t>(power / 8, 1);
    return {end - window_, std::min(ceil_div(longest, step) * step, options_.context)};
}

std::int64_t SequentialLoader::next(std::span<std::int32_t> tokens, std::span<std::int32_t> targets,
                                    const DocumentSpans& documents) {
    return next_rows(options_.context, tokens, targets, documents);
}

/// Fills rows with `length` tokens each.
std::int64_t SequentialLoader::next_rows(std::int64_t length, std::span<std::int32_t> tokens,
                                         std::span<std::int32_t> targets, const DocumentSpans& documents) {
    WindowOptions options = options_;
    options.context = length;
    BatchRows rows(options, tokens, targets, documents);
    const std::int64_t longest = longest_window(window_, std::min(window_ + rows.count(), windows()));
    check(longest <= length, "data loader: rows of ", length, " tokens; expected at least ", longest);
    // A row's first targets are also targets in the previous window.
    const std::int64_t repeated = std::min(options_.context - stride_, length);
    std::int64_t counted = 0, window = window_;
    for (std::int64_t row = 0; row < rows.count(); ++row) {
        counted += rows.fill({tokens_, borders_}, row, window_at(window), scratch_);
        if (window > 0 && window < windows()) {
            for (std::int32_t& target : targets.subspan(static_cast<std::size_t>(row * length),
                                                        static_cast<std::size_t>(repeated))) {
                counted -= target != ignored_target;
                target = ignored_target;
            }
        }
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
    const std::int64_t length = batch.tokens.defined() && batch.tokens.rank() == 2 ? batch.tokens.size(1) : 0;
    return next_rows(length, host_elements(batch.tokens, length), host_elements(batch.targets, length),
                     spans_of(batch.documents, length));
}

}  // namespace gradtile
