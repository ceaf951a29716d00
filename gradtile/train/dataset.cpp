#include <gradtile/train/dataset.h>

#include <memory>
#include <vector>

#include <gradtile/core/check.h>
#include <gradtile/train/corpus.h>
#include <gradtile/train/mapped_file.h>
#include <gradtile/train/token_file.h>
#include <gradtile/train/utf8.h>

namespace gradtile {
namespace {

/// A mapped text file, without its byte order mark when it is to be read as characters.
struct Text {
    Text(const std::string& path, TokenizerKind kind)
        : file(std::make_shared<const MappedFile>(path)), text(file->text()) {
        if (kind == TokenizerKind::characters && text.starts_with(utf8_byte_order_mark))
            text.remove_prefix(utf8_byte_order_mark.size());
        check(!text.empty(), path, ": is empty; expected text");
    }
    std::shared_ptr<const MappedFile> file;
    std::string_view text;
};

TokenSequence encoded(const Text& text, const Tokenizer& tokenizer, const std::string& path) {
    if (tokenizer.kind() == TokenizerKind::bytes)  // the mapped bytes are the ids
        return TokenSequence(
            text.file, std::span(reinterpret_cast<const std::uint8_t*>(text.text.data()), text.text.size()),
            path);
    return TokenSequence(tokenizer.encode(text.text, path), path);
}

/// What the grammar itself reaches on a file, should it have written it.
std::optional<double> source_nll(const std::string& path) {
    if (is_token_file(path)) return std::nullopt;
    const auto stories = parse_corpus(Text(path, TokenizerKind::characters).text);
    return stories ? std::optional(source_nll_per_character(*stories)) : std::nullopt;
}

}  // namespace

TokenSequence load_tokens(const std::string& path, const std::optional<Tokenizer>& tokenizer,
                          std::int64_t vocabulary) {
    if (is_token_file(path)) return open_token_file(path, vocabulary).tokens;
    check(tokenizer.has_value(), path,
          ": is text, but the model was trained on token files and has no tokenizer");
    return encoded(Text(path, tokenizer->kind()), *tokenizer, path);
}

Dataset load_dataset(const DatasetOptions& options, const std::optional<Tokenizer>& tokenizer) {
    check(!options.data.empty(), "data: no file given (--data FILE)");
    check(options.val_fraction >= 0.0 && options.val_fraction < 1.0, "val-fraction: ", options.val_fraction,
          "; expected 0 <= val-fraction < 1");
    Dataset dataset;
    TokenSequence all;
    std::optional<std::vector<Story>> stories;
    if (is_token_file(options.data)) {
        TokenFile file = open_token_file(options.data, options.vocabulary);
        all = std::move(file.tokens);
        dataset.vocabulary = file.vocabulary;
    } else {
        const Text text(options.data, tokenizer ? tokenizer->kind() : options.tokenizer);
        dataset.tokenizer = tokenizer;
        if (!tokenizer)
            dataset.tokenizer = options.tokenizer == TokenizerKind::bytes
                                    ? Tokenizer::bytes()
                                    : Tokenizer::characters_of(text.text, options.data);
        all = encoded(text, *dataset.tokenizer, options.data);
        dataset.vocabulary = dataset.tokenizer->vocab_size();
        stories = parse_corpus(text.text);
    }
    if (!options.val_data.empty()) {
        dataset.train = std::move(all);
        dataset.validation = load_tokens(options.val_data, dataset.tokenizer, dataset.vocabulary);
        dataset.source_nll = source_nll(options.val_data);
        return dataset;
    }
    const double kept = 1.0 - options.val_fraction;
    auto split = static_cast<std::int64_t>(kept * static_cast<double>(all.size()));
    if (const auto border = stories ? nearest_story_border(*stories, kept) : std::nullopt;
        border && options.val_fraction > 0.0) {
        split = static_cast<std::int64_t>(*border);  // stories are ASCII: a token a byte
        std::erase_if(*stories, [&](const Story& story) { return story.begin < *border; });
        dataset.source_nll = source_nll_per_character(*stories);
    }
    dataset.train = all.slice(0, split);
    dataset.validation = all.slice(split, all.size());
    return dataset;
}

}  // namespace gradtile
