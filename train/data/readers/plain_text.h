#pragma once
/// Whether a file's beginning is plain text.
#include <gradtile/train/data/readers/byte_source.h>

namespace gradtile {

/// Returns whether the text has zero bytes and is not UTF-8, by its first 8,000 bytes.
bool is_binary(TextReader& text);

/// Throws Error that names the text, and what to do, if it begins as a tar archive, as data that are
/// compressed twice, or as UTF-16 or UTF-32 with or without a byte order mark. Consumes nothing.
void require_plain_text(TextReader& text);

}  // namespace gradtile
