#pragma once
/// Reads documents from a file's text.
#include <string>
#include <string_view>
#include <vector>

#include <gradtile/train/data/documents.h>

#include <support/temporary_directory.h>

namespace gradtile::test {

inline std::vector<Document> documents_in(std::vector<std::string> files, std::string text_column = {}) {
    DocumentReader reader(std::move(files), std::move(text_column));
    std::vector<Document> documents;
    for (Document document; reader.next(document);) documents.push_back(std::move(document));
    return documents;
}

/// Writes the text to a file and reads the conversations in it.
inline std::vector<Conversation> conversations_in(std::string_view text,
                                                  const std::string& name = "c.jsonl") {
    const TemporaryDirectory place;
    DocumentReader reader({place.write(name, text)});
    std::vector<Conversation> conversations;
    for (Document document; reader.next(document);)
        conversations.push_back(std::get<Conversation>(std::move(document)));
    return conversations;
}

}  // namespace gradtile::test
