#pragma once
/// A list of short texts in one memory block. A std::string per text would take 32 bytes more.
#include <cstddef>
#include <string>
#include <string_view>

namespace gradtile {

class JoinedTexts {
  public:
    std::size_t size() const { return size_; }
    /// Removes all texts and releases their memory, which an assignment would keep.
    void release() {
        std::string().swap(bytes_);
        size_ = 0;
    }

    void add(std::string_view text) {
        // The length in groups of 7 bits, lowest group first; the high bit says that another group follows.
        std::size_t length = text.size();
        for (; length >= 0x80; length >>= 7) bytes_ += static_cast<char>((length & 0x7F) | 0x80);
        bytes_ += static_cast<char>(length);
        bytes_ += text;
        ++size_;
    }

    /// Returns the texts in the order in which they were added.
    class Reader {
      public:
        explicit Reader(const JoinedTexts& texts) : rest_(texts.bytes_) {}
        /// Must be called at most size() times.
        std::string_view next() {
            std::size_t length = 0;
            for (unsigned shift = 0;; shift += 7) {
                const auto group = static_cast<unsigned char>(rest_.front());
                rest_.remove_prefix(1);
                length |= std::size_t{group & 0x7Fu} << shift;
                if (group < 0x80) break;
            }
            const std::string_view text = rest_.substr(0, length);
            rest_.remove_prefix(length);
            return text;
        }

      private:
        std::string_view rest_;
    };

  private:
    std::string bytes_;
    std::size_t size_ = 0;
};

}  // namespace gradtile
