#include <gradtile/train/dataset.h>

#include <memory>

#include <gradtile/core/check.h>
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
    }
    if (!options.val_data.empty()) {
        dataset.train = std::move(all);
        dataset.validation = load_tokens(options.val_data, dataset.tokenizer, dataset.vocabulary);
        return dataset;
    }
    const auto split =
        static_cast<std::int64_t>((1.0 - options.val_fraction) * static_cast<double>(all.size()));
    dataset.train = all.slice(0, split);
    dataset.validation = all.slice(split, all.size());
    return dataset;
}

}  // namespace gradtile
