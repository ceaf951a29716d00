#include <gradtile/train/shard_copies.h>

#include <algorithm>
#include <cstring>

#include <gradtile/core/tensor_ops.h>

namespace gradtile {
namespace {

// Copies are int32, because a Communicator moves numbers.
constexpr std::int64_t word_bytes = 4;
constexpr std::int64_t max_piece_bytes = 4 << 20;

/// Calls visit(shard, copy) for the parts of the shard's memory that `words`, from first_word on, are a copy
/// of.
template <class Visit>
void visit_overlap(std::span<const std::span<std::byte>> shard, std::int64_t first_word, const Tensor& words,
                   const Visit& visit) {
    auto begin = -static_cast<std::ptrdiff_t>(first_word * word_bytes);  // of a part, in the copy
    const auto size = static_cast<std::ptrdiff_t>(words.bytes());
    for (const std::span<std::byte> part : shard) {
        const std::ptrdiff_t end = begin + std::ssize(part);
        const std::ptrdiff_t first = std::max<std::ptrdiff_t>(begin, 0), last = std::min(end, size);
        if (first < last)
            visit(
                part.subspan(static_cast<std::size_t>(first - begin), static_cast<std::size_t>(last - first)),
                words.raw_data() + first);
        begin = end;
    }
}

}  // namespace

ShardCopies::ShardCopies(const Context& ctx, std::vector<std::span<std::byte>> shard, std::size_t max_bytes,
                         const Communicator& communicator)
    : shard_(std::move(shard)),
      communicator_(communicator),
      ring_(communicator.ring(ctx, communicator.size())) {
    std::size_t bytes = 0;
    for (const auto& part : shard_) bytes += part.size();
    check(bytes <= max_bytes, "shard copies: ", bytes, " bytes; expected at most ", max_bytes);
    const std::int64_t words = ceil_div(static_cast<std::int64_t>(max_bytes), word_bytes);
    own_ = zeros(ctx, {words}, DType::i32);
    for (Tensor& copy : neighbours_) copy = zeros(ctx, {words}, DType::i32);
    transit_ = zeros(ctx, {std::min(words, max_piece_bytes / word_bytes)}, DType::i32);
}

template <class Visit>
void ShardCopies::visit_pieces(const Visit& visit) const {
    for (std::int64_t begin = 0; begin < own_.elements(); begin += transit_.elements()) {
        const FlatRange words{begin, std::min(transit_.elements(), own_.elements() - begin)};
        visit(words, transit_.slice(0, 0, words.length));
    }
}

void ShardCopies::read_shard(std::int64_t first_word, const Tensor& words) const {
    visit_overlap(shard_, first_word, words, [](std::span<std::byte> shard, std::byte* copy) {
        std::memcpy(copy, shard.data(), shard.size());
    });
}

void ShardCopies::write_shard(std::int64_t first_word, const Tensor& words) const {
    visit_overlap(shard_, first_word, words, [](std::span<std::byte> shard, const std::byte* copy) {
        std::memcpy(shard.data(), copy, shard.size());
    });
}

void ShardCopies::keep(const Context& ctx, std::int64_t step) {
    const std::size_t oldest = own_step_ >= 0 && neighbour_steps_[0] == own_step_ ? 1 : 0;
    neighbour_steps_[oldest] = -1;
    visit_pieces([&](const FlatRange& words, const Tensor& sent) {
        read_shard(words.begin, sent);
        ring_->start_shift(ctx, sent, neighbours_[oldest].slice(0, words.begin, words.length));
        ring_->finish_shifts(ctx);
    });
    neighbour_steps_[oldest] = step;
    communicator_.barrier(ctx);  // from now on the shards of this step are all there
    read_shard(0, own_);
    own_step_ = step;
}

void ShardCopies::describe(HeldState& held) const {
    held.own_copy = own_step_;
    held.neighbour_copies = neighbour_steps_;
}

void ShardCopies::restore(const Context& ctx, std::int64_t step, std::span<const HeldState> held) {
    const int own_rank = communicator_.rank();
    for (int rank = 0; rank < communicator_.size(); ++rank) {
        const HeldState& h = held[static_cast<std::size_t>(rank)];
        if (h.step == step) continue;
        if (h.own_copy == step) {
            if (rank == own_rank) write_shard(0, own_);
            continue;
        }
        const int next = (rank + 1) % communicator_.size();
        const Tensor& copy = neighbours_[neighbour_steps_[0] == step ? 0 : 1];
        visit_pieces([&](const FlatRange& words, const Tensor& piece) {
            if (next == own_rank) gradtile::copy(ctx, piece, copy.slice(0, words.begin, words.length));
            communicator_.broadcast(ctx, piece, next);
            if (rank == own_rank) write_shard(words.begin, piece);
        });
    }
    forget_after(step);
}

void ShardCopies::forget_after(std::int64_t step) {
    if (own_step_ > step) own_step_ = -1;
    for (std::int64_t& neighbour : neighbour_steps_)
        if (neighbour > step) neighbour = -1;
}

}  // namespace gradtile
