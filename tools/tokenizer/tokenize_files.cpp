#include <gradtile/tools/tokenizer/tokenize_files.h>

#include <cmath>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/check.h>
#include <gradtile/core/io/data_file.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>

namespace gradtile {
namespace {

TokenFormat format_for(const Tokenizer& tokenizer, const TokenizeOptions& options) {
    const std::int64_t vocabulary = tokenizer.vocab_size();
    if (options.style == TokenFileStyle::nanogpt)
        return vocabulary <= 65536 ? TokenFormat::headerless : TokenFormat::headerless_uint32;
    for (const TokenFormatTraits& traits : token_format_table)
        if (vocabulary <= traits.vocabulary) return traits.format;
    throw Error(concat("format llmc: holds vocabularies of up to 128256; the tokenizer's has ", vocabulary));
}

/// Collects the documents' tokens, and where each begins.
class DocumentTokens {
  public:
    DocumentTokens(const Tokenizer& tokenizer, const TokenizeOptions& options)
        : tokenizer_(tokenizer), separator_(options.separator), threads_(options.threads) {
        if (separator_.empty()) return;
        const BytePairEncoding* const encoding = tokenizer.byte_pair_encoding();
        const auto id = encoding ? encoding->added_token(separator_) : std::nullopt;
        check(id.has_value(), "separator: '", separator_, "' is not an added token of the tokenizer");
        separator_id_ = *id;
    }

    void add_file(std::string_view text, const std::string& path) {
        while (!text.empty()) {
            const std::size_t end =
                separator_.empty() ? text.size() : std::min(text.find(separator_), text.size());
            add(text.substr(0, end), path);
            text.remove_prefix(std::min(end + separator_.size(), text.size()));
        }
    }

    const std::vector<std::int32_t>& ids() const { return ids_; }
    std::int64_t documents() const { return std::ssize(starts_); }
    /// The index of the document's first token; the total token count if `document` is documents().
    std::size_t start_of(std::int64_t document) const {
        return document == documents() ? ids_.size() : starts_[static_cast<std::size_t>(document)];
    }

  private:
    void add(std::string_view document, const std::string& path) {
        if (document.empty()) return;
        starts_.push_back(ids_.size());
        if (!separator_.empty()) ids_.push_back(separator_id_);
        const auto tokens = tokenizer_.encode(document, path, {.threads = threads_});
        ids_.insert(ids_.end(), tokens.begin(), tokens.end());
    }

    const Tokenizer& tokenizer_;
    std::string separator_;
    std::int32_t separator_id_ = -1;
    int threads_;
    std::vector<std::int32_t> ids_;
    std::vector<std::size_t> starts_;
};

}  // namespace

std::string document_text(const std::string& path) {
    const DataFile file(path);
    const auto bytes = static_cast<std::size_t>(file.size());
    const std::size_t available = available_memory(Device::cpu());
    // A text byte takes one byte, and its ids take less than two: an id has 4 bytes, and a token has about
    // three text bytes.
    constexpr std::size_t bytes_each = 3;
    check(bytes <= available / bytes_each, path, ": ", bytes, " bytes of text need ", bytes_each,
          " times that in memory; ", available, " bytes are available");
    std::string text(bytes, '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    return text;
}

TokenizeResult tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options) {
    check(!options.files.empty(), "tokenize: no file given");
    check(options.val_fraction >= 0.0 && options.val_fraction < 1.0, "val-fraction: ", options.val_fraction,
          "; expected 0 <= val-fraction < 1");
    check((options.val_fraction > 0.0) == !options.val_out.empty(),
          "val-fraction and val-out: give both or neither");
    TokenizeResult result{.format = format_for(tokenizer, options)};
    std::int64_t all_bytes = 0, done = 0;
    for (const std::string& path : options.files) all_bytes += DataFile(path).size();

    DocumentTokens tokens(tokenizer, options);
    for (const std::string& path : options.files) {
        const std::string text = document_text(path);
        tokens.add_file(text, path);
        done += std::ssize(text);
        if (options.on_progress) options.on_progress(done, all_bytes);
    }
    check(tokens.documents() > 0, options.files.front(), ": is empty; expected text");

    const std::int64_t documents = tokens.documents();
    if (options.val_fraction > 0.0) {
        check(documents >= 2, "val-fraction: ", options.val_fraction, ": there is only one document",
              options.separator.empty() ? " (each file is one; --separator cuts files)" : "");
        const auto wanted = std::llround(options.val_fraction * static_cast<double>(documents));
        result.val_documents = std::clamp<std::int64_t>(wanted, 1, documents - 1);
    }
    result.documents = documents - result.val_documents;
    const std::span<const std::int32_t> ids(tokens.ids());
    const std::size_t border = tokens.start_of(result.documents);
    result.tokens = static_cast<std::int64_t>(border);
    result.val_tokens = std::ssize(ids) - result.tokens;
    write_token_file(options.out, result.format, ids.first(border));
    if (result.val_documents > 0) write_token_file(options.val_out, result.format, ids.subspan(border));
    return result;
}

}  // namespace gradtile
