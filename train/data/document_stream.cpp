#include <gradtile/train/data/document_stream.h>

#include <gradtile/core/check.h>
#include <gradtile/core/philox.h>
#include <gradtile/core/start_thread.h>
#include <gradtile/train/data/examples.h>
#include <gradtile/train/data/permutation.h>

namespace gradtile {
namespace {

// The purposes that a seed is used for; each purpose has its own key.
enum Purpose : std::uint64_t { files_purpose = 0x66696c65, documents_purpose = 0x646f6373 };

}  // namespace

DocumentStream::DocumentStream(DocumentStreamOptions options, const Tokenizer& tokenizer)
    : options_(std::move(options)),
      files_(options_.files, options_.expected_files, options_.source),
      form_(options_.files, options_.text_column),
      encoder_(tokenizer, with_document_borders(options_.encoding, tokenizer)),
      pool_(options_.encoding.threads) {
    check(options_.buffer >= 1, "stream-buffer: ", options_.buffer, "; expected at least 1 document");
    Document first;
    check(form_.next(first), options_.source, ": is empty; expected text");
}

DocumentStream::~DocumentStream() {
    stop_reading_ahead();
}

StreamBlock DocumentStream::block(const StreamPlace& begin) {
    if (ahead_ != begin) stop_reading_ahead();
    StreamBlock block;
    if (ahead_) {
        ahead_.reset();
        thread_.join();
        block = ahead_block_.get();
    } else {
        block = read_block(begin);
    }
    std::packaged_task<StreamBlock()> read([this, next = block.end] { return read_block(next); });
    ahead_block_ = read.get_future();
    thread_ = start_thread("reading data ahead", std::move(read));
    ahead_ = block.end;
    return block;
}

void DocumentStream::stop_reading_ahead() {
    if (!ahead_) return;
    stops_ = true;
    thread_.join();
    stops_ = false;
    ahead_.reset();
    ahead_block_ = {};
}

TokenSequence DocumentStream::validation() {
    const std::vector<std::int64_t> order = files_.validation_order();
    std::vector<std::string> paths;
    for (const std::int64_t file : order) paths.push_back(files_.paths()[static_cast<std::size_t>(file)]);
    DocumentReader reader(paths, form_);
    reader.select_rows([&](const DocumentPlace& place) {
        return files_.is_validation({order[static_cast<std::size_t>(place.file)], place.row});
    });
    std::vector<EncodedDocument> documents;
    std::int64_t tokens = 0;
    for (Document document; reader.next(document);) {
        EncodedDocument encoded = encoder_.encode(document, reader.where());
        tokens += std::ssize(encoded.ids);
        if (tokens > max_validation_tokens) break;
        documents.push_back(std::move(encoded));
    }
    return join(std::move(documents));
}

std::vector<std::int64_t> DocumentStream::file_order(std::int64_t epoch) const {
    const std::uint64_t seed = mix_seed(options_.seed.value, files_purpose);
    return files_.shuffled(mix_seed(seed, static_cast<std::uint64_t>(epoch)));
}

JsonValue DocumentStream::record_at(const StreamPlace& place) const {
    std::vector<bool> is_read(static_cast<std::size_t>(files_.count()), place.epoch > 0);
    const std::vector<std::int64_t> order = file_order(0);
    if (place.epoch == 0)
        for (std::int64_t i = 0; i < place.file; ++i)
            is_read[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = true;
    return files_.to_json(is_read);
}

/// Begins to read at a place. Blocks that follow each other keep the file open.
void DocumentStream::open(const StreamPlace& begin) {
    if (reader_ && begin == place_) return;
    order_ = file_order(begin.epoch);
    check(begin.file >= 0 && begin.file < files_.count() && begin.row >= 0, "data position: row ", begin.row,
          " of file ", begin.file, "; the data have ", files_.count(), " files");
    std::vector<std::string> paths;
    for (const std::int64_t file : order_) paths.push_back(files_.paths()[static_cast<std::size_t>(file)]);
    reader_.emplace(paths, form_);
    reader_->hash_files();
    reader_->start_at({begin.file, begin.row});
    if (options_.keeps_validation)
        reader_->select_rows([this](const DocumentPlace& place) {
            return !files_.is_validation({order_[static_cast<std::size_t>(place.file)], place.row});
        });
    file_ = begin.file;
    files_.require_unchanged(order_[static_cast<std::size_t>(file_)]);
    place_ = begin;
    fetch();
}

/// Reads the next document.
void DocumentStream::fetch() {
    check(!stops_, options_.source, ": reading was stopped");
    pending_.reset();
    Document document;
    if (!reader_->next(document)) return pass_files(files_.count());
    pending_place_ = reader_->place();
    pass_files(pending_place_.file);
    pending_ = {std::move(document), reader_->where()};
}

/// Called when the files before `file` have been read to their ends.
void DocumentStream::pass_files(std::int64_t file) {
    for (; file_ < file; ++file_) {
        files_.record_hash(order_[static_cast<std::size_t>(file_)], [&] { return reader_->content(file_); });
        if (file_ + 1 < files_.count()) files_.require_unchanged(order_[static_cast<std::size_t>(file_ + 1)]);
    }
}

/// Returns the documents of the block, of which the first one is pending.
std::vector<PlacedDocument> DocumentStream::take_documents() {
    std::vector<PlacedDocument> documents;
    std::size_t bytes = 0;
    DocumentPlace last;
    while (pending_) {
        const bool is_full = std::ssize(documents) >= options_.buffer || bytes >= max_block_bytes;
        if (is_full && pending_place_ != last) break;
        last = pending_place_;
        bytes += bytes_of(pending_->document);
        documents.push_back(*std::move(pending_));
        fetch();
    }
    return documents;
}

StreamPlace DocumentStream::next_place(const StreamPlace& begin) const {
    if (!pending_) return {.epoch = begin.epoch + 1, .block = begin.block + 1};
    return {begin.epoch, pending_place_.file, pending_place_.row, begin.block + 1};
}

StreamBlock DocumentStream::read_block(const StreamPlace& begin) {
    try {
        open(begin);
        std::vector<PlacedDocument> documents = take_documents();
        if (documents.size() > 1) {
            const std::uint64_t seed = mix_seed(options_.seed.value, documents_purpose);
            const Permutation order(documents.size(),
                                    mix_seed(seed, static_cast<std::uint64_t>(begin.block)));
            std::vector<PlacedDocument> shuffled(documents.size());
            for (std::size_t i = 0; i < shuffled.size(); ++i) shuffled[i] = std::move(documents[order(i)]);
            documents = std::move(shuffled);
        }
        place_ = next_place(begin);
        if (!pending_) reader_.reset();
        return {begin, place_, join(encoder_.encode(documents, pool_))};
    } catch (...) {
        reader_.reset();  // the next call opens the file again
        throw;
    }
}

TokenSequence DocumentStream::join(std::vector<EncodedDocument> documents) const {
    std::size_t count = 0;
    for (const EncodedDocument& document : documents) count += document.ids.size();
    std::vector<std::int32_t> ids;
    ids.reserve(count);
    Examples examples{.kind = kind()};
    for (EncodedDocument& document : documents) {
        ids.insert(ids.end(), document.ids.begin(), document.ids.end());
        examples.begins.push_back(std::ssize(ids));
        examples.is_target.insert(examples.is_target.end(), document.is_target.begin(),
                                  document.is_target.end());
        document = {};
    }
    if (kind() == DocumentKind::text || ids.empty()) return {std::move(ids), options_.source};
    return TokenSequence::from_examples(std::move(ids), std::move(examples), options_.source);
}

}  // namespace gradtile
