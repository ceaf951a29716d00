#pragma once
/// A JSON value that is held in memory. json_reader.h parses texts, json_writer.h prints values.
///
/// nlohmann::json is not used for values: its destructor allocates memory, so it ends the process when memory
/// is exhausted (std::bad_alloc leaves a noexcept function). Destroying or moving a JsonValue never
/// allocates.
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <gradtile/core/check.h>

namespace gradtile {

class JsonValue {
  public:
    struct Member;
    using Array = std::vector<JsonValue>;
    using Object = std::vector<Member>;  ///< sorted by name; names are unique

    JsonValue() noexcept = default;  ///< null
    // NOLINTBEGIN(google-explicit-constructor): the conversions keep the value.
    JsonValue(std::nullptr_t) noexcept {}
    JsonValue(bool value) : value_(value) {}
    JsonValue(double value) : value_(value) {}
    template <std::integral Integer>
    JsonValue(Integer value) {
        if (std::in_range<std::uint64_t>(value)) {
            value_ = static_cast<std::uint64_t>(value);
        } else {
            value_ = static_cast<std::int64_t>(value);
        }
    }
    JsonValue(std::string value) : value_(std::make_unique<std::string>(std::move(value))) {}
    JsonValue(std::string_view value) : JsonValue(std::string(value)) {}
    JsonValue(const char* value) : JsonValue(std::string(value)) {}
    JsonValue(Array values) : value_(std::make_unique<Array>(std::move(values))) {}
    /// Makes an array.
    template <class T>
    JsonValue(const std::vector<T>& values) : JsonValue(Array(values.begin(), values.end())) {}
    // NOLINTEND(google-explicit-constructor)
    static JsonValue array() { return Array(); }
    /// Makes an object. If a name occurs twice, its last value counts.
    static JsonValue object(std::initializer_list<Member> members = {});
    /// Makes an object in linear time, apart from sorting. Throws Error if a name occurs twice.
    static JsonValue object_of(Object members);

    JsonValue(const JsonValue& other);
    JsonValue(JsonValue&& other) noexcept : value_(std::move(other.value_)) { other.value_.emplace<0>(); }
    JsonValue& operator=(JsonValue other) noexcept {
        value_ = std::move(other.value_);
        return *this;
    }
    ~JsonValue() = default;

    bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
    bool is_boolean() const { return std::holds_alternative<bool>(value_); }
    bool is_number_unsigned() const { return std::holds_alternative<std::uint64_t>(value_); }
    bool is_number_integer() const {
        return is_number_unsigned() || std::holds_alternative<std::int64_t>(value_);
    }
    bool is_number() const { return is_number_integer() || std::holds_alternative<double>(value_); }
    bool is_string() const { return std::holds_alternative<std::unique_ptr<std::string>>(value_); }
    bool is_array() const { return std::holds_alternative<std::unique_ptr<Array>>(value_); }
    bool is_object() const { return std::holds_alternative<std::unique_ptr<Object>>(value_); }
    /// "null", "boolean", "number", "string", "array" or "object".
    std::string_view type_name() const;

    /// Returns whether the value is an integer in T's range, so that get<T>() returns it.
    template <std::integral T>
    bool fits() const;

    // Each function below throws Error if the value has another type.
    bool boolean() const;
    double number() const;
    const std::string& text() const;
    const Array& elements() const;
    const Object& items() const;
    /// Returns a bool, an integer (throws Error if it is out of T's range), a double, a std::string or a
    /// std::vector of these.
    template <class T>
    T get() const;

    /// Returns how many elements or members the value has; 0 for other types.
    std::size_t size() const;
    /// Returns the member; null if the value has no such member or is not an object.
    const JsonValue* find(std::string_view name) const;
    /// Returns the member; null if find() finds none, or a JSON null.
    const JsonValue* find_value(std::string_view name) const {
        const JsonValue* const member = find(name);
        return member != nullptr && !member->is_null() ? member : nullptr;
    }
    bool contains(std::string_view name) const { return find(name) != nullptr; }
    /// Return a member or an element. Throw Error if the value has none.
    const JsonValue& operator[](std::string_view name) const;
    const JsonValue& operator[](const char* name) const { return (*this)[std::string_view(name)]; }
    template <std::integral Index>
    const JsonValue& operator[](Index index) const {
        return element(static_cast<std::size_t>(index));
    }

    /// Sets a member; null becomes an object. Throws Error if the value has another type.
    void set(std::string_view name, JsonValue value);
    void erase(std::string_view name);
    /// Returns a member's text without copying it. The member becomes an empty string. Throws Error if the
    /// value has no such member, or it is not a string.
    std::string take_text(std::string_view name);
    /// Appends an element; null becomes an array. Throws Error if the value has another type.
    void push_back(JsonValue value);

    /// Prints the value on one line, or with `indent` spaces per level. Throws Error as JsonWriter does.
    std::string dump(int indent = -1) const;

    /// Numbers are equal if their values are equal: 1 equals 1.0.
    friend bool operator==(const JsonValue& a, const JsonValue& b);

  private:
    const JsonValue& element(std::size_t index) const;
    std::int64_t signed_integer() const { return std::get<std::int64_t>(value_); }
    std::uint64_t unsigned_integer() const { return std::get<std::uint64_t>(value_); }
    [[noreturn]] void refuse_type(std::string_view expected) const;

    // Integers that are not negative are unsigned. Larger types are behind a pointer, so that a number array
    // takes 16 bytes per number.
    std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::unique_ptr<std::string>,
                 std::unique_ptr<Array>, std::unique_ptr<Object>>
        value_;
};

struct JsonValue::Member {
    std::string name;
    JsonValue value;
    friend bool operator==(const Member& a, const Member& b) = default;
};

template <std::integral T>
bool JsonValue::fits() const {
    return is_number_unsigned() ? std::in_range<T>(unsigned_integer())
                                : is_number_integer() && std::in_range<T>(signed_integer());
}

template <class T>
T JsonValue::get() const {
    if constexpr (std::same_as<T, bool>) {
        return boolean();
    } else if constexpr (std::integral<T>) {
        if (!fits<T>())
            refuse_type(concat("an integer from ", std::numeric_limits<T>::min() + 0, " to ",
                               std::numeric_limits<T>::max() + 0));
        return is_number_unsigned() ? static_cast<T>(unsigned_integer()) : static_cast<T>(signed_integer());
    } else if constexpr (std::floating_point<T>) {
        return static_cast<T>(number());
    } else if constexpr (std::same_as<T, std::string>) {
        return text();
    } else {
        T values;
        for (const JsonValue& value : elements()) values.push_back(value.get<typename T::value_type>());
        return values;
    }
}

/// Describes a value in an error message: a number or text (shortened if it is long), "[...]" or "{...}".
std::string json_excerpt(const JsonValue& value);

/// Returns untrusted text for a message: printable ASCII without line breaks, shortened if it is long.
std::string shown_in_message(std::string_view text, std::size_t max_bytes = 60);

/// Prints the value for test messages.
std::ostream& operator<<(std::ostream& out, const JsonValue& value);

}  // namespace gradtile
