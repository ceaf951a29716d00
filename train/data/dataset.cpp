#include <gradtile/train/data/dataset.h>

#include <algorithm>
#include <array>

#include <gradtile/core/check.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/train/data/document_stream.h>
#include <gradtile/train/data/examples.h>
#include <gradtile/train/data/packing.h>
#include <gradtile/train/data/readers/byte_source.h>
#include <gradtile/train/data/readers/data_content.h>
#include <gradtile/train/data/readers/data_files.h>
#include <gradtile/train/data/token_file.h>
#include <gradtile/train/data/tokenized_documents.h>
#include <gradtile/train/tokenizers/byte_pair_encoding.h>

namespace gradtile {
namespace {

/// Returns the text for the tokenizer: a character tokenizer starts after a byte order mark.
std::string_view part_to_tokenize(std::string_view text, TokenizerKind kind, const std::string& path) {
    if (kind == TokenizerKind::characters && text.starts_with(utf8_byte_order_mark))
        text.remove_prefix(utf8_byte_order_mark.size());
    check(!text.empty(), path, ": is empty; expected text");
    return text;
}

/// A file's tokens and its other properties.
struct Source {
    TokenSequence tokens{};
    std::int64_t vocabulary = 0;
    std::int32_t separator = -1;
    bool vocabulary_of_ids = false;                // see TokenFile::vocabulary_of_ids
    TokenFormat format = TokenFormat::headerless;  // of token files
    std::optional<Tokenizer> tokenizer{};
    std::optional<std::vector<Story>> stories{};
    std::vector<std::int64_t> document_begins{};  // and the token count; empty for token files
    std::optional<ChatTemplate> chat_template{};
    std::vector<DataContent> contents{};
    std::string description{};
};

struct SourceOptions {
    const DatasetOptions& data;
    /// Encodes text, and decodes token files; empty: text makes its own, and token files have none.
    std::optional<Tokenizer> tokenizer;
    std::int64_t vocabulary;     ///< see DatasetOptions
    JsonValue expected_content;  ///< content list, or null
};

JsonValue member_or_null(const JsonValue& object, const char* name) {
    const JsonValue* const member = object.find(name);
    return member ? *member : JsonValue();
}

SourceOptions source_options(const DatasetOptions& options, const std::optional<Tokenizer>& tokenizer) {
    return {options, tokenizer, options.vocabulary, member_or_null(options.expected_content, "data")};
}

DocumentEncoderOptions encoding_of(const DatasetOptions& options) {
    return {.chat_template = options.chat_template,
            .train_on = options.train_on,
            .special_tokens = options.special_tokens};
}

/// Each listed file takes three of the max_json_values that a checkpoint's text may have.
constexpr std::size_t max_listed_files = 5'000;

/// [{"bytes", "hash"}, ...], or {"files", "bytes", "hash"} for more files than a checkpoint can list.
JsonValue contents_to_json(const std::vector<DataContent>& contents) {
    JsonValue list = JsonValue::array();
    std::int64_t bytes = 0;
    for (const DataContent& content : contents) {
        list.push_back(content.to_json());
        bytes += content.bytes;
    }
    if (contents.size() <= max_listed_files) return list;
    return JsonValue::object(
        {{"files", contents.size()}, {"bytes", bytes}, {"hash", "sha256-of-list:" + sha256(list.dump())}});
}

void require_same_content(const std::string& path, const std::vector<DataContent>& contents,
                          const JsonValue& expected) {
    if (expected.is_null()) return;
    const JsonValue actual = contents_to_json(contents);
    const JsonValue files = expected.is_array() ? expected.size() : member_or_null(expected, "files");
    check(files.is_number(), path, ": the checkpoint's record of its data is damaged");
    check(files == contents.size(), path, ": ", contents.size(), contents.size() == 1 ? " file" : " files",
          "; the run was made with ", files);
    const auto require_same = [&](const JsonValue& is, const JsonValue& was, const std::string& shard) {
        for (const char* const key : {"bytes", "hash"})
            check(member_or_null(was, key) == is[key], path, ": ", shard,
                  "is not the data that the run was made with: ", key, " ", is[key], ", not ",
                  member_or_null(was, key));
    };
    if (actual.is_object()) return require_same(actual, expected, "");
    for (std::size_t i = 0; i < contents.size(); ++i)
        require_same(actual[i], expected[i], contents.size() == 1 ? "" : concat("file ", i + 1, " "));
}

/// What a text's tokens are called: "characters", "bytes", "BPE tokens" or "Unigram tokens".
std::string_view unit_of(const Tokenizer& tokenizer) {
    const BytePairEncoding* const encoding = tokenizer.byte_pair_encoding();
    if (!encoding) return name_of(tokenizer.kind());
    return encoding->vocabulary().model == SubwordModel::unigram ? "Unigram tokens" : "BPE tokens";
}

Tokenizer new_tokenizer(TokenizerKind kind, std::string_view text, const std::string& path,
                        std::size_t file_offset) {
    switch (kind) {
        case TokenizerKind::characters:
            return Tokenizer::characters_of(text, path, file_offset);
        case TokenizerKind::bytes:
            return Tokenizer::bytes();
        case TokenizerKind::bpe:
            throw Error(concat(path, ": a BPE tokenizer is not made from the text; expected its file"));
    }
    throw Error("tokenizer: unknown kind");
}

std::string description_of_text(const TokenSequence& tokens, const Tokenizer& tokenizer) {
    return concat("text, ", grouped(tokens.size()), ' ', unit_of(tokenizer));
}

constexpr std::array names_of_one{"document", "prompt with its completion", "conversation",
                                  "prompt with its list of completions"};
constexpr std::array names_of_many{"documents", "prompts with completions", "conversations",
                                   "prompts with lists of completions"};

/// "1,000 conversations in the template chatml, 52,000 characters, 20,000 of them targets".
std::string description_of(const TokenizedDocuments& documents, std::size_t files) {
    const auto kind = static_cast<std::size_t>(documents.kind);
    const bool is_chat = documents.kind == DocumentKind::conversations;
    std::string text = concat(files > 1 ? concat(files, " files, ") : "", grouped(documents.count()), ' ',
                              documents.count() == 1 ? names_of_one[kind] : names_of_many[kind],
                              is_chat ? concat(" in the template ", name_of(documents.chat_template)) : "",
                              ", ", grouped(documents.tokens.size()), ' ', unit_of(*documents.tokenizer));
    if (const Examples* const examples = documents.tokens.examples())
        text += concat(", ", grouped(examples->targets()), " of them targets");
    if (!is_chat) return text;
    const std::vector<std::string> missing =
        ChatFormat(documents.chat_template, *documents.tokenizer).missing_tokens();
    for (std::size_t i = 0; i < missing.size(); ++i)
        text += concat(i == 0 ? "; spelled out, because the tokenizer lacks them: " : ", ", missing[i]);
    return text;
}

/// `is_one_text`: the only file is one plain text.
Source open_documents(const std::string& path, const SourceOptions& how, bool is_one_text) {
    const std::vector<std::string> files = data_files(path);
    TokenizedDocuments documents = tokenize_documents({.files = files,
                                                       .source = path,
                                                       .text_column = how.data.text_column,
                                                       .is_one_text = is_one_text,
                                                       .encoding = encoding_of(how.data),
                                                       .cache = how.data.token_cache},
                                                      how.tokenizer, how.data.tokenizer);
    require_same_content(path, documents.contents, how.expected_content);
    Source source{.vocabulary = documents.tokenizer->vocab_size(),
                  .description = is_one_text ? description_of_text(documents.tokens, *documents.tokenizer)
                                             : description_of(documents, files.size())};
    if (documents.kind == DocumentKind::text)
        source.separator = separator_of(*documents.tokenizer).value_or(-1);
    if (documents.kind == DocumentKind::conversations) source.chat_template = documents.chat_template;
    source.tokens = std::move(documents.tokens);
    source.tokenizer = std::move(documents.tokenizer);
    source.document_begins = std::move(documents.begins);
    source.contents = std::move(documents.contents);
    return source;
}

Source open_plain_text(const std::string& path, const SourceOptions& how) {
    // Tokenizers of characters and bytes take no longer than reading the cache.
    const bool is_bpe = how.tokenizer && how.tokenizer->kind() == TokenizerKind::bpe;
    if (is_bpe && !how.data.token_cache.empty()) return open_documents(path, how, /*is_one_text=*/true);
    const TokenizerKind kind = how.tokenizer ? how.tokenizer->kind() : how.data.tokenizer;
    const std::string file = data_files(path).front();
    // The 32-bit ids (4 bytes per character at most) need memory in addition to the text.
    TextReader reader = open_text(file, FileHash::computed);
    std::string text = reader.read_all(kind == TokenizerKind::bytes ? 1 : 5);
    check(!begins_like_shard(text), path,
          ": begins as a token shard of llm.c; expected text, or a name that ends in .bin");
    Source source{.contents = {reader.content().value()}};
    require_same_content(path, source.contents, how.expected_content);
    const std::string_view part = part_to_tokenize(text, kind, path);
    const std::size_t file_offset = text.size() - part.size();
    source.tokenizer = how.tokenizer ? *how.tokenizer : new_tokenizer(kind, part, path, file_offset);
    source.vocabulary = source.tokenizer->vocab_size();
    source.separator = separator_of(*source.tokenizer).value_or(-1);
    if (how.data.stories) source.stories = how.data.stories(part);
    if (kind == TokenizerKind::bytes) {
        source.tokens = TokenSequence::from_bytes(std::move(text), path);
    } else {
        source.tokens = TokenSequence(
            source.tokenizer->encode(part, path,
                                     {.special_tokens = how.data.special_tokens, .file_offset = file_offset}),
            path);
    }
    source.description = description_of_text(source.tokens, *source.tokenizer);
    return source;
}

Source open_tokens(const std::string& path, const SourceOptions& how) {
    TokenFileOptions file_options{.vocabulary = how.vocabulary, .type = how.data.token_type};
    if (how.tokenizer && file_options.vocabulary == 0) file_options.vocabulary = how.tokenizer->vocab_size();
    TokenFile file = open_token_file(path, file_options);
    require_same_content(path, file.contents, how.expected_content);
    if (how.tokenizer) check_tokenizer(*how.tokenizer, file.vocabulary, path);
    Source source{.vocabulary = file.vocabulary,
                  .separator = traits_of(file.format).separator,
                  .vocabulary_of_ids = file.vocabulary_of_ids,
                  .format = file.format,
                  .tokenizer = how.tokenizer,
                  .description = file.description()};
    if (source.tokenizer && source.separator < 0)
        source.separator = separator_of(*source.tokenizer).value_or(-1);
    source.tokens = std::move(file.tokens);
    source.contents = std::move(file.contents);
    return source;
}

/// Shards of llm.c name the tokenizer of their ids. An id of another tokenizer is another token.
void require_same_shards(const DatasetOptions& options, TokenFormat train, TokenFormat validation) {
    const bool are_shards = traits_of(train).separator >= 0 && traits_of(validation).separator >= 0;
    check(!are_shards || train == validation, options.val_data, ": is a ", name_of(validation),
          " token file, ", options.data, " a ", name_of(train), " one");
}

Source open_source(const std::string& path, const SourceOptions& how) {
    if (is_token_file(path)) return open_tokens(path, how);
    return is_plain_text(path, how.data.text_column) ? open_plain_text(path, how)
                                                     : open_documents(path, how, /*is_one_text=*/false);
}

/// A resume reads the data again, and a run records its hash.
void refuse_standard_input(const char* setting, const std::string& path) {
    check(path != standard_input_name, setting,
          ": - is standard input, which cannot be read again; expected a file (gradtile tokenize - writes a "
          "token file)");
}

void require_tokenizer(const std::string& path, const std::optional<Tokenizer>& tokenizer) {
    check(is_token_file(path) || tokenizer.has_value(), path,
          ": is text, but the model was trained on token files and has no tokenizer");
}

/// Splits the documents: training gets the first ones. A single document is not divided.
void split_documents(Dataset& dataset, const Source& source, double val_fraction) {
    const std::vector<std::int64_t>& begins = source.document_begins;
    const auto count =
        static_cast<std::size_t>((1.0 - val_fraction) * static_cast<double>(begins.size() - 1));
    const std::int64_t border = count == 0 ? begins.back() : begins[count];
    dataset.train = source.tokens.slice(0, border);
    dataset.validation = source.tokens.slice(border, begins.back());
}

SourceLoss source_loss_of(std::span<const Story> stories, std::int64_t tokens) {
    return {.nats_per_character = source_nll_per_character(stories),
            .characters_per_token = static_cast<double>(stories.back().end - stories.front().begin) /
                                    static_cast<double>(tokens)};
}

/// Returns the number of tokens in the text's first `bytes` bytes, or nullopt if no token ends there.
std::optional<std::int64_t> tokens_in(const TokenSequence& tokens, const Tokenizer& tokenizer,
                                      std::size_t bytes) {
    std::vector<std::size_t> lengths(static_cast<std::size_t>(tokenizer.vocab_size()));
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
        if (tokenizer.has_text(id))
            lengths[static_cast<std::size_t>(id)] = tokenizer.decode({&id, 1}, TextPlace::middle).size();
    std::vector<std::int32_t> ids(1 << 16);
    std::size_t end = 0;
    for (std::int64_t begin = 0; begin < tokens.size(); begin += std::ssize(ids)) {
        ids.resize(static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(ids), tokens.size() - begin)));
        tokens.read(begin, ids);
        for (std::size_t i = 0; i < ids.size(); ++i) {
            if (end == bytes) return begin + static_cast<std::int64_t>(i);
            end += lengths[static_cast<std::size_t>(ids[i])];
        }
    }
    return std::nullopt;
}

/// Splits the sequence at the border between training and validation.
void split(Dataset& dataset, Source& source, double val_fraction) {
    const TokenSequence& all = source.tokens;
    if (all.examples() || source.document_begins.size() > 2)
        return split_documents(dataset, source, val_fraction);
    const double kept = 1.0 - val_fraction;
    // Above 2^53 tokens the product may be rounded up.
    auto border = std::min(static_cast<std::int64_t>(kept * static_cast<double>(all.size())), all.size());
    auto& stories = source.stories;
    if (const auto story_border = stories ? nearest_story_border(*stories, kept) : std::nullopt;
        story_border && val_fraction > 0.0) {
        if (const auto tokens = tokens_in(all, *source.tokenizer, *story_border)) {
            border = *tokens;
            std::erase_if(*stories, [&](const Story& story) { return story.begin < *story_border; });
            dataset.source_loss = source_loss_of(*stories, all.size() - border);
        }
    }
    dataset.train = all.slice(0, border);
    dataset.validation = all.slice(border, all.size());
}

/// Refuses a token cache where no tokens would be kept in it.
void check_token_cache(const DatasetOptions& options, const std::optional<Tokenizer>& tokenizer) {
    if (options.token_cache.empty()) return;
    const char* const expected = "; expected documents, or a text with a BPE tokenizer, for token-cache";
    check(!is_token_file(options.data), options.data, ": is a token file", expected);
    const TokenizerKind kind = tokenizer ? tokenizer->kind() : options.tokenizer;
    check(kind == TokenizerKind::bpe || !is_plain_text(options.data, options.text_column), options.data,
          ": is a text that is read by ", name_of(kind), expected);
}

/// Describes a source's tokens, which are not divided yet.
Dataset dataset_of(const std::string& path, const Source& source) {
    return {.tokenizer = source.tokenizer,
            .vocabulary = source.vocabulary,
            .separator = source.separator,
            .chat_template = source.chat_template,
            .content = JsonValue::object({{"data", contents_to_json(source.contents)}}),
            .description = {concat(path, ": ", source.description)}};
}

/// Refuses data that cannot be read again and again in parts.
void check_stream(const DatasetOptions& options, const std::optional<Tokenizer>& tokenizer) {
    const std::string expected =
        concat("; expected files of documents, for stream-buffer ", options.stream_buffer);
    check(!is_token_file(options.data), options.data, ": is a token file, which is read in parts anyway",
          expected);
    check(!is_plain_text(options.data, options.text_column), options.data, ": is one text", expected);
    check(
        tokenizer || options.tokenizer == TokenizerKind::bytes, "tokenizer: ", name_of(options.tokenizer),
        " are collected from all documents before the first step; expected bytes or a tokenizer's file, for "
        "stream-buffer ",
        options.stream_buffer);
}

/// "3 files of documents, shuffled in blocks of 10,000"
std::string description_of(const DocumentStream& stream) {
    const std::int64_t files = stream.files().count();
    return concat(stream.source(), ": ", grouped(files), files == 1 ? " file of " : " files of ",
                  names_of_many[static_cast<std::size_t>(stream.kind())],
                  ", encoded during training in blocks of ", grouped(stream.buffer()));
}

/// Opens documents that are encoded during training. Sets everything but the validation data.
Dataset open_stream(const DatasetOptions& options, const std::optional<Tokenizer>& given) {
    check_stream(options, given);
    const Tokenizer tokenizer = given ? *given : Tokenizer::bytes();
    DocumentStreamOptions streaming{
        .files = data_files(options.data),
        .source = options.data,
        .text_column = options.text_column,
        .buffer = options.stream_buffer,
        .seed = options.stream_seed,
        .keeps_validation = options.val_data.empty() && options.val_fraction > 0.0,
        .encoding = encoding_of(options),
        .expected_files = member_or_null(options.expected_content, "data")};
    streaming.encoding.threads = options.stream_threads;
    Dataset dataset{.stream = std::make_shared<DocumentStream>(std::move(streaming), tokenizer),
                    .tokenizer = tokenizer,
                    .vocabulary = tokenizer.vocab_size()};
    const DocumentKind kind = dataset.stream->kind();
    if (kind == DocumentKind::text) dataset.separator = separator_of(tokenizer).value_or(-1);
    if (kind == DocumentKind::conversations)
        dataset.chat_template = resolved_template(options.chat_template, tokenizer);
    dataset.content = JsonValue::object({{"data", dataset.stream->files().names_and_sizes()}});
    dataset.description = {description_of(*dataset.stream)};
    return dataset;
}

/// Takes the validation data out of the stream.
void take_validation(Dataset& dataset) {
    dataset.validation = dataset.stream->validation();
    dataset.description.push_back(dataset.validation.size() == 0
                                      ? "no document is for validation, which takes one row in 100; expected "
                                        "more documents, or val-data"
                                      : concat("one row in 100 is for validation, ",
                                               grouped(dataset.validation.size()), " ",
                                               unit_of(*dataset.tokenizer)));
}

}  // namespace

DocumentKind document_kind_of(const Dataset& dataset) {
    return dataset.stream ? dataset.stream->kind() : document_kind_of(dataset.train);
}

LoadedTokens load_tokens(const DatasetOptions& options, const std::optional<Tokenizer>& tokenizer) {
    refuse_standard_input("data", options.data);
    require_tokenizer(options.data, tokenizer);
    Source source = open_source(options.data, source_options(options, tokenizer));
    return {std::move(source.tokens), std::move(source.description)};
}

Dataset load_dataset(const DatasetOptions& options, const std::optional<Tokenizer>& tokenizer) {
    check(!options.data.empty(), "data: no file given (--data FILE)");
    refuse_standard_input("data", options.data);
    refuse_standard_input("val-data", options.val_data);
    check(options.val_fraction >= 0.0 && options.val_fraction < 1.0, "val-fraction: ", options.val_fraction,
          "; expected 0 <= val-fraction < 1");
    check(!is_token_file(options.data) || options.text_column.empty(), options.data,
          ": is a token file; expected rows with a column '", options.text_column, "' (text-column)");
    if (!options.makes_tokenizer) require_tokenizer(options.data, tokenizer);
    check_token_cache(options, tokenizer);
    SourceOptions how = source_options(options, tokenizer);
    Dataset dataset;
    Source source;
    if (options.stream_buffer > 0) {
        dataset = open_stream(options, tokenizer);
    } else {
        source = open_source(options.data, how);
        dataset = dataset_of(options.data, source);
    }
    if (options.val_data.empty()) {
        if (!dataset.stream) {
            split(dataset, source, options.val_fraction);
        } else if (options.val_fraction > 0.0) {
            take_validation(dataset);
        }
        return dataset;
    }
    require_tokenizer(options.val_data, dataset.tokenizer);
    how.tokenizer = dataset.tokenizer;
    how.expected_content = member_or_null(options.expected_content, "val-data");
    if (!source.vocabulary_of_ids) how.vocabulary = dataset.vocabulary;
    Source validation = open_source(options.val_data, how);
    require_same_shards(options, source.format, validation.format);
    if (validation.stories)
        dataset.source_loss = source_loss_of(*validation.stories, validation.tokens.size());
    dataset.train = std::move(source.tokens);
    dataset.validation = std::move(validation.tokens);
    dataset.vocabulary = std::max(dataset.vocabulary, validation.vocabulary);
    dataset.content.set("val-data", contents_to_json(validation.contents));
    dataset.description.push_back(concat(options.val_data, ": ", validation.description));
    return dataset;
}

}  // namespace gradtile
