#pragma once
/// Reads structs in Thrift's compact protocol (apache/thrift, doc/specs/thrift-compact-protocol.md).
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <gradtile/core/check.h>

namespace gradtile {

/// A struct that needs more bytes than there are.
class ThriftEnd : public Error {
  public:
    using Error::Error;
};

/// Reads values in order. Every length is checked, so a list never claims more elements than bytes are left.
class ThriftReader {
  public:
    enum class Type {
        boolean_true = 1,
        boolean_false,
        byte,
        i16,
        i32,
        i64,
        real,
        binary,
        list,
        set,
        map,
        structure
    };

    /// `source` begins error messages.
    ThriftReader(std::span<const std::byte> bytes, std::string source)
        : bytes_(bytes), source_(std::move(source)) {}

    std::size_t position() const { return position_; }

    /// Calls visit(id, type) for each field of a struct. `visit` reads the value and returns true, or returns
    /// false: the value is then skipped.
    template <class Visit>
    void read_struct(Visit&& visit) {
        const Nested nested(*this);
        std::int64_t id = 0;
        while (true) {
            const unsigned head = byte();
            if (head == 0) return;
            const unsigned step = head >> 4;
            id = step > 0 ? id + step : zigzag();
            const Type type = type_of(head & 15);
            if (!visit(id, type)) skip(type);
        }
    }
    /// Calls visit() for each element of a list, which reads it.
    template <class Visit>
    void read_list(Type type, Type elements, Visit&& visit) {
        require(type, Type::list);
        const ListHead head = list_head();
        if (head.count > 0) require(head.elements, elements);
        for (std::uint64_t i = 0; i < head.count; ++i) visit();
    }
    std::int64_t integer(Type type);
    std::int32_t integer32(Type type);
    bool boolean(Type type);
    std::string_view binary(Type type);
    void require(Type type, Type expected) const;
    void skip(Type type);

  private:
    struct ListHead {
        Type elements;
        std::uint64_t count;
    };
    /// Limits how deeply structs, lists and maps may be nested.
    class Nested {
      public:
        explicit Nested(ThriftReader& reader) : reader_(reader) {
            check(++reader_.depth_ <= max_depth, reader_.source_, ": nested more than ", max_depth,
                  " levels deep");
        }
        ~Nested() { --reader_.depth_; }
        Nested(const Nested&) = delete;
        Nested& operator=(const Nested&) = delete;

      private:
        static constexpr int max_depth = 32;
        ThriftReader& reader_;
    };
    unsigned byte() { return std::to_integer<unsigned>(take(1)[0]); }
    std::span<const std::byte> take(std::uint64_t count);
    std::uint64_t varint();
    std::int64_t zigzag();
    Type type_of(unsigned code) const;
    ListHead list_head();
    void skip_element(Type type);

    std::span<const std::byte> bytes_;
    std::size_t position_ = 0;
    std::string source_;
    int depth_ = 0;
};

}  // namespace gradtile
