#pragma once
/// One tokenizer file.
#include <memory>
#include <string>

#include <gradtile/train/tokenizers/byte_pair_vocabulary.h>

namespace gradtile {

struct TokenizerFile {
    BytePairVocabulary vocabulary;
    std::shared_ptr<const std::string> file = nullptr;  ///< a tokenizer.json's text
};

/// Reads one file that load_tokenizer() names, without the files beside it.
TokenizerFile read_tokenizer_file(const std::string& path);

}  // namespace gradtile
