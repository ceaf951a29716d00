#pragma once
/// Datasets: from file names to a training and a validation sequence of tokens.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/text/json_value.h>
#include <gradtile/train/data/data_content.h>
#include <gradtile/train/data/token_sequence.h>
#include <gradtile/train/data/token_type.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

struct DatasetOptions {
    std::string data{};         ///< text file, or token file (.bin; a pattern for several shards)
    std::string val_data{};     ///< empty: the last part of data
    double val_fraction = 0.1;  ///< that part
    TokenizerKind tokenizer = TokenizerKind::characters;  ///< text only
    TokenType token_type = TokenType::automatic;          ///< token files without a header only
    std::int64_t vocabulary = 0;  ///< token files: every id is below it; 0: see open_token_file
    /// Dataset::content of the run that goes on: other data is refused. null: nothing is compared.
    JsonValue made_with{};
};

struct Dataset {
    TokenSequence train{};
    TokenSequence validation{};            ///< empty when val_fraction is 0 and there is no val_data
    std::optional<Tokenizer> tokenizer{};  ///< none for token files
    std::int64_t vocabulary = 0;
    /// For validation text that generate_corpus wrote: what the source itself reaches there, nats a
    /// character.
    std::optional<double> source_nll{};
    /// What tells this data from other: {"data": [CONTENT, ...]}, and "val-data" likewise where it is a file
    /// of its own, CONTENT as DataContent::to_json() writes it, for each shard. Paths are not part of it.
    JsonValue content{};
    /// A line for each file: "train.bin: headerless uint16, 1,003,854 tokens, largest id 64".
    std::vector<std::string> description{};
};

/// Reads the files, makes the tokenizer from the training file's text and splits: training is the first
/// int((1 - val_fraction) * N) of N tokens, exactly as nanoGPT splits; only a text of generate_corpus is
/// split at the border between two stories that is nearest. A text begins after its byte order mark, if it
/// has one; the byte tokenizer takes every byte. Text is read into memory; token files stay where they are.
/// Where the ids of a token file without a header make the vocabulary, those of val_data do, too.
///
/// Throws Error naming the file when it is missing, empty, a directory, unreadable, not UTF-8 (characters),
/// text that does not fit into memory or not a sound token file, when validation data holds a character or id
/// that training data does not know, and when the data is not `made_with`. `tokenizer` (of a checkpoint) is
/// used instead of making one.
Dataset load_dataset(const DatasetOptions& options, const std::optional<Tokenizer>& tokenizer = {});

/// A whole file (or several shards) as tokens.
struct LoadedTokens {
    TokenSequence tokens;
    std::string description;  ///< "headerless uint16, 1,003,854 tokens"
};

struct LoadTokensOptions {
    std::int64_t vocabulary = 0;  ///< token files: see TokenFileOptions
    TokenType token_type = TokenType::automatic;
};

/// A text through the tokenizer, a token file (.bin) within the vocabulary.
LoadedTokens load_tokens(const std::string& path, const std::optional<Tokenizer>& tokenizer,
                         const LoadTokensOptions& options = {});

}  // namespace gradtile
