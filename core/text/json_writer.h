#pragma once
/// Prints JSON texts piece by piece, so that a long text needs no JsonValue.
#include <functional>
#include <string>
#include <string_view>

#include <gradtile/core/text/json_reader.h>

namespace gradtile {

/// Prints the parts that it receives as a JsonHandler. A text from read_json is printed in this format.
class JsonWriter final : public JsonHandler {
  public:
    /// Receives the text in pieces. A piece ends between two characters and not inside an escape sequence.
    using Sink = std::function<void(std::string_view piece)>;
    /// With `indent` spaces per level, each value is on its own line; -1: all on one line.
    explicit JsonWriter(Sink sink, int indent = -1) : sink_(std::move(sink)), indent_(indent) {}
    /// Appends to a text, which must outlive the writer.
    explicit JsonWriter(std::string& text, int indent = -1);

    // The parts. Throw Error when a string is not UTF-8 (file names may be any bytes); the message names the
    // members that lead to it. A number that is not finite becomes null.
    void scalar(JsonValue value) override { write(value); }
    void name(std::string name) override { write_name(name); }
    void begin_array() override { begin(false); }
    void begin_object() override { begin(true); }
    void end() override;

    void write_name(std::string_view name);
    void write_text(std::string_view text);
    /// Prints a value with everything in it.
    void write(const JsonValue& value);
    /// Prints a member.
    void write(std::string_view name, const JsonValue& value) {
        write_name(name);
        write(value);
    }
    /// Hands the rest of the text to the sink.
    void finish();

  private:
    struct Open {
        bool is_object = false;
        std::size_t count = 0;  // parts so far: elements or members
        std::string name = {};  // the current member's name
    };
    void begin(bool is_object);
    void begin_value();
    void break_line();
    void append(std::string_view piece);
    void append_long(std::string_view text);
    void append_string(std::string_view text);
    [[noreturn]] void refuse_text() const;

    Sink sink_;
    int indent_;
    std::string buffer_;
    std::vector<Open> open_;
};

}  // namespace gradtile
