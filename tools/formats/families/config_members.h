#pragma once
/// Maps the members of a config.json to a model's settings. One function per family lists the members; it
/// reads a file and writes one, so that import and export cannot disagree.
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gradtile/core/text/json_value.h>

namespace gradtile {

/// A member's names. transformers accepts each; export writes the first.
class MemberNames {
  public:
    // NOLINTNEXTLINE(google-explicit-constructor): a name stands for itself
    MemberNames(const char* name) : names_{name} {}
    MemberNames(std::initializer_list<const char*> names) : names_(names) {}
    auto begin() const { return names_.begin(); }
    auto end() const { return names_.end(); }

  private:
    std::vector<const char*> names_;
};

/// Reads or writes a JSON object's members. Errors name the file and the member.
class ConfigMembers {
  public:
    /// Reads `object`. A setting whose member is absent or null keeps its value.
    ConfigMembers(const JsonValue& object, std::string_view source);
    /// Writes an object.
    ConfigMembers() = default;

    bool reads() const { return object_ != nullptr; }
    const std::string& source() const { return source_; }
    /// Every name that a function of this object was called with.
    const std::vector<std::string_view>& names() const { return names_; }
    /// The object that was written.
    JsonValue take() { return std::move(written_); }

    void map(const MemberNames& names, std::int64_t& value);
    /// A size of the model: null is refused, because no value is usual.
    void map_size(const MemberNames& names, std::int64_t& value);
    void map(const MemberNames& names, double& value);
    void map(const MemberNames& names, bool& value);
    void map(const MemberNames& names, std::vector<double>& values);
    /// An enumeration or another type: the first text in `table` with the value is written.
    template <class T>
    void map(const MemberNames& names, T& value,
             std::initializer_list<std::pair<std::string_view, T>> table) {
        const auto text_of = [&] {
            for (const auto& [text, entry] : table)
                if (entry == value) return text;
            return table.begin()->first;  // export compares what it has written with the model
        };
        std::string text(text_of());
        std::vector<std::string_view> known;
        for (const auto& [entry_text, entry] : table) known.push_back(entry_text);
        map_text(names, text, known);
        for (const auto& [entry_text, entry] : table)
            if (reads() && entry_text == text) value = entry;
    }
    /// Reads null as `null_value`, and writes it as null.
    template <class T>
    void map_null(const MemberNames& names, T& value, T null_value) {
        const JsonValue* const found = find(names);
        if (found && found->is_null()) value = null_value;
        if (reads() || value != null_value) {
            map(names, value);
        } else {
            write(*names.begin(), JsonValue());
        }
    }
    /// Writes the member only if its value is not 0.
    void map_unless_zero(const MemberNames& names, double& value) {
        if (reads() || value != 0) map(names, value);
    }
    /// Writes a member that changes no result, and that reading therefore ignores.
    void write(const char* name, JsonValue value);

    /// Returns a member that has a value other than null; null if there is none, or if this object writes.
    const JsonValue* value_of(const MemberNames& names);
    bool has(const MemberNames& names) { return value_of(names) != nullptr; }

  private:
    template <class T>
    void map_value(const MemberNames& names, T& value, bool (*fits)(const JsonValue&),
                   std::string_view expected);
    void map_text(const MemberNames& names, std::string& text, const std::vector<std::string_view>& known);
    /// Returns a member, which may be null. If two names have different values, transformers' version decides
    /// which value counts, so two different values are refused.
    const JsonValue* find(const MemberNames& names);
    void remember(const char* name);
    /// The one of the names that the object has.
    const char* name_in_file(const MemberNames& names) const;
    [[noreturn]] void refuse(const MemberNames& names, const JsonValue& value,
                             std::string_view expected) const;

    const JsonValue* object_ = nullptr;
    std::string source_;
    JsonValue written_ = JsonValue::object();
    std::vector<std::string_view> names_;
};

}  // namespace gradtile
