#pragma once
/// Reads the tokenizer in a Hugging Face transformers folder: tokenizer.json, or vocab.json with merges.txt,
/// and the files beside it.
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/core/text/known_members.h>
#include <gradtile/train/tokenizers/tokenizer.h>

namespace gradtile {

/// The files that change the ids of the tokenizer beside them, or hold the chat template.
inline constexpr std::array tokenizer_folder_files{"tokenizer_config.json", "special_tokens_map.json",
                                                   "added_tokens.json", "chat_template.jinja"};

struct TokenizerFolder {
    std::optional<Tokenizer> tokenizer = {};  ///< empty if the folder has no tokenizer
    /// The texts in those of tokenizer_folder_files that exist, by file name.
    std::map<std::string, std::string> files = {};
    std::optional<std::string> chat_template = {};  ///< in Jinja
    std::vector<std::string> notes = {};            ///< what the user should know
};

/// Returns the known members of tokenizer_config.json.
std::vector<KnownMember> tokenizer_members();

/// Returns the known values of tokenizer_class, without "Fast" at their ends; "" for none.
std::vector<std::string_view> tokenizer_classes();

/// Returns the chat template in a tokenizer_config.json's text, or the one with the name "default" if there
/// are several. Throws Error that begins with `source`.
std::optional<std::string> template_of_tokenizer_config(const std::string& text, const std::string& source);

/// Reads a folder. `tokenizer_class` is the class that config.json names; tokenizer_config.json may name
/// another. If transformers 5 would replace tokenizer.json's pattern by the class's, the file counts, as it
/// does in transformers 4, and a note says so. Throws Error that names the file and the member when
/// transformers would compute other ids than the tokenizer's files say, or when transformers versions
/// disagree:
/// - a class that is not known;
/// - add_bos_token or add_eos_token that differs from tokenizer.json's post-processor;
/// - tokens that tokenizer.json does not have, or has with another id;
/// - members that are refused, such as add_prefix_space, or not known (see known_members.h).
TokenizerFolder load_tokenizer_folder(const std::string& folder, const std::string& tokenizer_class,
                                      UnknownMembers& unknown);

}  // namespace gradtile
