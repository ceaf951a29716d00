#pragma once
/// Datasets: from file names to a training and a validation sequence of tokens.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <gradtile/train/token_sequence.h>
#include <gradtile/train/tokenizer.h>

namespace gradtile {

struct DatasetOptions {
    std::string data{};         ///< text file, or token file (.bin; a pattern for several shards)
    std::string val_data{};     ///< empty: the last part of data
    double val_fraction = 0.1;  ///< that part
    TokenizerKind tokenizer = TokenizerKind::characters;  ///< text only
    std::int64_t vocabulary = 0;  ///< token files: every id is below it; 0: see open_token_file
};

struct Dataset {
    TokenSequence train;
    TokenSequence validation;            ///< empty when val_fraction is 0 and there is no val_data
    std::optional<Tokenizer> tokenizer;  ///< none for token files
    std::int64_t vocabulary = 0;
    /// For validation text that generate_corpus wrote: what the source itself reaches there, nats a
    /// character.
    std::optional<double> source_nll;
};

/// Reads the files, makes the tokenizer from the training file's text and splits: training is the first
/// int((1 - val_fraction) * N) of N tokens, exactly as nanoGPT splits; only a text of generate_corpus is
/// split at the border between two stories that is nearest. A text begins after its byte order mark, if it
/// has one; the byte tokenizer takes every byte. Throws Error naming the file when it is missing, empty, a
/// directory, unreadable, not UTF-8 (characters) or not a sound token file, and when validation data holds a
/// character or id that training data does not know. `tokenizer` (of a checkpoint) is used instead of making
/// one.
Dataset load_dataset(const DatasetOptions& options, const std::optional<Tokenizer>& tokenizer = {});

/// One whole file as tokens: a text through the tokenizer, a token file (.bin) within the vocabulary.
TokenSequence load_tokens(const std::string& path, const std::optional<Tokenizer>& tokenizer,
                          std::int64_t vocabulary);

}  // namespace gradtile
