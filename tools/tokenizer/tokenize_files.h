#pragma once
/// Converts documents to token files.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gradtile/core/enum_names.h>
#include <gradtile/train/data/chat_template.h>
#include <gradtile/train/data/token_file.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

/// The format for written token files.
enum class TokenFileStyle {
    llmc,    ///< llm.c's shards: gpt2's if the vocabulary is at most GPT-2's, else llama3's
    nanogpt  ///< no header: uint16, or uint32 if the vocabulary has more than 65,536 tokens
};

template <>
struct EnumNames<TokenFileStyle> {
    static constexpr std::array names = {std::pair{TokenFileStyle::llmc, std::string_view("llmc")},
                                         std::pair{TokenFileStyle::nanogpt, std::string_view("nanogpt")}};
};

struct TokenizeOptions {
    /// Files, folders and patterns (documents.h), and "-" for standard input.
    std::vector<std::string> files{};
    std::string text_column{};                             ///< see RowColumns
    ChatTemplate chat_template = ChatTemplate::automatic;  ///< for conversations
    TokenFileStyle style = TokenFileStyle::llmc;
    std::string out{};
    /// An added token of the tokenizer. Texts are cut into documents where its text occurs, and its id is
    /// written before each text and after each completion. Empty: no separators.
    std::string separator{};
    double val_fraction = 0.0;  ///< this last fraction of the documents goes to val_out
    std::string val_out{};
    int threads = 0;  ///< thread count; 0: one per core
    /// Called with the number of bytes done and in all, without those of standard input.
    std::function<void(std::int64_t bytes, std::int64_t of)> on_progress{};
};

struct TokenizeResult {
    std::int64_t documents = 0, tokens = 0, val_documents = 0, val_tokens = 0;
    TokenFormat format{};
};

/// Returns the files that all names stand for, in their order.
std::vector<std::string> files_of(const std::vector<std::string>& names);
/// Returns how many bytes the files have, without standard input.
std::int64_t bytes_of_files(const std::vector<std::string>& files);

/// Throws Error naming the option that is missing, out of range or contradicts another one.
void validate(const TokenizeOptions& options);

/// Encodes documents in their order and writes one token file, or two with a val_fraction. Empty documents
/// are left out. Memory holds some MiB of text, of a plain text all of it, and with a val_fraction 8 bytes
/// for each document. A token file does not tell which tokens are targets.
///
/// Throws Error naming the file or the option when a file cannot be read, the tokenizer has no such
/// separator, the format cannot hold the vocabulary, or the documents are too few to be split, and as
/// validate() does.
TokenizeResult tokenize_files(const Tokenizer& tokenizer, const TokenizeOptions& options);

}  // namespace gradtile
