#pragma once
/// INTERNAL. Scratch memory for one call's tasks.
#include <algorithm>

#include <gradtile/core/context.h>
#include <gradtile/core/tensor.h>

namespace gradtile::attention::cpu {

/// Scratch memory in one allocation: one piece for each task that may run at the same time.
class TaskScratch {
  public:
    TaskScratch(const Context& ctx, std::int64_t tasks, std::size_t bytes)
        : pieces_(std::min<std::int64_t>(tasks, ctx.threads().size())),
          piece_bytes_((static_cast<std::int64_t>(bytes) + 63) / 64 * 64),
          memory_(empty(ctx, {ceil_div(pieces_ * piece_bytes_, 4)}, DType::i32)),
          taken_(empty(ctx, {pieces_}, DType::i32)) {}
    void clear() const { std::fill_n(taken_.data<std::int32_t>(), pieces_, 0); }

    /// A piece of the scratch memory, reserved for one running task.
    class Piece {
      public:
        explicit Piece(const TaskScratch& scratch) {
            // At most pieces_ tasks run at the same time, so a piece is always free.
            for (std::int64_t i = 0;; i = (i + 1) % scratch.pieces_) {
                flag_ = scratch.taken_.data<std::int32_t>() + i;
                if (__atomic_exchange_n(flag_, 1, __ATOMIC_ACQUIRE) == 0) {
                    data_ = scratch.memory_.raw_data() + i * scratch.piece_bytes_;
                    return;
                }
            }
        }
        ~Piece() { __atomic_store_n(flag_, 0, __ATOMIC_RELEASE); }
        Piece(const Piece&) = delete;
        Piece& operator=(const Piece&) = delete;
        std::byte* data() const { return data_; }

      private:
        std::int32_t* flag_ = nullptr;
        std::byte* data_ = nullptr;
    };

  private:
    std::int64_t pieces_;
    std::int64_t piece_bytes_;
    Tensor memory_;
    Tensor taken_;
};

}  // namespace gradtile::attention::cpu
