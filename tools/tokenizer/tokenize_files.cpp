#include <gradtile/tools/tokenizer/tokenize_files.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include <gradtile/core/check.h>
#include <gradtile/core/io/data_file.h>
#include <gradtile/core/io/removed_on_signal.h>
#include <gradtile/train/data/document_encoder.h>
#include <gradtile/train/data/readers/data_files.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>

namespace gradtile {
namespace {

TokenFormat format_for(const Tokenizer& tokenizer, const TokenizeOptions& options) {
    const std::int64_t vocabulary = tokenizer.vocab_size();
    if (options.style == TokenFileStyle::nanogpt) return headerless_format(vocabulary);
    for (const TokenFormatTraits& traits : token_format_table)
        if (vocabulary <= traits.vocabulary) return traits.format;
    throw Error(concat("format llmc: holds vocabularies of up to 128256; the tokenizer's has ", vocabulary));
}

std::int32_t separator_id(const Tokenizer& tokenizer, const std::string& separator) {
    const BytePairEncoding* const encoding = tokenizer.byte_pair_encoding();
    const auto id = encoding ? encoding->added_token(separator) : std::nullopt;
    check(id.has_value(), "separator: '", separator, "' is not an added token of the tokenizer");
    return *id;
}

DocumentEncoder encoder_for(const Tokenizer& tokenizer, const TokenizeOptions& options) {
    DocumentEncoderOptions encoding{
        .chat_template = options.chat_template, .cut_at = options.separator, .threads = options.threads};
    if (!options.separator.empty()) encoding.separator = separator_id(tokenizer, options.separator);
    return {tokenizer, encoding};
}

/// Returns how many of the documents, the last ones, are for validation.
std::int64_t val_documents_of(std::int64_t documents, const TokenizeOptions& options) {
    if (options.val_fraction == 0.0) return 0;
    check(documents >= 2, "val-fraction: ", options.val_fraction, ": there is only one document",
          options.separator.empty() ? " (each file is one; --separator cuts files)" : "");
    const auto wanted = std::llround(options.val_fraction * static_cast<double>(documents));
    return std::clamp<std::int64_t>(wanted, 1, documents - 1);
}

}  // namespace

std::vector<std::string> files_of(const std::vector<std::string>& names) {
    std::vector<std::string> files;
    for (const std::string& name : names)
        for (std::string& file : data_files(name)) files.push_back(std::move(file));
    return files;
}

std::int64_t bytes_of_files(const std::vector<std::string>& files) {
    std::int64_t bytes = 0;
    for (const std::string& path : files)
        if (path != standard_input_name) bytes += DataFile(path).size();
    return bytes;
}

void validate(const TokenizeOptions& options) {
    check(!options.files.empty(), "tokenize: no file given");
    check(options.val_fraction >= 0.0 && options.val_fraction < 1.0, "val-fraction: ", options.val_fraction,
          "; expected 0 <= val-fraction < 1");
    check((options.val_fraction > 0.0) == !options.val_out.empty(),
          "val-fraction and val-out: give both or neither");
}

TokenizeResult tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options) {
    validate(options);
    TokenizeResult result{.format = format_for(tokenizer, options)};
    const DocumentEncoder encoder = encoder_for(tokenizer, options);
    const std::vector<std::string> files = files_of(options.files);
    const std::int64_t all_bytes = bytes_of_files(files);

    DocumentReader reader(files, options.text_column);
    TokenFileWriter training(options.out, result.format);
    std::vector<std::int64_t> starts;  // of documents, if they are to be split
    std::int64_t documents = 0;
    encoder.encode_all(reader, [&](const EncodedDocument& document) {
        check(reader.kind() != DocumentKind::shared_prompts, files.front(),
              ": holds completions that share a prompt, which a token file cannot express; expected one "
              "completion in each row");
        if (options.val_fraction > 0.0) starts.push_back(training.count());
        training.append(document.ids);
        ++documents;
        if (options.on_progress) options.on_progress(std::min(reader.bytes_done(), all_bytes), all_bytes);
    });
    check(documents > 0, options.files.front(), ": is empty; expected text");

    result.val_documents = val_documents_of(documents, options);
    result.documents = documents - result.val_documents;
    // If one file cannot be written, both names keep what they had: a new training file beside an old
    // validation file would have documents in common with it.
    std::optional<SignalsWait> until_both_have_their_names;
    if (result.val_documents > 0) {
        TokenFileWriter validation(options.val_out, result.format);
        training.move_tail(starts[static_cast<std::size_t>(result.documents)], validation);
        result.val_tokens = validation.count();
        until_both_have_their_names.emplace();
        validation.commit();
    }
    result.tokens = training.count();
    training.commit();
    return result;
}

}  // namespace gradtile
