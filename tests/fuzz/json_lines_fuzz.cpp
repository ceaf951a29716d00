// Fuzzes the reader for multiple-choice questions: any bytes give one Error, or questions that the program
// can use.
#include <string_view>

#include "memory_file.h"

#include <gradtile/core/check.h>
#include <gradtile/tools/evaluation/multiple_choice.h>

namespace {

using namespace gradtile;
using fuzz::require;

void read_questions(std::string_view text) {
    for (const ChoiceQuestion& question : read_choice_questions(TextReader(text, "input"))) {
        require(!question.context.empty() && question.choices.size() >= 2);
        require(question.label < question.choices.size());
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    try {
        read_questions(text);
    } catch (const Error&) {
        // The reader refused the file.
    }
    return 0;
}
