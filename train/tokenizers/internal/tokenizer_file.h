#pragma once
/// One tokenizer file.
#include <memory>
#include <string>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

struct TokenizerFile {
    BytePairVocabulary vocabulary;
    std::shared_ptr<const TokenizerSource> file = nullptr;  ///< for Tokenizer::byte_pairs
};

/// Reads one file that load_tokenizer() names, without the files beside it.
TokenizerFile read_tokenizer_file(const std::string& path);

}  // namespace gradtile
