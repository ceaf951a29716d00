#pragma once
/// Documents as one token sequence, in memory or in a cache on disk.
#include <optional>
#include <string>
#include <vector>

#include <gradtile/train/data/document_encoder.h>
#include <gradtile/train/data/examples.h>
#include <gradtile/train/data/readers/data_content.h>
#include <gradtile/train/data/token_sequence.h>

namespace gradtile {

struct TokenizedDocuments {
    TokenSequence tokens{};  ///< with examples(), unless the documents are texts
    DocumentKind kind = DocumentKind::text;
    /// The index of each document's first token, in increasing order from 0, and then the token count.
    std::vector<std::int64_t> begins{0};
    std::vector<DataContent> contents{};   ///< one per file
    std::optional<Tokenizer> tokenizer{};  ///< the given one, or the one that was made from the documents
    ChatTemplate chat_template = ChatTemplate::plain;

    std::int64_t count() const { return std::ssize(begins) - 1; }
};

struct TokenizeDocumentsOptions {
    std::vector<std::string> files{};
    std::string source{};  ///< name of the tokens in messages
    std::string text_column{};
    /// The only file is one plain text: neither separators nor blank lines are added.
    bool is_one_text = false;
    DocumentEncoderOptions encoding{};
    /// Directory of token files that earlier calls have left; it is created. Empty: no cache. An entry
    /// belongs to the files' paths, sizes and modification times, the tokenizer and the other options.
    std::string cache{};
};

/// Reads and encodes all documents, or opens them in the cache. With a cache, memory holds some MiB of text,
/// 8 bytes for each document and a bit for each token of completions and conversations. If `tokenizer` is not
/// given, makes one of this kind, characters or bytes, from the documents.
///
/// Throws Error when a file cannot be read, when there is no document, and when the
/// tokens need more than the available memory.
TokenizedDocuments tokenize_documents(const TokenizeDocumentsOptions& options,
                                      const std::optional<Tokenizer>& tokenizer, TokenizerKind kind);

}  // namespace gradtile
