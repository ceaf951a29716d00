#pragma once
/// The program's standard input, output and error.
#include <string>

#include <gradtile/core/check.h>

namespace gradtile::cli {

/// Opens /dev/null for each closed descriptor of 0, 1 and 2. Otherwise a file of the run could get one of
/// them and receive the printed text. As in gnulib's stdopen(), each descriptor is opened in the wrong
/// direction (read-only for output), so that reading and writing still fail. Call before any file is opened.
void open_missing_streams();

/// Appends the next bytes of standard input to `text`, and waits for them, also if the program that started
/// this one made the pipe non-blocking. Returns false at the end of the input. Throws Error when it cannot be
/// read. (Streams of the C++ library take an error, for example of a directory as input, for the end.)
bool read_input(std::string& text);

/// The reader of standard output has ended (`| head`): the command ends without a message.
class BrokenPipe : public Error {
  public:
    using Error::Error;
};

/// Flushes standard output, of printf and std::cout. Throws Error "standard output: ..." when something
/// printed since the start of the program was not written, and BrokenPipe when its reader has ended.
void check_output();

/// Prepares generated text for standard output. On a terminal, control characters other than line breaks and
/// tabs are escaped; otherwise the text is unchanged.
std::string text_for_output(const std::string& text);

}  // namespace gradtile::cli
