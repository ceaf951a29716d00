#pragma once
/// Datasets: a training and a validation token sequence, from file names.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/random.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/train/data/chat_template.h>
#include <gradtile/train/data/documents.h>
#include <gradtile/train/data/token_sequence.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

class DocumentStream;

/// One story in a text that consists of stories: characters [begin, end), including the blank line that ends
/// it.
struct Story {
    std::size_t begin = 0;
    std::size_t end = 0;
    double nll = 0.0;  ///< the story's -ln p under the grammar that generated it, nats
};

/// Returns a text's stories, which cover it and are ASCII, or nullopt for any other text.
using StoryParser = std::function<std::optional<std::vector<Story>>(std::string_view text)>;

/// Returns -ln p of the stories divided by their characters: the loss, in nats per character, of a predictor
/// that knows the grammar and the whole story so far. No model can do better on average.
double source_nll_per_character(std::span<const Story> stories);

/// The loss of a predictor that knows the stories' grammar. A model's loss per token is compared with it.
struct SourceLoss {
    double nats_per_character = 0.0;  ///< source_nll_per_character()
    double characters_per_token = 1.0;
};

/// Returns where to split a text into training and validation: the border between two stories that is nearest
/// to `fraction` of the text. Returns nothing for fewer than two stories.
std::optional<std::size_t> nearest_story_border(std::span<const Story> stories, double fraction);

struct DatasetOptions {
    /// A file, a folder or a pattern: text, documents (documents.h) or tokens (.bin).
    std::string data{};
    /// The validation file; empty: the last part of `data`.
    std::string val_data{};
    double val_fraction = 0.1;                            ///< fraction of all data kept for validation
    TokenizerKind tokenizer = TokenizerKind::characters;  ///< for text only
    /// Whether text may have a new tokenizer if load_dataset() is given none. The ids of a model that has
    /// been trained mean nothing to a new one.
    bool makes_tokenizer = true;
    TokenType token_type = TokenType::automatic;  ///< for token files without a header only
    std::int64_t vocabulary = 0;  ///< for token files: every id is below this number; 0: see open_token_file
    /// Whether a BPE tokenizer recognises special tokens in text. Runs that divide documents at the separator
    /// token need this option.
    SpecialTokens special_tokens = SpecialTokens::as_text;
    ChatTemplate chat_template = ChatTemplate::automatic;  ///< for conversations
    TrainOn train_on = TrainOn::answers;                   ///< for completions and conversations
    std::string text_column{};                             ///< see RowColumns
    std::string token_cache{};                             ///< see TokenizeDocumentsOptions
    /// The resumed run's Dataset::content: data with another content is refused. null means that nothing is
    /// compared.
    JsonValue expected_content{};
    /// Not 0: documents are encoded while a model trains on them (see DocumentStream), in blocks of this many
    /// documents; a hundredth of the rows is kept for validation, unless val_fraction is 0.
    std::int64_t stream_buffer = 0;
    Seed stream_seed{};
    int stream_threads = 1;  ///< that encode
    /// Recognises texts that are divided between two stories. Not used with a token cache.
    StoryParser stories{};
};

struct Dataset {
    TokenSequence train{};                     ///< empty for a stream
    std::shared_ptr<DocumentStream> stream{};  ///< instead of `train`; null without stream_buffer
    TokenSequence validation{};                ///< empty when val_fraction is 0 and there is no val_data
    std::optional<Tokenizer> tokenizer{};      ///< empty for token files, unless load_dataset() was given one
    std::int64_t vocabulary = 0;
    std::int32_t separator = -1;  ///< the id that begins documents; -1: not known, or there is none
    /// The conversations' template, never automatic; none for other data.
    std::optional<ChatTemplate> chat_template{};
    /// If the validation text consists of stories: the lowest possible loss on this text.
    std::optional<SourceLoss> source_loss{};
    /// Identifies the data: {"data": [CONTENT, ...]}, and "val-data" likewise if validation has its own file;
    /// one CONTENT per shard, as DataContent::to_json() writes it. The value contains no paths. Of a stream
    /// {"data": StreamFiles::names_and_sizes()}, because its files are not read yet; a checkpoint holds what
    /// StreamFiles knows when it is saved.
    JsonValue content{};
    /// One line for each file: "train.bin: headerless uint16, 1,003,854 tokens, largest id 64".
    std::vector<std::string> description{};
};

/// The kind of the training documents; text for token files and plain text, too.
DocumentKind document_kind_of(const Dataset& dataset);

/// Reads the files, makes the tokenizer from the training file's text, and splits the data: training gets the
/// first int((1 - val_fraction) * N) of N tokens, as in nanoGPT, or of N documents. A story text (see
/// DatasetOptions::stories) is split at the nearest border between two stories, if a token ends there. A byte
/// order mark at a text's start is dropped, unless the tokenizer is `bytes`. A plain text is read into
/// memory, and so are the ids of documents without a token cache; token files stay on disk. If the vocabulary
/// comes from the ids in a token file without a header, val_data's ids count, too.
///
/// Throws Error naming the file when it is missing, empty, a directory, unreadable, not UTF-8 (character
/// tokenizer), too large for memory (text) or not a sound token file. Throws Error when the validation data
/// holds a character or id that the training data does not have, and when the data differs from
/// `expected_content`. If `tokenizer` is given (a file's or a checkpoint's), it is used instead of a new one;
/// ids in token files must then be the tokenizer's, unless `vocabulary` allows more.
Dataset load_dataset(const DatasetOptions& options, const std::optional<Tokenizer>& tokenizer = {});

/// All tokens in a file, or in several shards.
struct LoadedTokens {
    TokenSequence tokens;
    std::string description;  ///< "headerless uint16, 1,003,854 tokens"
};

/// Loads all of options.data: text or documents with the tokenizer, or a token file (.bin) whose ids fit the
/// vocabulary.
LoadedTokens load_tokens(const DatasetOptions& options, const std::optional<Tokenizer>& tokenizer);

}  // namespace gradtile
