// Encodes a long text on several threads, with the ids that one thread gives.
//
// The text is cut into jobs at added tokens and invalid UTF-8, where pieces end anyway, and at BlankBorders
// if the tokenizer has them. Else a long run between them is cut into chunks at arbitrary characters. Where a
// piece ends depends only on the text and on where the piece starts. So if two scans have one piece border in
// common, they have all later borders in common. Each chunk is therefore encoded from its first character,
// although a piece may not begin there. joined() then drops the chunk's first pieces, up to a border that the
// previous chunk's scan also has. Usually one of the first borders is such a border.
#include <algorithm>
#include <mutex>

#include <gradtile/core/check.h>
#include <gradtile/core/context.h>
#include <gradtile/core/text/utf8.h>
#include <gradtile/train/tokenizers/internal/byte_pair_worker.h>

namespace gradtile {
namespace {

constexpr std::size_t chunk_bytes = std::size_t{1} << 19;
/// The end of a chunk's last piece is searched for up to this many bytes after the chunk's end.
constexpr std::size_t max_overhang = std::size_t{1} << 14;

}  // namespace

class BytePairEncoding::ParallelEncoding {
  public:
    ParallelEncoding(const BytePairEncoding& encoding, std::string_view text, std::string_view source,
                     const EncodeOptions& options)
        : encoding_(encoding), text_(text), source_(source) {
        encoding.tables_->for_each_part(text, options.special_tokens, normalized_,
                                        [&](std::string_view part, std::int32_t id) { add_part(part, id); });
    }

    std::vector<std::int32_t> run(int threads) {
        ThreadPool pool(threads);
        pool.run(std::ssize(jobs_), [this](std::int64_t i) {
            WorkerLoan worker(*this);
            encode(jobs_[static_cast<std::size_t>(i)], *worker);
        });
        return joined();
    }

  private:
    using Ids = std::vector<std::int32_t>;
    struct Part {
        std::string_view text;
        std::int32_t id;  // an added token's id; -1 for text
    };
    /// A piece's end: its position in the run, and how many ids the chunk has before it.
    struct Border {
        std::size_t position, ids;
    };
    struct Job {
        std::vector<Part> parts{};
        // A job is either a list of parts, or a chunk [begin, end) of a valid UTF-8 run.
        std::string_view run{};
        std::size_t begin = 0, end = 0;
        std::size_t stop = 0;  // the end of the last piece that begins before `end`
        std::vector<Border> borders{};
        std::string_view gap{};  // see Worker::take_gap
        std::size_t bytes = 0;
        Ids ids{};
        bool is_chunk() const { return !run.empty(); }
    };
    /// With this many borders two scans almost always have one in common, because whitespace and letters
    /// separate pieces in ordinary text.
    static constexpr std::size_t max_borders = 4096;

    /// Lends a worker to one job. There are as many workers as threads that work at the same time.
    class WorkerLoan {
      public:
        explicit WorkerLoan(ParallelEncoding& owner) : owner_(owner) {
            const std::scoped_lock lock(owner.mutex_);
            if (owner.idle_.empty()) {
                worker_ = std::make_unique<Worker>(owner.encoding_, owner.text_, owner.source_);
            } else {
                worker_ = std::move(owner.idle_.back());
                owner.idle_.pop_back();
            }
        }
        ~WorkerLoan() {
            const std::scoped_lock lock(owner_.mutex_);
            owner_.idle_.push_back(std::move(worker_));
        }
        WorkerLoan(const WorkerLoan&) = delete;
        WorkerLoan& operator=(const WorkerLoan&) = delete;
        Worker& operator*() const { return *worker_; }

      private:
        ParallelEncoding& owner_;
        std::unique_ptr<Worker> worker_;
    };

    void add_part(std::string_view part, std::int32_t id) {
        if (id >= 0) return add_short({part, id});
        for (std::size_t position = 0; position < part.size();) {
            const std::size_t end = end_of_utf8(part, position);
            if (end > position) add_run(part.substr(position, end - position));
            position = end_of_invalid_utf8(part, end);
            if (position > end) add_short({part.substr(end, position - end), -1});
        }
    }

    void add_short(Part part) {
        if (jobs_.empty() || jobs_.back().is_chunk() || jobs_.back().bytes >= chunk_bytes)
            jobs_.emplace_back();
        jobs_.back().parts.push_back(part);
        jobs_.back().bytes += part.text.size();
    }

    void add_run(std::string_view run) {
        const BlankBorders& borders = encoding_.tables_->borders;
        if (encoding_.tables_->splitter.patterns() == 0 && borders.cuts()) {
            for (std::size_t begin = 0, end = 0; begin < run.size(); begin = end) {
                end = borders.next(run, std::min(begin + chunk_bytes, run.size()) - 1);
                add_short({run.substr(begin, end - begin), -1});
            }
            return;
        }
        // If there are several patterns, the text between two matches may be long, and two scans would rarely
        // have a border in common.
        if (run.size() < 2 * chunk_bytes || encoding_.tables_->splitter.patterns() != 1)
            return add_short({run, -1});
        for (std::size_t begin = 0; begin < run.size();) {
            std::size_t end = std::min(begin + chunk_bytes, run.size());
            while (end < run.size() && continues_character(run[end])) ++end;
            jobs_.push_back({.run = run, .begin = begin, .end = end});
            begin = end;
        }
    }

    static void encode(Job& job, Worker& worker) {
        if (!job.is_chunk()) {
            for (const Part& part : job.parts) {
                if (part.id >= 0) {
                    job.ids.push_back(part.id);
                } else {
                    worker.encode_plain(part.text, job.ids);
                }
            }
            return;
        }
        job.ids.reserve((job.end - job.begin) / 3);
        job.stop = job.begin;
        job.borders.push_back({job.begin, 0});
        // The last piece's end is searched for only in the next max_overhang bytes. If the piece is longer,
        // joined() encodes it. Otherwise every chunk in a very long word would search for the word's end, and
        // the time would grow with the square of the word's length.
        const bool is_last = job.end + max_overhang >= job.run.size();
        const std::string_view part = is_last ? job.run : whole_characters(job.run, job.end + max_overhang);
        while (job.stop < job.end) {
            const std::optional<std::size_t> next = is_last
                                                        ? worker.encode_next(part, job.stop, job.ids)
                                                        : worker.encode_next_in_part(part, job.stop, job.ids);
            if (!next) break;
            job.stop = *next;
            if (job.borders.size() < max_borders) job.borders.push_back({job.stop, job.ids.size()});
        }
        job.gap = worker.take_gap();
    }

    /// Returns a text's first `bytes` bytes, without an incomplete character at the end.
    static std::string_view whole_characters(std::string_view text, std::size_t bytes) {
        while (continues_character(text[bytes])) --bytes;
        return text.substr(0, bytes);
    }

    Ids joined() {
        std::size_t count = 0;
        for (const Job& job : jobs_) count += job.ids.size();
        Ids ids;
        ids.reserve(count);
        WorkerLoan worker(*this);
        std::size_t position = 0;  // position in the run that holds the previous chunk
        for (Job& job : jobs_) {
            if (!job.is_chunk()) {
                ids.insert(ids.end(), job.ids.begin(), job.ids.end());
            } else {
                if (job.begin == 0) position = 0;
                append_chunk(job, position, *worker, ids);
            }
            job.ids = {};
        }
        return ids;
    }

    /// Appends the chunk's ids from text position `position` on. The text before it is already encoded.
    static void append_chunk(const Job& job, std::size_t& position, Worker& worker, Ids& ids) {
        while (position < job.end) {
            const auto border = std::ranges::lower_bound(job.borders, position, {}, &Border::position);
            if (border != job.borders.end() && border->position == position) {
                if (!job.gap.empty() && job.gap.data() >= job.run.data() + position)
                    worker.refuse_gap(job.gap);
                ids.insert(ids.end(), job.ids.begin() + static_cast<std::ptrdiff_t>(border->ids),
                           job.ids.end());
                position = job.stop;
                break;
            }
            position = worker.encode_next(job.run, position, ids);
        }
        while (position < job.end) position = worker.encode_next(job.run, position, ids);
        worker.refuse_gap(worker.take_gap());
    }

    const BytePairEncoding& encoding_;
    std::string_view text_, source_;
    std::deque<std::string> normalized_;  // the texts that jobs_ refers to, unless they are in text_
    std::vector<Job> jobs_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<Worker>> idle_;
};

std::vector<std::int32_t> BytePairEncoding::encode_in_parallel(std::string_view text, std::string_view source,
                                                               const EncodeOptions& options) const {
    return ParallelEncoding(*this, text, source, options).run(options.threads);
}

}  // namespace gradtile
